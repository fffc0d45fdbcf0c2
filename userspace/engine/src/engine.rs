//! The engine: one attachment at a time, from a wish to a fact.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use kernel::{Kernel, Measured};
use model::{
    Attachment, AttachmentKey, Cidr, IfName, Intent, NetnsPath, Network, NetworkName, Record, State,
};
use planner::{
    AttachContext, BypassMode, GuardMode, HeldPorts, Leases, NodeIntent, Observed, Plan, PodSide,
    Refusal, Scope, ShaperMode,
};
use store::{Store, StoreError};

use crate::busy::Busy;
use crate::node::{Node, Surveyor};
use crate::transaction::Done;
use crate::{EngineError, Report, choices, network, slot};

/// What the engine is told at its start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The agent's own network; without ranges as long as no pod CIDR is known.
    pub default_network: Network,
    /// Links by which packets leave the node; empty to follow the routing table.
    pub uplinks: BTreeSet<IfName>,
    /// Destinations that see the pods' own addresses.
    pub non_masquerade: BTreeSet<Cidr>,
    /// The addresses that pods of the agent's own network leave with, at most one of each family, instead of the
    /// uplink's.
    pub egress: BTreeSet<IpAddr>,
    /// How many entries the flow table is to have. One that is there keeps its size.
    pub flow_entries: u32,
    /// When packets go past bridge and stack.
    pub bypass: BypassMode,
    /// What is done for limits beyond enforcing them.
    pub shaper: ShaperMode,
    /// Whether guards stand in front of uplinks.
    pub guard: GuardMode,
    /// The kernel's boot id: no record of another one describes anything that is there.
    pub boot_id: String,
}

/// The published ports of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// Attachments, with the ports that they publish.
    pub records: Vec<Record>,
    /// What holds the ports.
    pub held: HeldPorts,
}

/// The one writer of the node's container networking.
#[derive(Debug)]
pub struct Engine<K> {
    pub(crate) kernel: K,
    pub(crate) store: Store,
    /// With what was chosen since the start.
    pub(crate) settings: Settings,
    /// The pod CIDRs of the configuration.
    pub(crate) configured_cidrs: String,
    /// The hairpin mode of the configuration.
    pub(crate) configured_hairpin: String,
    /// The prefixes of the configuration that are not masqueraded.
    pub(crate) configured_non_masquerade: String,
    pub(crate) surveyor: Surveyor,
    pub(crate) node: Node,
    /// The slot given last.
    pub(crate) last_slot: u32,
    pub(crate) last_reconcile: Option<Arc<Report>>,
    /// What was made and not looked at yet, and when it was made.
    pub(crate) unseen: BTreeMap<AttachmentKey, u64>,
    /// Whether settling the records has failed since the last comparison: it is not tried again and again.
    pub(crate) cannot_settle: bool,
    /// Pods that send much, and what is to be done for them.
    pub(crate) busy: Busy,
}

impl<K: Kernel> Engine<K> {
    /// An engine that has compared all records with the kernel and put right what it could (behaviour A5); `now` is
    /// in seconds since 1970. What it could not put right is in its status; a node that it cannot look at is an error.
    pub fn start(
        kernel: K,
        store: Store,
        settings: Settings,
        now: u64,
    ) -> Result<Self, EngineError> {
        let _start = crash::verb("start");
        let mut engine = Self::new(kernel, store, settings);
        engine.begin_boot()?;
        engine.follow_hairpin_mode()?;
        engine.look_first(now)?;
        Ok(engine)
    }

    pub(crate) fn new(kernel: K, store: Store, mut settings: Settings) -> Self {
        let configured = settings.default_network;
        settings.default_network = choices::recall(&configured, &store);
        let configured_non_masquerade = choices::prefixes(&settings.non_masquerade);
        settings.non_masquerade = choices::recall_non_masquerade(&settings.non_masquerade, &store);
        let youngest = store
            .records()
            .values()
            .map(|record| &record.attachment)
            .max_by_key(|attachment| attachment.generation);
        Self {
            last_slot: youngest.map_or(0, |attachment| attachment.slot),
            kernel,
            store,
            settings,
            configured_cidrs: choices::cidrs(&configured.ranges),
            configured_hairpin: configured.hairpin.to_string(),
            configured_non_masquerade,
            surveyor: Surveyor::default(),
            node: Node::default(),
            last_reconcile: None,
            unseen: BTreeMap::new(),
            cannot_settle: false,
            busy: Busy::default(),
        }
    }

