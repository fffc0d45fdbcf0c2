//! ADDs in two halves, for networks whose addresses another plugin gives: first the link, then what it gave.
//!
//! In between the record says that the link waits. An agent that is restarted then still knows it; a runtime that gives up
//! sends a DEL, and one that comes again gets a new link. No pool of ours is touched, but an address that another pod of
//! the node has is refused, whoever gave it.

use kernel::Kernel;
use model::{Attachment, Intent, Network, Record, State};
use planner::{AttachContext, Leases};

use crate::error::chain;
use crate::transaction::Done;
use crate::{Engine, EngineError};

impl<K: Kernel> Engine<K> {
    /// The network as the first half needs it: with the ranges that it has by its other pods, so that their gateways stay
    /// while this one has none.
    pub(crate) fn while_waiting(&self, intent: &Intent) -> Intent {
        let known = self.store.networks().get(&intent.network.name);
        let mut intent = intent.clone();
        if let Some(known) = known {
            intent.network.ranges.clone_from(&known.ranges);
            intent.network.routes.clone_from(&known.routes);
        }
        intent
    }

    /// The second half. A failure leaves nothing behind, the link neither.
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
        let mut done = Done::default();
        let completed = self.give_addresses(intent, linked, &mut done);
        if completed.is_err() {
            self.take_link_back(intent, network_before, done);
        }
        completed
    }

    fn give_addresses(
        &mut self,
        intent: &Intent,
        mut record: Record,
        done: &mut Done,
    ) -> Result<Attachment, EngineError> {
        let mtu = self.prepare_network(&intent.network, done)?;
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
        };
        record.attachment = planner::with_addresses(&record.attachment, intent, &context)?;
        let attachment = &record.attachment;
        let observed = self.observe(attachment)?;
        let detects_duplicates = intent.network.options.detects_duplicates;
        let plan = planner::plan_complete(attachment, detects_duplicates, &observed);
        self.put_reserving(&record)?;
        self.ask_sockets(&record.attachment);
        done.apply(&mut self.kernel, &plan)?;
        self.verify(&record.attachment)?;
        record.state = State::Attached;
        self.store.put(&record)?;
        let addresses: Vec<String> = record
            .attachment
            .addresses
            .iter()
            .map(|assigned| assigned.address.to_string())
            .collect();
        tracing::info!(key = %intent.key, ?addresses, "has the addresses that another plugin gave");
        Ok(record.attachment)
    }

    fn take_link_back(&mut self, intent: &Intent, network_before: Option<Network>, done: Done) {
        let key = &intent.key;
        for failure in done.roll_back(&mut self.kernel) {
            tracing::warn!(%key, "cannot undo: {failure}");
        }
        self.node.ready.remove(&key.network);
        let network = network_before.map_or(Ok(()), |network| self.store.put_network(&network));
        let gone = network
            .map_err(EngineError::from)
            .and_then(|()| self.del(key));
        if let Err(error) = gone {
            tracing::warn!(%key, error = chain(&error), "the link waits for its DEL");
        }
    }
}
