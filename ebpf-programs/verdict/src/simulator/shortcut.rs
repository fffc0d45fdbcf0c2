//! Shortcuts, in ordinary Rust. The agent's part, to begin another epoch behind every change, is played by a comparison.

use std::collections::BTreeMap;
use std::ops::Deref;

use abi::{Flow, Noted, Tuple};

use super::World;
use crate::shortcut::{Shortcut, Shortcuts};

/// Nanoseconds of a tick.
pub const TICK: u64 = 4_000_000;
const SECOND: u64 = 1_000_000_000;

/// What the one CPU remembers of packets under way, and what that rests on.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Whether nothing is remembered.
    pub off: bool,
    /// Whether pods are busy: [`crate::stages::go_straight`] is in front of their hook.
    pub busy: bool,
    /// How many packets were spared the way through all tables.
    pub taken: u64,
    /// How many packets a flow has before shortcuts are made for it.
    pub young: u64,
    tags: BTreeMap<u32, u8>,
    shortcuts: BTreeMap<u32, Shortcut>,
    noted: BTreeMap<u32, Noted>,
    shards: BTreeMap<u32, u64>,
    epoch: u64,
    /// What the packet under way is labelled with.
    pub label: u32,
    /// Whether programs of others are shown what leaves before ours is.
    pub preceded: bool,
    /// The node when a change was last noticed.
    before: Option<Box<World>>,
}

impl World {
    /// Begins another epoch if a table was changed.
    pub(super) fn notice_changes(&mut self) {
        let before = self.memory.before.take();
        let unchanged = before.filter(|before| before.tables() == self.tables());
        if unchanged.is_none() {
            self.memory.epoch += 1;
        }
        self.memory.before = unchanged.or_else(|| Some(Box::new(self.clone())));
    }

    /// What the agent writes, and what the kernel alone knows.
    fn tables(&self) -> impl PartialEq {
        (
            (&self.settings, &self.pods, &self.interfaces),
            (&self.endpoints, &self.hostports, &self.networks),
            (&self.uplinks, &self.locals, &self.prefixes, &self.egress),
            (&self.next_hops, &self.ways_out, self.way_takes, &self.mtus),
        )
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
            if let Some(flow) = flows.get_mut(&noted.key) {
                noted.add_to(flow);
            }
        }
        flows
    }
}

/// A copy of a shortcut, as it was when it was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Copied(Shortcut);

impl Deref for Copied {
    type Target = Shortcut;

    fn deref(&self) -> &Shortcut {
        &self.0
    }
}

impl Shortcuts for World {
    type Kept = Copied;

    fn mark(&self) -> u32 {
        self.mark
    }

    fn ticks(&self) -> u64 {
        // Two clocks of the kernel, which tests turn by themselves.
        self.clock / TICK + u64::from(self.now) * SECOND / TICK
    }

    fn young(&self) -> u64 {
        if self.memory.off {
            0
        } else {
            self.memory.young
        }
    }

    fn epoch_of_tables(&self) -> u64 {
        self.memory.epoch
    }

    fn epoch(&self, shard: u32) -> u64 {
        let shard = self.memory.shards.get(&shard).copied().unwrap_or(0);
        self.memory.epoch + shard
    }

    fn tag(&self, index: u32) -> u8 {
        self.memory.tags.get(&index).copied().unwrap_or(0)
    }

    fn shortcut(&self, index: u32) -> Option<Copied> {
        self.memory.shortcuts.get(&index).copied().map(Copied)
    }

    fn keep_shortcut(&mut self, index: u32, tag: u8, shortcut: &Shortcut) {
        if !self.memory.off {
            self.memory.tags.insert(index, tag);
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

    fn hands_over(&self) -> bool {
        !self.memory.preceded
    }

    fn label(&self) -> u32 {
        self.memory.label
    }

    fn set_label(&mut self, label: u32) {
        self.memory.label = label;
    }
}
