//! Shortcuts, in ordinary Rust. The agent's part, to begin another epoch behind every change, is played by a comparison.

use std::collections::{BTreeMap, BTreeSet};

use abi::{
    Address, Egress, Endpoint, Flow, Hostport, HostportKey, Interface, Network, Noted, Pod,
    PrefixKey, Settings, Tuple, Uplink,
};

use super::World;
use crate::shortcut::{Shortcut, Shortcuts};

/// Nanoseconds of a tick.
pub const TICK: u64 = 4_000_000;

/// What the one CPU remembers of packets under way, and what that rests on.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Whether nothing is remembered.
    pub off: bool,
    /// How many packets were spared the way through all tables.
    pub taken: u64,
    shortcuts: BTreeMap<u32, Shortcut>,
    noted: BTreeMap<u32, Noted>,
    shards: BTreeMap<u32, u64>,
    epoch: u64,
    tables: Option<Box<Tables>>,
}

/// What the agent writes, and what the kernel alone knows.
#[derive(Clone, Debug, PartialEq)]
struct Tables {
    settings: Settings,
    pods: Vec<Pod>,
    interfaces: BTreeMap<u32, Interface>,
    endpoints: BTreeMap<Address, Endpoint>,
    hostports: BTreeMap<HostportKey, Hostport>,
    networks: BTreeMap<u32, Network>,
    uplinks: BTreeMap<u32, Uplink>,
    locals: BTreeSet<Address>,
    prefixes: BTreeMap<PrefixKey, u32>,
    egress: BTreeMap<u32, Egress>,
    next_hops: BTreeMap<Address, Address>,
    ways_out: BTreeMap<Address, u32>,
    mtus: BTreeMap<u32, u32>,
}

impl World {
    /// Begins another epoch if a table was changed.
    pub(super) fn notice_changes(&mut self) {
        let tables = Some(Box::new(self.tables()));
        if self.memory.tables != tables {
            self.memory.tables = tables;
            self.memory.epoch += 1;
        }
    }

    pub(super) fn begin_epoch_of(&mut self, shard: u32) {
        *self.memory.shards.entry(shard).or_default() += 1;
    }

    /// What whoever changes flows by hand has to do.
    pub fn flows_were_changed(&mut self) {
        self.memory.epoch += 1;
    }

    /// The flow table with what was noted beside it.
    pub fn counted_flows(&self) -> BTreeMap<Tuple, Flow> {
        let mut flows = self.flows.clone();
        for noted in self.memory.noted.values() {
            if let Some(flow) = flows.get_mut(&noted.key)
                && flow.ticket == noted.ticket
            {
                flow.packets += noted.packets;
                flow.bytes += noted.bytes;
            }
        }
        flows
    }

    fn tables(&self) -> Tables {
        Tables {
            settings: self.settings,
            pods: self.pods.clone(),
            interfaces: self.interfaces.clone(),
            endpoints: self.endpoints.clone(),
            hostports: self.hostports.clone(),
            networks: self.networks.clone(),
            uplinks: self.uplinks.clone(),
            locals: self.locals.clone(),
            prefixes: self.prefixes.clone(),
            egress: self.egress.clone(),
            next_hops: self.next_hops.clone(),
            ways_out: self.ways_out.clone(),
            mtus: self.mtus.clone(),
        }
    }
}

impl Shortcuts for World {
    fn mark(&self) -> u32 {
        self.mark
    }

    fn ticks(&self) -> u64 {
        self.clock / TICK
    }

    fn epoch(&self, shard: u32) -> u64 {
        let shard = self.memory.shards.get(&shard).copied().unwrap_or(0);
        self.memory.epoch + shard
    }

    fn shortcut(&self, index: u32) -> Option<&Shortcut> {
        self.memory.shortcuts.get(&index)
    }

    fn keep_shortcut(&mut self, index: u32, shortcut: &Shortcut) {
        if !self.memory.off {
            self.memory.shortcuts.insert(index, *shortcut);
        }
    }

    fn noted(&self, index: u32) -> Option<&Noted> {
        self.memory.noted.get(&index)
    }

    fn note(&mut self, index: u32, ticket: u32, bytes: u32) -> bool {
        let noted = self.memory.noted.entry(index).or_default();
        if noted.ticket != ticket {
            return false;
        }
        noted.packets += 1;
        noted.bytes += u64::from(bytes);
        true
    }

    fn begin_notes(&mut self, index: u32, key: &Tuple, ticket: u32) {
        let noted = Noted {
            key: *key,
            ticket,
            ..Noted::default()
        };
        self.memory.noted.insert(index, noted);
    }
}
