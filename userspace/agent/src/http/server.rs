//! Server: starts background tasks and socket, serves the API until a stop signal, and handles
//! reloads.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use api::EventOutcome;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::app::App;
use crate::clock;
use crate::cni::file_watch;
use crate::cni::file_watch::Directories;
use crate::config::Config;
use crate::config::{peers_file, pod_cidr_file, policies_file};
use crate::docker::{self, DockerListener};
use crate::http::socket::{ListenAddress, ReadOnlyListener, Socket};
use crate::http::{connections, metrics_listener, routes};
use crate::process::service_manager::{self, Notification};
use crate::process::{background, memory};
use crate::telemetry::events::{NewEvent, reports};
use crate::telemetry::{refused_flows, stuck_engine};

/// Files of other software that the agent follows.
pub(crate) struct WatchedFiles {
    pub(crate) pod_cidr_file: Option<PathBuf>,
    pub(crate) peers_file: Option<PathBuf>,
    pub(crate) policies_file: Option<PathBuf>,
    pub(crate) installation: Directories,
    /// Whether the default network is in use before any request needs it.
    pub(crate) expects_pod_cidr: bool,
}

impl WatchedFiles {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            pod_cidr_file: config.pod_cidr_file.clone(),
            peers_file: config.peers_file.clone(),
            policies_file: config.policies_file.clone(),
            installation: config.installation.clone(),
            expects_pod_cidr: config.kubenet,
        }
    }
}

/// Sockets that the agent serves.
#[derive(Debug)]
pub(crate) struct Listeners {
    pub(crate) main: ListenAddress,
    pub(crate) read_only: Option<ReadOnlyListener>,
    /// Address of `--metrics-listen`.
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) docker: Option<DockerListener>,
}

/// Serves until SIGTERM or SIGINT, then finishes running requests.
pub(crate) async fn serve(listeners: Listeners, files: WatchedFiles, app: App) -> Result<()> {
    let stopped = stop_signal(app.lifecycle.stop.clone())?;
    let hangup = signal(SignalKind::hangup()).context("cannot catch SIGHUP")?;
    let app = Arc::new(app);
    memory::release_code_of_start();
    // Before the socket exists: spooled DELs free addresses and ports that the first ADD may need.
    app.replay().await;
    app.datapath_log.follow();
    background::start(Arc::clone(&app)).context("cannot monitor links, addresses and routes")?;
    if files.expects_pod_cidr || files.pod_cidr_file.is_some() {
        app.handle.want_default_network(clock::now()).await;
    }
    if let Some(file) = files.pod_cidr_file {
        pod_cidr_file::watch(file, app.handle.clone())?;
    }
    if let Some(file) = files.peers_file {
        peers_file::watch(file, app.handle.clone())?;
    }
    if let Some(file) = files.policies_file {
        policies_file::watch(file, app.handle.clone())?;
    }
    let happened =
        |action| NewEvent::new(action, "agent", EventOutcome::Done, crate::version::VERSION);
    app.events.emit(happened("start"));
    tokio::spawn(reports::follow(app.handle.clone(), Arc::clone(&app.events)));
    tokio::spawn(stuck_engine::poll(
        app.handle.clone(),
        Arc::clone(&app.events),
    ));
    file_watch::watch(files.installation, app.handle.clone());
    tokio::spawn(refused_flows::poll(Arc::clone(&app)));
    let docker = docker::open(listeners.docker, &app).await?;
    let socket = listeners.main.listen()?;
    let queries = match listeners.read_only {
        Some(read_only) => Some(read_only.listen()?),
        None => None,
    };
    let metrics = match listeners.metrics {
        Some(address) => Some(metrics_listener::listen(address).await?),
        None => None,
    };
    tracing::info!(socket = %socket.path().display(), "agent started: serving the API");
    service_manager::notify(Notification::Ready);
    service_manager::start_watchdog(app.handle.clone());
    tokio::spawn(follow_reloads(hangup, Arc::clone(&app)));
    tokio::join!(
        connections::serve(
            socket,
            routes::router(Arc::clone(&app), stopped.clone()),
            stopped.clone()
        ),
        serve_queries(queries, Arc::clone(&app), stopped.clone()),
        docker::serve(docker, stopped.clone()),
        serve_metrics(metrics, Arc::clone(&app), stopped),
    );
    app.events.emit(happened("stop"));
    Ok(())
}

/// Serves the read-only socket, if there is one.
async fn serve_queries(socket: Option<Socket>, app: Arc<App>, stopped: watch::Receiver<bool>) {
    let Some(socket) = socket else { return };
    tracing::info!(socket = %socket.path().display(), "serving queries on the read-only socket");
    let router = routes::read_only_router(app, stopped.clone());
    let most = connections::MAX_READ_ONLY_CONNECTIONS;
    connections::serve_at_most(most, socket, router, stopped).await;
}

/// Serves metrics over TCP, if an address is configured.
async fn serve_metrics(
    listener: Option<TcpListener>,
    app: Arc<App>,
    stopped: watch::Receiver<bool>,
) {
    let Some(listener) = listener else { return };
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "serving metrics, health and readiness over TCP");
    }
    metrics_listener::serve(listener, app, stopped).await;
}

/// Returns a value that becomes `true` at the first SIGTERM or SIGINT, or with `stop`; further
/// signals have no effect (behaviour A6).
fn stop_signal(stop: watch::Sender<bool>) -> Result<watch::Receiver<bool>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot catch SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot catch SIGINT")?;
    let stopped = stop.subscribe();
    let mut uninstalled = stopped.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            // An uninstall over the API.
            _ = uninstalled.wait_for(|stopped| *stopped) => {}
        }
        tracing::info!("agent stopping: running requests are finished");
        service_manager::notify(Notification::Stopping);
        stop.send_replace(true);
    });
    Ok(stopped)
}

/// Reloads the configuration at each SIGHUP. Several signals at once are one reload.
async fn follow_reloads(mut hangup: Signal, app: Arc<App>) {
    while hangup.recv().await.is_some() {
        // Logged there, and shown as an event.
        let _result = app.reload().await;
    }
}
