//! Connections to the API server, by a kubeconfig or the service account of the pod.
//!
//! A new client reads its credentials again: after a refusal (401) this is how a rotated token is
//! found at once. kube's own client would read it within a minute.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use hyper::Response;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::{self, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use kube::client::ConfigExt as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::sync::watch;
use tower::{BoxError, ServiceBuilder};

/// Timeout of a TCP connection's establishment.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without data after which the kernel probes the server, and the interval of the probes.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// Probes, and time of unacknowledged data, after which the connection is lost.
const KEEPALIVE_PROBES: u32 = 3;
const UNACKNOWLEDGED: Duration = Duration::from_mins(1);
/// Time without data after which a response has failed. The server ends a watch earlier.
const READ_TIMEOUT: Duration = Duration::from_mins(5);

/// Where the credentials are.
#[derive(Clone, Debug)]
pub(crate) struct Credentials {
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) context: Option<String>,
}

impl Credentials {
    /// Reads the credentials and returns a client with them; does not connect yet.
    pub(crate) async fn client(&self) -> Result<Client> {
        Ok(self.observed_client().await?.0)
    }

    /// Does the same, and returns what changes with each successful answer to the client.
    pub(crate) async fn observed_client(&self) -> Result<(Client, watch::Receiver<()>)> {
        let config = match &self.kubeconfig {
            Some(path) => self.of_kubeconfig(path.clone()).await?,
            None => Config::incluster_env()
                .context("no kubeconfig is given, and this is no pod with a service account")?,
        };
        if config.auth_info.exec.is_some() || config.auth_info.auth_provider.is_some() {
            bail!(
                "the user of the kubeconfig executes a program for its credentials: use a token file or a client certificate"
            );
        }
        client(&config)
    }

    async fn of_kubeconfig(&self, path: PathBuf) -> Result<Config> {
        let what = format!("cannot use the kubeconfig {}", path.display());
        let file = Kubeconfig::read_from(path).with_context(|| what.clone())?;
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..KubeConfigOptions::default()
        };
        Config::from_custom_kubeconfig(file, &options)
            .await
            .context(what)
    }
}

/// Returns a client that notices a dead connection within a minute or so, and does not retry by
/// itself: a watch retries with a delay of its own.
fn client(config: &Config) -> Result<(Client, watch::Receiver<()>)> {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(KEEPALIVE));
    connector.set_keepalive_retries(Some(KEEPALIVE_PROBES));
    connector.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    let connector = config
        .rustls_https_connector_with_connector(connector)
        .context("cannot use the certificates of the API server's configuration")?;
    let mut timed = TimeoutConnector::new(connector);
    timed.set_connect_timeout(Some(CONNECT_TIMEOUT));
    timed.set_read_timeout(Some(READ_TIMEOUT));
    let http = legacy::Builder::new(TokioExecutor::new()).build(timed);
    let (answered, answers) = watch::channel(());
    let service = ServiceBuilder::new()
        .map_response(move |response: Response<_>| {
            if response.status().is_success() {
                answered.send_replace(());
            }
            response
        })
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().context("cannot use the credentials")?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    let client = Client::new(service, config.default_namespace.clone());
    Ok((client, answers))
}
