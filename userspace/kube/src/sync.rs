//! Keeps the agent's pod CIDRs and peers as the Nodes say: sends what has changed, and everything
//! again to an agent that has started.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use api::ClientError;
use model::{Cidr, PeerName, Peers};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::agent::Agent;
use crate::cluster::{self, Desired, Problem, Withheld};
use crate::metrics::{Metrics, Sent};
use crate::node_store::NodeStore;

/// Time for further changes, so that the Nodes of one event are sent together.
const SETTLE: Duration = Duration::from_millis(200);
/// The agent works on lists for at most this part of the time: a fifth.
const REST: u32 = 4;
const LONGEST_REST: Duration = Duration::from_secs(10);
/// Delays after a refusal double up to the longest.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(30);
/// Problems that are logged of one change.
const LOGGED: usize = 20;

/// What keeps the agent in line with the Nodes.
pub(crate) struct Sync<'a> {
    pub(crate) own: PeerName,
    pub(crate) nodes: &'a RefCell<NodeStore>,
    pub(crate) agent: Agent,
    pub(crate) metrics: Metrics,
    /// The agent's generation to which pod CIDRs and peers were sent.
    pub(crate) synced: watch::Sender<Option<u64>>,
}

/// What one agent was sent.
#[derive(Debug, Default)]
struct Known {
    generation: u64,
    own: Option<Box<[Cidr]>>,
    peers: Option<Peers>,
}

/// What was logged, so that it is logged once.
#[derive(Debug, Default)]
struct Logged {
    withheld: Option<Withheld>,
    problems: BTreeSet<Problem>,
    refusal: Option<String>,
}

impl Sync<'_> {
    /// Runs until the sender of changes is gone, which is never.
    pub(crate) async fn run(mut self, mut changes: watch::Receiver<u64>) {
        let mut known = Known::default();
        let mut logged = Logged::default();
        let mut retry = FIRST_RETRY;
        loop {
            changes.borrow_and_update();
            let state = *self.agent.state.borrow_and_update();
            let desired = self.desired(&mut logged);
            self.metrics.agent_reachable(state.is_serving);
            let mut pause = None;
            if let Some(desired) = desired.filter(|_| state.is_serving) {
                if known.generation != state.generation {
                    known = Known {
                        generation: state.generation,
                        ..Known::default()
                    };
                }
                let started = Instant::now();
                match self.send(&mut known, &desired).await {
                    Ok(is_changed) => {
                        logged.refusal = None;
                        retry = FIRST_RETRY;
                        self.report(&known);
                        if is_changed {
                            sleep((started.elapsed() * REST).min(LONGEST_REST)).await;
                        }
                    }
                    Err(error) => {
                        log_refusal(&mut logged, &error);
                        pause = Some(retry);
                        retry = (retry * 2).min(LAST_RETRY);
                    }
                }
            }
            tokio::select! {
                ended = changes.changed() => {
                    if ended.is_err() {
                        return;
                    }
                    sleep(SETTLE).await;
                }
                _ = self.agent.state.changed() => {}
                () = sleep(pause.unwrap_or_default()), if pause.is_some() => {}
            }
        }
    }

    /// Returns what the agent should have; `None` while that is not known.
    fn desired(&self, logged: &mut Logged) -> Option<Desired> {
        let store = self.nodes.borrow();
        let nodes = store.nodes()?;
        self.metrics.nodes(nodes.len());
        match cluster::plan(nodes, self.own.as_str()) {
            Ok(desired) => {
                logged.withheld = None;
                self.metrics.peers(desired.peers.list().len());
                self.metrics.problems(&desired.problems);
                log_problems(logged, &desired.problems);
                Some(desired)
            }
            Err(withheld) => {
                if logged.withheld.as_ref() != Some(&withheld) {
                    tracing::warn!(node = %self.own, "{withheld}");
                }
                logged.withheld = Some(withheld);
                None
            }
        }
    }

    /// Sends what the agent does not have yet, and returns whether that was anything. Pod CIDRs go
    /// first, since a peer whose prefix overlaps them is refused. Kubernetes never takes the pod
    /// CIDRs of a Node away: an empty list is one that is still to come.
    async fn send(&self, known: &mut Known, desired: &Desired) -> Result<bool, ClientError> {
        let mut is_changed = false;
        if !desired.own.is_empty() && known.own.as_ref() != Some(&desired.own) {
            let sent = self.agent.put_pod_cidrs(&desired.own).await;
            self.metrics.sent(Sent::PodCidrs, sent.is_ok());
            sent?;
            tracing::info!(pod_cidrs = %texts(&desired.own), "pod CIDRs sent");
            known.own = Some(desired.own.clone());
            is_changed = true;
        }
        if known.peers.as_ref() != Some(&desired.peers) {
            let sent = self.agent.put_peers(&desired.peers).await;
            self.metrics.sent(Sent::Peers, sent.is_ok());
            sent?;
            tracing::info!(peers = desired.peers.list().len(), "peers sent");
            known.peers = Some(desired.peers.clone());
            is_changed = true;
        }
        Ok(is_changed)
    }

    fn report(&self, known: &Known) {
        let is_complete = known.own.is_some() && known.peers.is_some();
        let synced = is_complete.then_some(known.generation);
        self.metrics.synced(is_complete);
        self.synced.send_if_modified(|before| {
            let is_new = *before != synced;
            *before = synced;
            is_new
        });
    }
}

/// Logs an error once until a request succeeds or fails in another way. An agent that has ended in
/// the meantime is logged elsewhere.
fn log_refusal(logged: &mut Logged, error: &ClientError) {
    let text = match error {
        ClientError::Refused(body) => format!("{body} {}", body.details),
        ClientError::Unreachable { .. }
        | ClientError::Timeout { .. }
        | ClientError::Broken { .. }
        | ClientError::Response { .. }
        | ClientError::Body(_) => error.to_string(),
    };
    if logged.refusal.as_ref() != Some(&text) {
        tracing::warn!(error = %text, "the agent has not applied the Nodes");
    }
    logged.refusal = Some(text);
}

/// Logs problems that are new, and those that have gone.
fn log_problems(logged: &mut Logged, problems: &[Problem]) {
    let now: BTreeSet<Problem> = problems.iter().cloned().collect();
    let new: Vec<&Problem> = now.difference(&logged.problems).collect();
    for problem in new.iter().take(LOGGED) {
        tracing::warn!("{problem}");
    }
    if new.len() > LOGGED {
        tracing::warn!(count = new.len() - LOGGED, "more Nodes have problems");
    }
    for problem in logged.problems.difference(&now).take(LOGGED) {
        tracing::info!("no longer: {problem}");
    }
    logged.problems = now;
}

fn texts(cidrs: &[Cidr]) -> String {
    let texts: Vec<String> = cidrs.iter().map(ToString::to_string).collect();
    texts.join(",")
}
