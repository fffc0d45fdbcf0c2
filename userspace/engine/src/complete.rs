//! Two-phase ADDs for networks with a foreign IPAM plugin: the first phase makes the link, the
//! second one assigns the addresses that the plugin allocated.
//!
//! Between the phases the record is in state [`State::Linked`], so a restarted agent can go on. A
//! runtime that gives up sends a DEL; a repeated ADD makes a new link. The agent allocates no
//! address itself, but it refuses an address that another pod of the node has.

use ipam::Leases;
use kernel::Kernel;
use model::{Attachment, Intent, Record, State};
use planner::AttachContext;

use crate::before::{Before, Verify};
use crate::transaction::Transaction;
use crate::{Engine, EngineError};

impl<K: Kernel> Engine<K> {
    /// Returns the intent with the recorded ranges and routes of its network. The first phase has
    /// none of its own, and without them the bridge would lose the gateway addresses of the other
    /// pods.
    pub(crate) fn with_recorded_ranges(&self, intent: &Intent) -> Intent {
        let recorded = self.store.networks().get(&intent.network.name);
        let mut intent = intent.clone();
        if let Some(recorded) = recorded {
            intent.network.ranges.clone_from(&recorded.ranges);
            intent.network.routes.clone_from(&recorded.routes);
        }
        intent
    }

    /// Executes the second phase: assigns the addresses and attaches the programs. On a failure the
    /// link is removed, too.
    pub fn complete(&mut self, intent: &Intent) -> Result<Attachment, EngineError> {
        let key = &intent.key;
        let Some(linked) = self
            .store
            .get(key)
            .filter(|record| record.state == State::Linked)
            .cloned()
        else {
            return Err(EngineError::NotLinked(key.clone()));
        };
        let before = Before::Linked {
            key: key.clone(),
            network: self.store.networks().get(&key.network).cloned(),
        };
        let attachment = self.transact(before, |engine, transaction| {
            engine.attach_addresses(intent, linked, transaction)
        })?;
        self.leave_ports(&attachment, intent.requested.port_binder);
        Ok(attachment)
    }

    fn attach_addresses(
        &mut self,
        intent: &Intent,
        mut record: Record,
        transaction: &mut Transaction,
    ) -> Result<Attachment, EngineError> {
        transaction.leave_bound_ports(intent.requested.port_binder);
        let mtu = self.prepare_network(&intent.network, transaction)?;
        let leases = Leases {
            taken: self.store.leases(),
            ..Leases::default()
        };
        let policies = self.choices.network_policies();
        let context = AttachContext {
            leases: &leases,
            records: self.store.records(),
            slot: record.attachment.slot,
            generation: record.attachment.generation,
            mtu,
            last_macs: &self.attachments.last_macs,
            policies: &policies,
        };
        record.attachment = planner::with_addresses(&record.attachment, intent, &context)?;
        self.refuse_own_addresses(&record.attachment)?;
        let attachment = &record.attachment;
        let observed = self.observe(attachment)?;
        let detects_duplicates = intent.network.options.detects_duplicates;
        let mut plan = planner::plan_policies_of(attachment, &policies, self.store.records());
        plan.append(planner::plan_complete(
            attachment,
            detects_duplicates,
            &observed,
            &self.attachments.last_macs,
        ));
        self.put_reserving(&record)?;
        self.apply_recorded(&record.attachment, &plan, Verify::BothSides, transaction)?;
        record.state = State::Attached;
        self.store.put(&record)?;
        self.attachments.last_macs.record(&record.attachment);
        let addresses: Vec<String> = record
            .attachment
            .addresses
            .iter()
            .map(|assigned| assigned.address.to_string())
            .collect();
        tracing::info!(
            key = %intent.key,
            ?addresses,
            "assigned the addresses of the foreign IPAM plugin"
        );
        Ok(record.attachment)
    }
}
