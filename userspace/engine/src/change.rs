//! The transaction of every change: record, apply, verify; after a failure undo and restore.
//!
//! [`Engine::transact`] is the only place that undoes a change. What a failed change returns to is
//! a value of [`Before`].

use kernel::Kernel;
use model::{Attachment, AttachmentKey, Network, Record, State};
use planner::Plan;

use crate::before::{Before, Verify};
use crate::error::chain;
use crate::phases::Phase;
use crate::transaction::Transaction;
use crate::{Engine, EngineError};

impl<K: Kernel> Engine<K> {
    /// Makes a change. If it fails, undoes what was done, in reverse order, and restores what was
    /// recorded before.
    pub(crate) fn transact<T>(
        &mut self,
        before: Before,
        change: impl FnOnce(&mut Self, &mut Transaction) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let mut transaction = Transaction::of(before.container());
        let error = match change(self, &mut transaction) {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let left = transaction.roll_back(&mut self.kernel, &mut self.phases);
        for failure in &left {
            tracing::warn!(
                subject = %before,
                failure,
                "cannot undo a step of a failed change; the next reconciliation repairs it"
            );
        }
        let subject = before.to_string();
        if let Err(error) = self.restore(before, left.is_empty()) {
            tracing::error!(
                subject,
                error = chain(&error),
                "cannot restore the state before a failed change; the next reconciliation tries again"
            );
        }
        self.phases.end(Phase::Undo);
        Err(error)
    }

    /// Executes the plan of an attachment that is recorded, and compares the result with the
    /// record.
    pub(crate) fn apply_recorded(
        &mut self,
        attachment: &Attachment,
        plan: &Plan,
        verify: Verify,
        transaction: &mut Transaction,
    ) -> Result<(), EngineError> {
        self.attach_socket_hooks(attachment);
        self.prepare_netfilter(attachment);
        if let Err(error) = transaction.apply(&mut self.kernel, &mut self.phases, plan) {
            self.phases.fail(Phase::Apply, || chain(&error));
            return Err(error);
        }
        match verify {
            Verify::Later => Ok(()),
            Verify::BothSides => self.verify(attachment),
            Verify::HostSide => self.verify_host(attachment),
        }
    }

    /// Changes an attachment into `new`, which has the same link, slot and addresses. On a failure
    /// the old one is restored.
    pub(crate) fn change(
        &mut self,
        before: &Record,
        new: Attachment,
    ) -> Result<Attachment, EngineError> {
        let old = &before.attachment;
        if new == *old {
            return Ok(new);
        }
        let both = planner::with_both_ports(old, &new);
        let observed = self.observe_outside(&both)?;
        let plan = planner::plan_publish(old, &new, &observed);
        self.transact(
            Before::Attached(Box::new(before.clone())),
            |engine, transaction| {
                engine.store.put(&Record {
                    attachment: new.clone(),
                    ..before.clone()
                })?;
                engine.apply_recorded(&new, &plan, Verify::HostSide, transaction)?;
                Ok(new)
            },
        )
    }

    pub(crate) fn verify(&mut self, attachment: &Attachment) -> Result<(), EngineError> {
        let observed = self.observe(attachment)?;
        refuse_differences(attachment, planner::check(attachment, &observed))
    }

    /// Compares the host's side of an attachment with what it is to be. The pod's side of an
    /// adopted interface is the other plugin's.
    pub(crate) fn verify_host(&mut self, attachment: &Attachment) -> Result<(), EngineError> {
        let observed = self.observe_outside(attachment)?;
        refuse_differences(attachment, planner::check_host(attachment, &observed))
    }

    fn restore(&mut self, before: Before, all_undone: bool) -> Result<(), EngineError> {
        match before {
            Before::Absent { key, network } => {
                let cleared = self.clear_record(&key, network.as_ref(), all_undone);
                // Also after a failure: the ports of an attachment that is gone are to be free.
                let released = self.reserve_ports();
                cleared.and(released)
            }
            Before::Linked { key, network } => {
                self.node.ready.remove(&key.network);
                if let Some(network) = network {
                    self.store.put_network(&network)?;
                }
                self.del(&key)
            }
            Before::Attached(record) => Ok(self.store.put(&record)?),
            Before::Network { name, network } => {
                self.node.ready.remove(&name);
                let stored = match network {
                    Some(network) => self.store.put_network(&network),
                    None => self.store.remove_network(&name),
                };
                Ok(stored?)
            }
            Before::DefaultNetwork(network) => {
                self.node.ready.remove(&network.name);
                self.store_pod_cidrs(&network.ranges)?;
                self.choices.settings.default_network = *network;
                Ok(self.release_networks()?)
            }
            Before::NonMasquerade(prefixes) => {
                self.store_non_masquerade(&prefixes)?;
                self.choices.settings.non_masquerade = prefixes;
                Ok(())
            }
            Before::Settings(_) => Ok(()),
        }
    }

    /// Removes the record of an attachment. If a step could not be undone, it stays in state
    /// [`State::Removing`], so that the next ADD, DEL or reconciliation removes the rest.
    fn clear_record(
        &mut self,
        key: &AttachmentKey,
        network_before: Option<&Network>,
        all_undone: bool,
    ) -> Result<(), EngineError> {
        if let Some(record) = self.store.get(key).cloned() {
            if !all_undone {
                let state = State::Removing;
                return Ok(self.store.put(&Record { state, ..record })?);
            }
            self.store.remove(key)?;
        }
        match network_before {
            Some(network) if self.store.networks().get(&network.name) != Some(network) => {
                self.node.ready.remove(&network.name);
                Ok(self.store.put_network(network)?)
            }
            Some(_) => Ok(()),
            None => {
                self.node.ready.remove(&key.network);
                Ok(self.store.remove_network(&key.network)?)
            }
        }
    }
}

/// Fails where there are differences between an attachment and what was observed of it.
fn refuse_differences(
    attachment: &Attachment,
    differences: Vec<planner::Difference>,
) -> Result<(), EngineError> {
    if differences.is_empty() {
        return Ok(());
    }
    Err(EngineError::Different {
        key: attachment.key.clone(),
        differences,
    })
}
