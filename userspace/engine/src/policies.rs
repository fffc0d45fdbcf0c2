//! Network policies: replaces all of them, and reconciles the tables of the datapath.
//!
//! The list is stored before it is applied: an agent that dies in between applies it at its next
//! start. A stored list that cannot be read is reported, and none is in effect until the next one.

use std::sync::Arc;

use kernel::Kernel;
use planner::PolicyIndex;

use crate::commands::Command;
use crate::node::NodeState;
use crate::report::Item;
use crate::stored_policies::POLICIES;
use crate::{Engine, EngineError, Handle, UpdateOutcome};

impl<K: Kernel> Engine<K> {
    /// Replaces all network policies. Entries that the kernel refuses are in the status, and the
    /// next reconciliation tries them again. `now` is in seconds since 1970.
    pub fn set_policies(
        &mut self,
        policies: PolicyIndex,
        now: u64,
    ) -> Result<UpdateOutcome, EngineError> {
        let _policies = crash::verb("policies");
        if self.choices.policies.as_deref() == Some(&policies) {
            return Ok(UpdateOutcome::Unchanged);
        }
        let list = policies.list();
        self.store.put_choice(POLICIES, &list.to_string())?;
        let count = list.policies.len();
        self.choices.policies = Some(Arc::new(policies));
        self.choices.policies_damage = None;
        let mut items = Vec::new();
        let reconciled = self.reconcile_node(now, &mut items)?;
        self.node = NodeState::of(&self.node_intent(), reconciled);
        if items.iter().any(Item::has_failed) {
            self.reconcile(now);
        }
        kernel::release_free_memory();
        tracing::info!(policies = count, "network policies changed");
        Ok(UpdateOutcome::Updated)
    }
}

impl Handle {
    /// Replaces all network policies; `now` is in seconds since 1970.
    pub async fn set_policies(
        &self,
        policies: PolicyIndex,
        now: u64,
    ) -> Result<UpdateOutcome, EngineError> {
        self.execute(|reply| Command::SetPolicies(Box::new(policies), now, reply))
            .await
    }

    /// Reports why the list of network policies cannot be read; `None` if it can.
    pub async fn set_policies_unreadable(&self, why: Option<String>) -> Result<(), EngineError> {
        self.execute(|reply| Command::SetPoliciesUnreadable(why, reply))
            .await
    }
}
