//! Peers: replaces the list of other nodes, and changes the routes to their pods.
//!
//! The list is stored before it is applied: an agent that dies in between applies it at its next
//! start. What cannot be applied of it is reported, and stops nothing else.

use std::sync::Arc;

use kernel::Kernel;
use model::Peers;
use steps::Observed;

use crate::commands::Command;
use crate::node::{NodeState, ReconciledNode};
use crate::peers_status::PEERS;
use crate::report::{Item, steps};
use crate::transaction::execute_all;
use crate::{Engine, EngineError, Handle, StalePeers, UpdateOutcome};

/// Subject of report items about routes to peers.
const SUBJECT: &str = "peers";

/// Rounds of planning: a tunnel needs two, or three where one with other settings is in its place.
const MAX_ROUNDS: usize = 4;

impl<K: Kernel> Engine<K> {
    /// Replaces the list of peers. Routes that the kernel refuses are in the status, and the next
    /// reconciliation tries them again. `now` is in seconds since 1970.
    pub fn set_peers(&mut self, peers: Peers, now: u64) -> Result<UpdateOutcome, EngineError> {
        let _peers = crash::verb("peers");
        if self.choices.peers.as_deref() == Some(&peers) {
            return Ok(UpdateOutcome::Unchanged);
        }
        self.store.put_choice(PEERS, &peers.to_string())?;
        let count = peers.list().len();
        self.choices.peers = Some(Arc::new(peers));
        let mut items = Vec::new();
        self.connect_peers(now, &mut items)?;
        if items.iter().any(Item::has_failed) {
            self.reconcile(now);
        }
        kernel::release_free_memory();
        let problems = self.node.peers.problems.len();
        tracing::info!(peers = count, problems, "peers changed");
        Ok(UpdateOutcome::Updated)
    }

    /// Reports why the list of peers cannot be read; `None` if it can.
    pub(crate) fn set_peers_unreadable(&mut self, why: Option<String>) {
        self.upkeep.peers_unreadable = why;
    }

    /// Reconciles the node and the routes to peers, without the attachments.
    fn connect_peers(&mut self, now: u64, items: &mut Vec<Item>) -> Result<(), EngineError> {
        let reconciled = self.reconcile_node(now, items)?;
        let reconciled = self.connect(now, reconciled, items)?;
        self.node = NodeState::of(&self.node_intent(), reconciled);
        Ok(())
    }

    /// Changes routes and tunnels until there is nothing left to do, or only what has failed. A new
    /// tunnel gets its programs with the node, and is used afterwards. Tables of removed tunnels
    /// are removed after them.
    pub(crate) fn connect(
        &mut self,
        now: u64,
        mut reconciled: ReconciledNode,
        items: &mut Vec<Item>,
    ) -> Result<ReconciledNode, EngineError> {
        for _ in 0..MAX_ROUNDS {
            let before = items.len();
            if !self.change_routes(&reconciled.observed, items) {
                break;
            }
            reconciled = self.reconcile_node(now, items)?;
            if items[before..].iter().any(Item::has_failed) {
                break;
            }
        }
        Ok(reconciled)
    }

    /// Changes the routes and tunnels to peers. Returns whether the node is to be observed again.
    /// The prefix table has the new prefixes before the routes, and the old ones until the routes
    /// are gone.
    fn change_routes(&mut self, observed: &Observed, items: &mut Vec<Item>) -> bool {
        let plan = planner::plan_peers(&self.node_intent(), observed).plan;
        let results = execute_all(&mut self.kernel, &plan);
        items.extend(steps(SUBJECT, results));
        !plan.is_empty()
    }
}

impl Handle {
    /// Replaces the list of peers; `now` is in seconds since 1970.
    pub async fn set_peers(&self, peers: Peers, now: u64) -> Result<UpdateOutcome, EngineError> {
        self.execute(|reply| Command::SetPeers(peers, now, reply))
            .await
    }

    /// Reports why the list of peers may be out of date; `None` if it is current.
    pub async fn set_peers_stale(&self, stale: Option<StalePeers>) -> Result<(), EngineError> {
        self.execute(|reply| Command::SetPeersStale(stale, reply))
            .await
    }

    /// Reports why the list of peers cannot be read; `None` if it can.
    pub async fn set_peers_unreadable(&self, why: Option<String>) -> Result<(), EngineError> {
        self.execute(|reply| Command::SetPeersUnreadable(why, reply))
            .await
    }
}
