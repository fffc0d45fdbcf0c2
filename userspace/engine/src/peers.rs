//! Peers: replaces the list of other nodes, and changes the routes to their pods.
//!
//! The list is stored before it is applied: an agent that dies in between applies it at its next
//! start. What cannot be applied of it is reported, and stops nothing else.

use std::sync::Arc;

use kernel::Kernel;
use model::Peers;
use steps::Observed;

use crate::commands::Command;
use crate::node::NodeState;
use crate::peers_status::PEERS;
use crate::report::{Item, steps};
use crate::transaction::execute_all;
use crate::{Engine, EngineError, Handle, UpdateOutcome};

/// Subject of report items about routes to peers.
const SUBJECT: &str = "peers";

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
        let mut reconciled = self.reconcile_node(now, items)?;
        if self.change_routes(&reconciled.observed, items) {
            reconciled = self.reconcile_node(now, items)?;
        }
        self.node = NodeState::of(&self.node_intent(), reconciled);
        Ok(())
    }

    /// Changes the routes to peers. Returns whether the node is to be observed again. The prefix
    /// table has the new prefixes before the routes, and the old ones until the routes are gone.
    pub(crate) fn change_routes(&mut self, observed: &Observed, items: &mut Vec<Item>) -> bool {
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

    /// Reports why the list of peers cannot be read; `None` if it can.
    pub async fn set_peers_unreadable(&self, why: Option<String>) -> Result<(), EngineError> {
        self.execute(|reply| Command::SetPeersUnreadable(why, reply))
            .await
    }
}
