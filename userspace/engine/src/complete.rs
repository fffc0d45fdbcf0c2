//! Two-phase ADDs for networks with a foreign IPAM plugin: the first phase makes the link, the
//! second one assigns the addresses that the plugin allocated.
//!
//! Between the phases the record is in state [`State::Linked`], so a restarted agent can go on. A
//! runtime that gives up sends a DEL; a repeated ADD makes a new link. The agent allocates no
//! address itself, but it refuses an address that another pod of the node has.

use ipam::Leases;
use kernel::Kernel;
use model::{Attachment, Intent, Network, Record, State};
use planner::AttachContext;

use crate::error::chain;
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
        let network_before = self.store.networks().get(&key.network).cloned();
        let mut transaction = Transaction::of(&key.container_id);
        let completed = self.attach_addresses(intent, linked, &mut transaction);
        if let Ok(attachment) = &completed {
            self.leave_ports(attachment, intent.requested.port_binder);
        }
        if completed.is_err() {
            self.remove_link(intent, network_before, transaction);
        }
        completed
    }

    fn attach_addresses(
        &mut self,
        intent: &Intent,
        mut record: Record,
        transaction: &mut Transaction,
    ) -> Result<Attachment, EngineError> {
        let mtu = self.prepare_network(&intent.network, transaction)?;
        let leases = Leases {
            taken: self.store.leases(),
            ..Leases::default()
        };
        let context = AttachContext {
            leases: &leases,
            records: self.store.records(),
            slot: record.attachment.slot,
            generation: record.attachment.generation,
            mtu,
            last_macs: &self.last_macs,
        };
        record.attachment = planner::with_addresses(&record.attachment, intent, &context)?;
        self.refuse_own_addresses(&record.attachment)?;
        let attachment = &record.attachment;
        let observed = self.observe(attachment)?;
        let detects_duplicates = intent.network.options.detects_duplicates;
        let plan =
            planner::plan_complete(attachment, detects_duplicates, &observed, &self.last_macs);
        self.put_reserving(&record)?;
        self.attach_socket_hooks(&record.attachment);
        self.prepare_netfilter(&record.attachment);
        transaction.apply(&mut self.kernel, &plan)?;
        self.verify(&record.attachment)?;
        record.state = State::Attached;
        self.store.put(&record)?;
        self.last_macs.record(&record.attachment);
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

    fn remove_link(
        &mut self,
        intent: &Intent,
        network_before: Option<Network>,
        transaction: Transaction,
    ) {
        let key = &intent.key;
        for failure in transaction.roll_back(&mut self.kernel) {
            tracing::warn!(%key, failure, "cannot undo a step of a failed ADD");
        }
        self.node.ready.remove(&key.network);
        let network = network_before.map_or(Ok(()), |network| self.store.put_network(&network));
        let gone = network
            .map_err(EngineError::from)
            .and_then(|()| self.del(key));
        if let Err(error) = gone {
            tracing::warn!(
                %key,
                error = chain(&error),
                "cannot remove the link of a failed ADD; the DEL removes it"
            );
        }
    }
}
