//! The engine's state, and the CNI commands ADD and CHECK.

use std::borrow::Cow;
use std::collections::BTreeSet;

use ipam::{AddressRefusal, Leases};
use kernel::{Kernel, Measured};
use model::{Attachment, AttachmentKey, Cidr, IfName, Intent, NetnsPath, Record, State};
use planner::{AttachContext, Plan, Refusal, attachment_query};
use steps::{
    HostSideQuery, NetnsQuery, ObservedAttachment, ObservedHostSide, PodSide, PortQuery,
    PortReservations,
};
use store::Store;

use crate::attachment_state::AttachmentState;
use crate::before::{Before, Verify};
use crate::choices::Choices;
use crate::node::NodeState;
use crate::phases::{Phase, Stopwatch};
use crate::settings::Settings;
use crate::transaction::Transaction;
use crate::upkeep::NodeUpkeep;
use crate::{EngineError, slot};

/// Addresses of the node that the search for a pod's address skips at most.
const MAX_OWN: usize = 1_000;

/// Ports of the node that attachments publish, and their reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// Records of all attachments; each lists the ports that it publishes.
    pub records: Vec<Record>,
    /// Sockets that reserve the ports.
    pub held: PortReservations,
}

/// Sole writer of the node's container networking, on the kernel `K`.
#[derive(Debug)]
pub struct Engine<K> {
    pub(crate) kernel: K,
    pub(crate) store: Store,
    pub(crate) attachments: AttachmentState,
    pub(crate) choices: Choices,
    pub(crate) node: NodeState,
    pub(crate) upkeep: NodeUpkeep,
    pub(crate) phases: Stopwatch,
}

impl<K: Kernel> Engine<K> {
    /// Returns an engine that has reconciled all records with the kernel (behaviour A5); `now` is
    /// in seconds since 1970.
    ///
    /// Repairs that failed are in its status. Fails if the node cannot be observed, or if the
    /// tables of an older version cannot be migrated.
    pub fn start(
        kernel: K,
        store: Store,
        settings: Settings,
        now: u64,
    ) -> Result<Self, EngineError> {
        let _start = crash::verb("start");
        let mut engine = Self::new(kernel, store, settings);
        engine.discard_previous_boot()?;
        engine.apply_hairpin_mode()?;
        engine.reconcile_at_start(now)?;
        engine.kernel.finish_migration()?;
        Ok(engine)
    }

    pub(crate) fn new(kernel: K, store: Store, settings: Settings) -> Self {
        Self {
            attachments: AttachmentState::of(&store),
            choices: Choices::of(settings, &store),
            node: NodeState::default(),
            upkeep: NodeUpkeep::default(),
            phases: Stopwatch::default(),
            kernel,
            store,
        }
    }

    /// Makes an attachment; `now` is in seconds since 1970.
    ///
    /// A failed ADD is undone, because runtimes try again without a DEL in between (behaviour C10).
    pub fn add(&mut self, intent: &Intent, now: u64) -> Result<Attachment, EngineError> {
        let _add = crash::verb("add");
        let key = &intent.key;
        match self.store.get(key).map(|record| record.state) {
            Some(State::Attached) if !self.is_abandoned(key)? => {
                return Err(Refusal::AlreadyAttached { key: key.clone() }.into());
            }
            Some(State::Attached | State::Pending | State::Linked | State::Removing) => {
                self.del(key)?;
            }
            None => {}
        }
        let before = Before::Absent {
            key: key.clone(),
            network: self.store.networks().get(&key.network).cloned(),
        };
        let intent = self.with_current_network(intent);
        let attachment = self.transact(before, |engine, transaction| {
            engine.attach(&intent, now, transaction)
        })?;
        self.leave_ports(&attachment, intent.requested.port_binder);
        Ok(attachment)
    }

