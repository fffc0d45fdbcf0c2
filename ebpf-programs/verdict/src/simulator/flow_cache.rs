//! Shortcuts, in ordinary Rust. The agent's part, to begin another epoch behind every change, is played by a comparison.

use std::collections::BTreeMap;
use std::ops::Deref;

use abi::{Flow, PendingCounters, Tuple};

use super::World;
use crate::flow_cache::{CacheEntry, FlowCache};

/// Nanoseconds of a tick.
pub const JIFFY: u64 = 4_000_000;
const SECOND: u64 = 1_000_000_000;

/// What the one CPU remembers of packets under way, and what that rests on.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Whether nothing is remembered.
    pub disabled: bool,
    /// Whether pods are busy: [`crate::stages::find_cached_redirect`] is in front of their hook.
    pub tcx_fast_path: bool,
    /// How many packets were spared the way through all tables.
    pub hits: u64,
    /// How many packets a flow has before shortcuts are made for it.
    pub cache_threshold: u64,
    tags: BTreeMap<u32, u8>,
    entries: BTreeMap<u32, CacheEntry>,
    pending: BTreeMap<u32, PendingCounters>,
    shards: BTreeMap<u32, u64>,
    epoch: u64,
    /// What the packet under way is labelled with.
    pub skb_tag: u32,
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
            (&self.next_hops, &self.egress_routes, self.route_mtu, &self.mtus),
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
        for pending in self.memory.pending.values() {
            if let Some(flow) = flows.get_mut(&pending.key) {
                pending.add_to(flow);
            }
        }
        flows
    }
}

/// A copy of a shortcut, as it was when it was asked for.
#[derive(Clone, Copy, Debug)]
pub struct EntryCopy(CacheEntry);

impl Deref for EntryCopy {
    type Target = CacheEntry;

    fn deref(&self) -> &CacheEntry {
        &self.0
    }
}

impl FlowCache for World {
    type EntryRef = EntryCopy;

    fn mark(&self) -> u32 {
        self.mark
    }

    fn jiffies(&self) -> u64 {
        // Two clocks of the kernel, which tests turn by themselves.
        self.clock / JIFFY + u64::from(self.now) * SECOND / JIFFY
    }

    fn cache_threshold(&self) -> u64 {
        if self.memory.disabled {
            0
        } else {
            self.memory.cache_threshold
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

    fn cache_entry(&self, index: u32) -> Option<EntryCopy> {
        self.memory.entries.get(&index).copied().map(EntryCopy)
    }

    fn store_cache_entry(&mut self, index: u32, tag: u8, entry: &CacheEntry) {
        if !self.memory.disabled {
            self.memory.tags.insert(index, tag);
            self.memory.entries.insert(index, *entry);
        }
    }

    fn pending_counters(&self, index: u32) -> Option<&PendingCounters> {
        self.memory.pending.get(&index)
    }

    fn count_pending(&mut self, index: u32, flow_id: u32, bytes: u32) -> bool {
        let pending = self.memory.pending.entry(index).or_default();
        if pending.flow_id != flow_id {
            return false;
        }
        pending.packets += 1;
        pending.bytes += u64::from(bytes);
        true
    }

    fn reset_pending(&mut self, index: u32, key: &Tuple, flow_id: u32) {
        let pending = PendingCounters {
            key: *key,
            flow_id,
            ..PendingCounters::default()
        };
        self.memory.pending.insert(index, pending);
    }

    fn hands_off_to_uplink(&self) -> bool {
        !self.memory.preceded
    }

    fn skb_tag(&self) -> u32 {
        self.memory.skb_tag
    }

    fn set_skb_tag(&mut self, skb_tag: u32) {
        self.memory.skb_tag = skb_tag;
    }
}
