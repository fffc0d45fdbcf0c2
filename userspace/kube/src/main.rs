//! `viaduct-kube`: gives the agent of a node what Kubernetes knows about the cluster.
//!
//! Watches Nodes, and sends the agent this node's pod CIDRs and all other nodes as peers; and
//! the network policies of this node's pods. The agent
//! opens no network connection, and keeps the last state while this program or the API server is
//! away. No leader is elected: each instance reads the same list and changes its own node only.

#![forbid(unsafe_code)]

mod agent;
mod bandwidth;
mod cluster;
mod conflist;
mod connection;
mod listener;
mod log;
mod metrics;
mod network_policies;
mod node_condition;
mod node_store;
mod objects;
mod options;
#[cfg(feature = "pages")]
mod pages;
mod plugin_file;
mod stale_nodes;
mod sync;
mod version;
mod watching;

use std::cell::RefCell;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser as _;
use model::PeerName;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::agent::Agent;
use crate::bandwidth::PodStore;
use crate::conflist::Conflist;
use crate::connection::Credentials;
use crate::metrics::Metrics;
use crate::node_store::NodeStore;
use crate::options::{Options, RunOptions, Verb};
use crate::sync::Sync;
use crate::watching::{ApiServer, Source};

fn main() -> ExitCode {
    #[cfg(feature = "pages")]
    if let Some(folder) = pages::folder() {
        return pages::write(&folder);
    }
    let options = Options::parse();
    let result = match &options.verb {
        Some(Verb::InstallPlugin(wanted)) => plugin_file::install(wanted),
        None => run(options.run),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

#[expect(clippy::print_stderr, reason = "the log may not have started")]
fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("viaduct-kube: {error:#}");
    ExitCode::FAILURE
}

fn run(options: RunOptions) -> Result<()> {
    log::start(&options.log_level)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let result = runtime.block_on(serve(options));
    // A request to the agent may still run.
    runtime.shutdown_background();
    result
}

/// What the tasks of the program share. They run on one thread, and borrow it between two awaits
/// only.
struct Program {
    options: RunOptions,
    own: PeerName,
    credentials: Credentials,
    conflist: Option<Conflist>,
    metrics: Metrics,
    agent: Agent,
    nodes: RefCell<NodeStore>,
    pods: RefCell<PodStore>,
}

async fn serve(options: RunOptions) -> Result<()> {
    let metrics = Metrics::new(options.conflist.is_some());
    let listener = match options.metrics_listen {
        Some(address) => Some(listener::listen(address).await?),
        None => None,
    };
    let program = Program::new(options, metrics).await?;
    let mut terminated = signal(SignalKind::terminate()).context("cannot handle signals")?;
    let mut interrupted = signal(SignalKind::interrupt()).context("cannot handle signals")?;
    tracing::info!(version = version::LINE.as_str(), node = %program.own, "viaduct-kube started");
    tokio::select! {
        () = program.tasks(listener) => {}
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
    program.end();
    Ok(())
}

impl Program {
    /// Checks everything that cannot become right later.
    async fn new(options: RunOptions, metrics: Metrics) -> Result<Self> {
        let own = options
            .node_name
            .clone()
            .context("the name of this Node is missing: use --node-name or NODE_NAME")?;
        let credentials = Credentials {
            kubeconfig: options.kubeconfig.clone(),
            context: options.context.clone(),
        };
        // Each watch has a client of its own, which reads the credentials again.
        credentials.client().await?;
        let template = options.conflist_template.as_deref();
        let conflist = options
            .conflist
            .clone()
            .map(|path| Conflist::new(path, template, &options.socket))
            .transpose()?;
        let agent = Agent::follow(api::Client::new(&options.socket))?;
        Ok(Self {
            options,
            own,
            credentials,
            conflist,
            metrics,
            agent,
            nodes: RefCell::default(),
            pods: RefCell::default(),
        })
    }

    fn source(&self, what: &'static str, fields: Option<String>) -> Source {
        Source {
            credentials: self.credentials.clone(),
            what,
            fields,
            metrics: self.metrics.clone(),
            answers: None,
        }
    }

    /// Runs all tasks, without an end.
    async fn tasks(&self, listener: Option<TcpListener>) {
        if let Some(listener) = listener {
            tokio::spawn(listener::serve(listener, self.metrics.clone()));
        }
        let (sender, node_changes) = watch::channel(0);
        let (synced_sender, synced) = watch::channel(None);
        let (answers, api_server) = watch::channel(ApiServer::Unknown);
        let source = Source {
            answers: Some(answers),
            ..self.source("nodes", None)
        };
        let nodes = watching::follow(source, |event| {
            if self.nodes.borrow_mut().apply(event) {
                sender.send_modify(|count| *count += 1);
            }
        });
        let sync = Sync {
            own: self.own.clone(),
            nodes: &self.nodes,
            agent: self.agent.clone(),
            metrics: self.metrics.clone(),
            synced: synced_sender,
        };
        tokio::join!(
            nodes,
            sync.run(node_changes.clone()),
            self.keep_conflist(synced.clone()),
            self.clear_condition(node_changes, synced),
            stale_nodes::report(self.agent.clone(), api_server),
            self.follow_pods(),
            self.follow_network_policies(),
        );
    }

    async fn keep_conflist(&self, synced: watch::Receiver<Option<u64>>) {
        if let Some(conflist) = &self.conflist {
            let mut agent = self.agent.clone();
            let times = (self.options.conflist_grace, conflist::RECHECK);
            conflist::keep(conflist, times, &mut agent, synced, &self.metrics).await;
        }
    }

    async fn clear_condition(
        &self,
        changed: watch::Receiver<u64>,
        synced: watch::Receiver<Option<u64>>,
    ) {
        if self.options.switches.node_condition {
            let (credentials, own, agent) = (&self.credentials, &self.own, &self.agent);
            node_condition::clear(credentials, own, agent, &self.nodes, changed, synced).await;
        }
    }

    async fn follow_pods(&self) {
        if !self.options.switches.pod_bandwidth {
            return;
        }
        let (sender, changes) = watch::channel(0);
        let of_this_node = Some(format!("spec.nodeName={}", self.own));
        let pods = watching::follow(self.source("pods", of_this_node), |event| {
            if self.pods.borrow_mut().apply(event) {
                sender.send_modify(|count| *count += 1);
            }
        });
        let mut agent = self.agent.clone();
        let apply = bandwidth::apply(&self.pods, &mut agent, changes, &self.metrics);
        tokio::join!(pods, apply);
    }

    async fn follow_network_policies(&self) {
        if self.options.switches.network_policies {
            let source = |what, fields| self.source(what, fields);
            let (agent, metrics) = (self.agent.clone(), &self.metrics);
            network_policies::follow(self.own.as_str(), source, agent, metrics).await;
        }
    }

    /// The agent keeps what it has. The next instance of this program sends what has changed.
    fn end(&self) {
        if !self.options.remove_conflist_on_exit {
            return;
        }
        match self.conflist.as_ref().map(Conflist::remove) {
            Some(Ok(true)) => tracing::info!("configuration list removed: this program ends"),
            Some(Err(error)) => tracing::error!(%error, "configuration list not removed"),
            Some(Ok(false)) | None => {}
        }
    }
}