    /// Returns the intent with the current definition of its network. The pod CIDRs of the default
    /// network may have changed while the request waited in the queue. A network of a foreign IPAM
    /// plugin keeps its recorded ranges.
    pub(crate) fn with_current_network<'a>(&self, intent: &'a Intent) -> Cow<'a, Intent> {
        let default = &self.choices.settings.default_network;
        if intent.network.name == default.name {
            let network = default.clone();
            return Cow::Owned(Intent {
                network,
                ..intent.clone()
            });
        }
        if intent.requested.awaits_addresses {
            return Cow::Owned(self.with_recorded_ranges(intent));
        }
        Cow::Borrowed(intent)
    }

    fn attach(
        &mut self,
        intent: &Intent,
        now: u64,
        transaction: &mut Transaction,
    ) -> Result<Attachment, EngineError> {
        transaction.leave_bound_ports(intent.requested.port_binder);
        let (attachment, plan) = self.prepare_and_plan(intent, transaction)?;
        let mut record = Record {
            attachment,
            state: State::Pending,
            boot_id: self.choices.settings.boot_id.clone(),
            created_at: now,
        };
        // Recorded before the first step, so that an agent that dies in between can remove the
        // rest.
        self.put_reserving(&record)?;
        self.phases.end(Phase::Record);
        self.apply_recorded(&record.attachment, &plan, Verify::Later, transaction)?;
        self.phases.end(Phase::Apply);
        if intent.requested.awaits_addresses {
            record.state = State::Linked;
            self.store.put(&record)?;
        } else {
            let last = ipam::last_reserved(&intent.network, &record.attachment.addresses);
            record.state = State::Attached;
            self.store.put_with_last_reserved(&record, &last)?;
            self.attachments.last_macs.record(&record.attachment);
            self.verify_later(&intent.key, now);
        }
        self.phases.end(Phase::Record);
        Ok(record.attachment)
    }

    /// Prepares the network and plans the attachment. If the bridge was deleted since the last
    /// observation, makes it again and plans once more.
    fn prepare_and_plan(
        &mut self,
        intent: &Intent,
        transaction: &mut Transaction,
    ) -> Result<(Attachment, Plan), EngineError> {
        let mtu = self.prepare_network(&intent.network, transaction)?;
        self.phases.end(Phase::Network);
        match self.plan(intent, mtu) {
            Err(EngineError::Refused(Refusal::NoBridge { .. })) => {
                self.node.ready.remove(&intent.network.name);
                let mtu = self.prepare_network(&intent.network, transaction)?;
                self.phases.end(Phase::Network);
                self.plan(intent, mtu)
            }
            planned => planned,
        }
    }

    pub(crate) fn plan(
        &mut self,
        intent: &Intent,
        mtu: u32,
    ) -> Result<(Attachment, Plan), EngineError> {
        let host_link = model::ManagedLink::of(&intent.key);
        let observed = self.kernel.observe(&NetnsQuery {
            path: intent.netns.clone(),
            ifname: intent.key.ifname.clone(),
            links: BTreeSet::from([host_link.name().clone(), intent.network.bridge.clone()]),
            host_end: false,
        })?;
        self.phases.end(Phase::Observe);
        let mut taken = intent.requested.taken.clone();
        taken.extend(self.container_addresses());
        taken.extend(self.store.leases());
        let mut last_reserved = intent.requested.last_reserved.clone();
        last_reserved.extend(self.store.last_reserved(&intent.network.name));
        let mut leases = Leases {
            taken,
            last_reserved,
            node: BTreeSet::new(),
        };
        let (slot, generation) = (self.next_slot()?, self.next_generation());
        let policies = self.choices.network_policies();
        for _ in 0..MAX_OWN {
            let context = AttachContext {
                leases: &leases,
                records: self.store.records(),
                slot,
                generation,
                mtu,
                last_macs: &self.attachments.last_macs,
                policies: &policies,
            };
            let planned = planner::plan_attach(intent, &observed, &context)?;
            // Only the chosen addresses are queried: a node may have thousands.
            let own = self.own_addresses(&planned.0)?;
            if own.is_empty() {
                crate::limit_log::log_clamped(&intent.key, &intent.bandwidth, &planned.0.bandwidth);
                self.attachments.last_slot = slot;
                self.phases.end(Phase::Plan);
                return Ok(planned);
            }
            leases.node.extend(own);
        }
        let address = leases.node.pop_last();
        let refused = address.map_or_else(
            || AddressRefusal::NoRanges {
                network: intent.network.name.clone(),
            },
            |address| AddressRefusal::AddressOfNode { address },
        );
        Err(Refusal::Address(refused).into())
    }

    pub(crate) fn next_generation(&self) -> u32 {
        self.store.generation().wrapping_add(1).max(1)
    }

    pub(crate) fn next_slot(&self) -> Result<u32, Refusal> {
        let taken = self
            .store
            .records()
            .values()
            .map(|record| record.attachment.slot)
            .collect();
        slot::next(&taken, self.attachments.last_slot).ok_or(Refusal::NoSlot {
            capacity: abi::maps::PODS_CAPACITY - 1,
        })
    }

    pub(crate) fn observe(
        &mut self,
        attachment: &Attachment,
    ) -> Result<ObservedAttachment, EngineError> {
        Ok(self.kernel.observe(&attachment_query(attachment))?)
    }

    /// Observes an attachment as [`Engine::observe`] does, but without entering the pod's
    /// namespace.
    pub(crate) fn observe_outside(
        &mut self,
        attachment: &Attachment,
    ) -> Result<ObservedHostSide, EngineError> {
        let query = HostSideQuery(attachment_query(attachment));
        Ok(self.kernel.observe(&query)?)
    }

    /// Compares an attachment with its record and returns the recorded attachment (behaviour S11).
    pub fn check(&mut self, key: &AttachmentKey) -> Result<Attachment, EngineError> {
        self.check_wanted(key, None)
    }

    /// Compares as [`Engine::check`] does. With `wanted`, only the routes to these destinations are
    /// compared: a runtime may have removed the others on purpose (behaviour C15).
    pub fn check_wanted(
        &mut self,
        key: &AttachmentKey,
        wanted: Option<&BTreeSet<Cidr>>,
    ) -> Result<Attachment, EngineError> {
        let _check = crash::verb("check");
        let Some(record) = self
            .store
            .get(key)
            .filter(|record| record.state == State::Attached)
            .cloned()
        else {
            return Err(EngineError::NotAttached(key.clone()));
        };
        let mut expected = record.attachment.clone();
        if let Some(wanted) = wanted {
            let is_wanted = |route: &model::Route| wanted.contains(&route.destination);
            expected.routes.retain(is_wanted);
        }
        self.verify(&expected)?;
        Ok(record.attachment)
    }

    /// Returns the records of all attachments, in any state.
    pub fn attachments(&self) -> Vec<Record> {
        self.store.records().values().cloned().collect()
    }

    /// Returns the state of any interface in a namespace, ours or foreign; `None` if there is none
    /// of this name.
    pub fn inspect_interface(
        &mut self,
        path: NetnsPath,
        ifname: IfName,
    ) -> Result<Option<PodSide>, EngineError> {
        let observed = self.kernel.observe(&NetnsQuery {
            path,
            ifname,
            links: BTreeSet::new(),
            host_end: false,
        })?;
        Ok(observed.inside.and_then(|inside| inside.pod))
    }

    /// Returns the published ports of the node and their reservations.
    pub fn ports(&mut self) -> Result<Ports, EngineError> {
        Ok(Ports {
            held: self.kernel.observe(&PortQuery)?,
            records: self.attachments(),
        })
    }

    /// Reads the counters of the datapath.
    pub fn measure(&mut self) -> Result<Measured, EngineError> {
        Ok(self.kernel.measure()?)
    }

    /// Removes expired flows from the flow table.
    pub fn sweep(&mut self) {
        let _sweep = crash::verb("sweep");
        if let Err(error) = self.kernel.execute(&steps::Step::Sweep) {
            tracing::warn!(
                error = crate::error::chain(&error),
                "cannot sweep expired flows; trying again at the next sweep"
            );
        }
    }
}
