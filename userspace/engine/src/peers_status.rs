//! The stored list of peers, and their state as data.

use std::sync::Arc;

use model::Peers;
use planner::{NodeIntent, PeerProblem, PeerProblemKind, PeerStatus};
use steps::Observed;
use store::Store;

use crate::degraded::Degraded;

/// Name of the list in the store.
pub(crate) const PEERS: &str = "peers";

/// Problems of one kind that a degradation names.
const NAMED: usize = 10;

/// Why the list of peers may be out of date: what the program that sends it has reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StalePeers {
    /// The program.
    pub program: String,
    /// Since when it has no source, in RFC 3339.
    pub since: String,
    /// Its last error.
    pub error: String,
}

/// Peers and their state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeersStatus {
    /// The list; `None` until the first one.
    pub peers: Option<Arc<Peers>>,
    /// State of each peer, in the order of the list.
    pub states: Vec<PeerStatus>,
    /// What cannot be applied.
    pub problems: Vec<PeerProblem>,
}

impl PeersStatus {
    /// Returns the state for the last observation.
    pub(crate) fn of(intent: &NodeIntent, observed: &Observed) -> Self {
        let planned = planner::plan_peers(intent, observed);
        Self {
            peers: intent.peers.peers.clone(),
            states: planned.peers,
            problems: planned.problems,
        }
    }

    /// Returns one degradation for each kind of problem.
    pub(crate) fn degraded(&self) -> impl Iterator<Item = Degraded> {
        let kinds = [
            PeerProblemKind::Conflict,
            PeerProblemKind::NotOnLink,
            PeerProblemKind::NoRoute,
            PeerProblemKind::Tunnel,
            PeerProblemKind::RouteTaken,
            PeerProblemKind::TooManyRoutes,
        ];
        kinds.into_iter().filter_map(|kind| {
            let all = || {
                self.problems
                    .iter()
                    .filter(|problem| problem.kind() == kind)
            };
            let problems: Vec<PeerProblem> = all().take(NAMED).cloned().collect();
            let more = all().count() - problems.len();
            (!problems.is_empty()).then_some(Degraded::Peers {
                kind,
                problems,
                more,
            })
        })
    }
}

/// Returns the stored list.
pub(crate) fn load(store: &Store) -> Option<Arc<Peers>> {
    let stored = store.choice(PEERS)?;
    stored.parse().ok().map(Arc::new)
}