    /// Makes an attachment. `now` is in seconds since 1970. A failure leaves nothing behind: the runtime tries again
    /// without a DEL in between (behaviour C10).
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
        let network_before = self.store.networks().get(&key.network).cloned();
        let mut done = Done::default();
        let intent = self.as_of_now(intent);
        let added = self.attach(&intent, now, &mut done);
        if added.is_err() {
            self.back_out(key, network_before.as_ref(), done);
        }
        added
    }

    /// The intent with its network as it is when the turn has come: the agent's own one may have got other ranges while
    /// the request waited, and one whose addresses another plugin gives keeps those that it has.
    fn as_of_now<'a>(&self, intent: &'a Intent) -> Cow<'a, Intent> {
        let default = &self.settings.default_network;
        if intent.network.name == default.name {
            let network = default.clone();
            return Cow::Owned(Intent {
                network,
                ..intent.clone()
            });
        }
        if intent.requested.awaits_addresses {
            return Cow::Owned(self.while_waiting(intent));
        }
        Cow::Borrowed(intent)
    }

    fn attach(
        &mut self,
        intent: &Intent,
        now: u64,
        done: &mut Done,
    ) -> Result<Attachment, EngineError> {
        let (attachment, plan) = self.decide(intent, done)?;
        let mut record = Record {
            attachment,
            state: State::Pending,
            boot_id: self.settings.boot_id.clone(),
            created_at: now,
        };
        self.put_reserving(&record)?;
        self.ask_sockets(&record.attachment);
        done.apply(&mut self.kernel, &plan)?;
        if intent.requested.awaits_addresses {
            record.state = State::Linked;
            self.store.put(&record)?;
        } else {
            let last = last_reserved(&intent.network, &record.attachment);
            record.state = State::Attached;
            self.store.put_given(&record, &last)?;
            self.look_later(&intent.key, now);
        }
        Ok(record.attachment)
    }

    /// A bridge that was there at the last look may be gone by now: then it is made again, once.
    fn decide(
        &mut self,
        intent: &Intent,
        done: &mut Done,
    ) -> Result<(Attachment, Plan), EngineError> {
        let mtu = self.prepare_network(&intent.network, done)?;
        match self.plan(intent, mtu) {
            Err(EngineError::Refused(Refusal::NoBridge { .. })) => {
                self.node.ready.remove(&intent.network.name);
                let mtu = self.prepare_network(&intent.network, done)?;
                self.plan(intent, mtu)
            }
            planned => planned,
        }
    }

    fn plan(&mut self, intent: &Intent, mtu: u32) -> Result<(Attachment, Plan), EngineError> {
        let host_link = model::ManagedLink::of(&intent.key);
        let observed = self.kernel.observe(&Scope::Netns {
            path: intent.netns.clone(),
            ifname: intent.key.ifname.clone(),
            links: BTreeSet::from([host_link.name().clone(), intent.network.bridge.clone()]),
        })?;
        let mut taken = intent.requested.taken.clone();
        taken.extend(self.store.leases());
        let mut last_reserved = intent.requested.last_reserved.clone();
        last_reserved.extend(self.store.last_reserved(&intent.network.name));
        let leases = Leases {
            taken,
            last_reserved,
        };
        let context = AttachContext {
            leases: &leases,
            records: self.store.records(),
            slot: self.next_slot()?,
            generation: self.store.generation().wrapping_add(1).max(1),
            mtu,
        };
        let planned = planner::plan_attach(intent, &observed, &context)?;
        crate::limits::tell(&intent.key, &intent.bandwidth, &planned.0.bandwidth);
        self.last_slot = planned.0.slot;
        Ok(planned)
    }

    pub(crate) fn next_slot(&self) -> Result<u32, Refusal> {
        let taken = self
            .store
            .records()
            .values()
            .map(|record| record.attachment.slot)
            .collect();
        slot::next(&taken, self.last_slot).ok_or(Refusal::NoSlot {
            capacity: abi::maps::PODS_CAPACITY - 1,
        })
    }

    pub(crate) fn verify(&mut self, attachment: &Attachment) -> Result<(), EngineError> {
        let observed = self.observe(attachment)?;
        let differences = planner::check(attachment, &observed);
        if differences.is_empty() {
            return Ok(());
        }
        Err(EngineError::Different {
            key: attachment.key.clone(),
            differences,
        })
    }

    pub(crate) fn observe(&mut self, attachment: &Attachment) -> Result<Observed, EngineError> {
        let scope = Scope::Attachment(Box::new(attachment.clone()));
        Ok(self.kernel.observe(&scope)?)
    }

    /// As [`Engine::observe`], without entering the pod's namespace.
    pub(crate) fn observe_outside(
        &mut self,
        attachment: &Attachment,
    ) -> Result<Observed, EngineError> {
        let scope = Scope::Outside(Box::new(attachment.clone()));
        Ok(self.kernel.observe(&scope)?)
    }

    /// Undoes an ADD. What cannot be undone keeps its record, so that the next ADD, DEL or reconciliation removes it.
    pub(crate) fn back_out(
        &mut self,
        key: &AttachmentKey,
        network_before: Option<&Network>,
        done: Done,
    ) {
        let left = done.roll_back(&mut self.kernel);
        for failure in &left {
            tracing::warn!(%key, "cannot undo: {failure}");
        }
        if let Err(error) = self.forget(key, network_before, left.is_empty()) {
            tracing::error!(%key, error = crate::error::chain(&error), "cannot clear the record");
        }
        if let Err(error) = self.reserve_ports() {
            tracing::warn!(%key, error = crate::error::chain(&error), "ports stay reserved for now");
        }
    }

    fn forget(
        &mut self,
        key: &AttachmentKey,
        network_before: Option<&Network>,
        all_undone: bool,
    ) -> Result<(), StoreError> {
        if let Some(record) = self.store.get(key).cloned() {
            if !all_undone {
                let state = State::Removing;
                return self.store.put(&Record { state, ..record });
            }
            self.store.remove(key)?;
        }
        match network_before {
            Some(network) if self.store.networks().get(&network.name) != Some(network) => {
                self.node.ready.remove(&network.name);
                self.store.put_network(network)
            }
            Some(_) => Ok(()),
            None => {
                self.node.ready.remove(&key.network);
                self.store.remove_network(&key.network)
            }
        }
    }

    /// Compares an attachment with what was decided, and returns the decision (behaviour S11).
    pub fn check(&mut self, key: &AttachmentKey) -> Result<Attachment, EngineError> {
        self.check_wanted(key, None)
    }

    /// As [`Engine::check`], but of the routes only those to `wanted` are looked for, if that is said: a runtime may have
    /// taken others away on purpose (C15).
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
            return Err(EngineError::Unknown(key.clone()));
        };
        let mut expected = record.attachment.clone();
        if let Some(wanted) = wanted {
            let is_wanted = |route: &model::Route| wanted.contains(&route.destination);
            expected.routes.retain(is_wanted);
        }
        self.verify(&expected)?;
        Ok(record.attachment)
    }

    /// What is remembered of every attachment.
    pub fn attachments(&self) -> Vec<Record> {
        self.store.records().values().cloned().collect()
    }

    /// An interface in a namespace, whoever's it is; `None` when there is none.
    pub fn look_inside(
        &mut self,
        path: NetnsPath,
        ifname: IfName,
    ) -> Result<Option<PodSide>, EngineError> {
        let links = BTreeSet::new();
        let scope = Scope::Netns {
            path,
            ifname,
            links,
        };
        Ok(self.kernel.observe(&scope)?.pod)
    }

    /// Which ports of the node are published, and how they are held.
    pub fn ports(&mut self) -> Result<Ports, EngineError> {
        Ok(Ports {
            held: self.kernel.observe(&Scope::Ports)?.held,
            records: self.attachments(),
        })
    }

    /// Reads the counters.
    pub fn measure(&mut self) -> Result<Measured, EngineError> {
        Ok(self.kernel.measure()?)
    }

    /// Forgets flows that have ended.
    pub fn sweep(&mut self) {
        let _sweep = crash::verb("sweep");
        if let Err(error) = self.kernel.execute(&planner::Step::Sweep) {
            tracing::warn!(error = crate::error::chain(&error), "cannot sweep");
        }
    }

    /// Makes sure that the bridge of `network` is there, and returns its MTU.
    pub(crate) fn prepare_network(
        &mut self,
        network: &Network,
        done: &mut Done,
    ) -> Result<u32, EngineError> {
        let default = &self.settings.default_network;
        if network.name == default.name && network.ranges.is_empty() {
            let network = network.name.clone();
            return Err(Refusal::NoRanges { network }.into());
        }
        network::admit(network, default, self.store.networks().values())?;
        let name = &network.name;
        if let Some(ready) = self.node.ready.get(name)
            && ready.network == *network
        {
            return Ok(ready.mtu);
        }
        if self.store.networks().get(name) != Some(network) {
            self.store.put_network(network)?;
        }
        let intent = self.node_intent();
        let (kernel, store) = (&mut self.kernel, &mut self.store);
        let apply = |kernel: &mut K, plan: &Plan| done.apply(kernel, plan);
        let settled = self.surveyor.settle(kernel, &intent, store, apply)?;
        self.node = Node::of(&intent, settled);
        if let Some(refusal) = self.node.refused.get(name) {
            return Err(refusal.clone().into());
        }
        self.node
            .ready
            .get(name)
            .map(|ready| ready.mtu)
            .ok_or_else(|| {
                let bridge = network.bridge.clone();
                Refusal::NoBridge { bridge }.into()
            })
    }

    /// What the node must be for all networks, the default one first.
    pub(crate) fn node_intent(&self) -> NodeIntent {
        let default = &self.settings.default_network.name;
        // Without a pod CIDR the agent's own network has nothing to do yet.
        let networks = self
            .networks()
            .filter(|network| network.name != *default || !network.ranges.is_empty());
        NodeIntent {
            networks: networks.cloned().collect(),
            uplinks: self.settings.uplinks.clone(),
            non_masquerade: self.settings.non_masquerade.clone(),
            egress: BTreeMap::from([(
                self.settings.default_network.bridge.clone(),
                self.settings.egress.clone(),
            )]),
            bypass: self.settings.bypass,
            shaper: self.settings.shaper,
            guard: self.settings.guard,
        }
    }

    /// The default network, and those that attachments are on.
    pub(crate) fn networks(&self) -> impl Iterator<Item = &Network> {
        let default = &self.settings.default_network;
        let others = self
            .store
            .networks()
            .values()
            .filter(|network| network.name != default.name);
        [default].into_iter().chain(others)
    }

    /// Forgets networks that no attachment is on any more. Their bridges stay: others may use them by now.
    pub(crate) fn release_networks(&mut self) -> Result<(), StoreError> {
        let used: BTreeSet<&NetworkName> = self
            .store
            .records()
            .keys()
            .map(|key| &key.network)
            .collect();
        let unused: Vec<NetworkName> = self
            .store
            .networks()
            .keys()
            .filter(|name| !used.contains(name))
            .cloned()
            .collect();
        for name in unused {
            self.store.remove_network(&name)?;
            if name != self.settings.default_network.name {
                self.node.ready.remove(&name);
            }
        }
        Ok(())
    }
}

/// Which of the attachment's addresses each range set gave.
fn last_reserved(network: &Network, attachment: &Attachment) -> BTreeMap<usize, IpAddr> {
    network
        .ranges
        .iter()
        .enumerate()
        .filter_map(|(index, set)| {
            let mut addresses = attachment.addresses.iter().map(|a| a.address.address);
            let address = addresses.find(|address| network::holds(set, *address))?;
            Some((index, address))
        })
        .collect()
}
