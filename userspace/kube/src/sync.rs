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

/// Result of sending what the agent does not have yet.
#[derive(Debug, Default)]
struct Outcome {
    is_changed: bool,
    /// The first error.
    error: Option<ClientError>,
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
                let outcome = self.send(&mut known, &desired).await;
                self.report(&known, &outcome);
                if let Some(error) = &outcome.error {
                    log_refusal(&mut logged, error);
                    pause = Some(retry);
                    retry = (retry * 2).min(LAST_RETRY);
                } else {
                    logged.refusal = None;
                    retry = FIRST_RETRY;
                }
                if outcome.is_changed {
                    sleep((started.elapsed() * REST).min(LONGEST_REST)).await;
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

    /// Sends what the agent does not have yet. Pod CIDRs go first, since a peer whose prefix
    /// overlaps them is refused. If the agent refuses the pod CIDRs, for example because pods have
    /// addresses of the old ones, the peers are sent nevertheless. Kubernetes never takes the pod
    /// CIDRs of a Node away: an empty list is one that is still to come.
    async fn send(&self, known: &mut Known, desired: &Desired) -> Outcome {
        let mut outcome = Outcome::default();
        if !desired.own.is_empty() && known.own.as_ref() != Some(&desired.own) {
            let sent = self.agent.put_pod_cidrs(&desired.own).await;
            if self.count(Sent::PodCidrs, sent, &mut outcome) {
                tracing::info!(pod_cidrs = %texts(&desired.own), "pod CIDRs sent");
                known.own = Some(desired.own.clone());
            }
        }
        if known.peers.as_ref() != Some(&desired.peers) {
            let sent = self.agent.put_peers(&desired.peers).await;
            if self.count(Sent::Peers, sent, &mut outcome) {
                tracing::info!(peers = desired.peers.list().len(), "peers sent");
                known.peers = Some(desired.peers.clone());
            }
        }
        outcome
    }

    /// Adds the result of a request to the outcome, and returns whether it was a success.
    fn count(&self, what: Sent, sent: Result<(), ClientError>, outcome: &mut Outcome) -> bool {
        self.metrics.sent(what, sent.is_ok());
        match sent {
            Ok(()) => {
                outcome.is_changed = true;
                true
            }
            Err(error) => {
                outcome.error.get_or_insert(error);
                false
            }
        }
    }

    /// Updates metric and readiness, and notifies the tasks that wait for an agent that can attach
    /// pods: one that has older pod CIDRs and peers can.
    fn report(&self, known: &Known, outcome: &Outcome) {
        let is_complete = known.own.is_some() && known.peers.is_some();
        let synced = is_complete.then_some(known.generation);
        self.metrics.synced(is_complete && outcome.error.is_none());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::fake::{Answer, FakeAgent, block_on};
    use crate::cluster::{NodeFacts, NodeTexts, Nodes};

    fn node(created: i64, cidr: &str, address: &str) -> NodeFacts {
        NodeFacts::parse(NodeTexts {
            created,
            pod_cidrs: vec![cidr.to_owned()],
            internal_ips: vec![address.to_owned()],
            network_unavailable: None,
        })
    }

    #[test]
    fn refused_pod_cidrs_keep_no_peer_from_the_agent_and_end_readiness() {
        let agent = FakeAgent::start(|request| match request.path.as_str() {
            api::path::POD_CIDRS => Answer::refusal(100, "pods have addresses"),
            _ => Answer::json(200, "[]"),
        });
        let nodes: Nodes = [
            ("a".into(), node(1, "10.1.1.0/24", "192.0.2.1")),
            ("b".into(), node(2, "10.1.2.0/24", "192.0.2.2")),
        ]
        .into();
        let desired = cluster::plan(&nodes, "a").unwrap();
        let store = RefCell::default();
        let (synced, is_synced) = watch::channel(None);
        let sync = Sync {
            own: "a".parse().unwrap(),
            nodes: &store,
            agent: agent.client(),
            metrics: Metrics::new(true),
            synced,
        };
        sync.metrics.agent_reachable(true);
        // The agent has the pod CIDR that the Node had before, and is ready.
        let before = "10.1.9.0/24".parse().unwrap();
        let mut known = Known {
            generation: 1,
            own: Some([before].into()),
            peers: Some(Peers::default()),
        };
        sync.report(&known, &Outcome::default());
        assert!(sync.metrics.unready().is_empty());

        let outcome = block_on(sync.send(&mut known, &desired));
        sync.report(&known, &outcome);
        assert!(matches!(&outcome.error, Some(ClientError::Refused(body)) if body.code == 100));
        assert!(outcome.is_changed);
        assert_eq!(known.peers.as_ref(), Some(&desired.peers));
        assert_eq!(known.own, Some([before].into()), "sent again later");
        assert_eq!(agent.requested(), ["PUT /v1/pod-cidrs", "PUT /v1/peers"]);
        assert_eq!(sync.metrics.unready(), ["nodes-not-sent"]);
        assert_eq!(*is_synced.borrow(), Some(1), "it can still attach pods");
    }
}
