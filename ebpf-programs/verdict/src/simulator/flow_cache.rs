//! [`FlowCache`] for the simulator, in ordinary Rust.
//!
//! The agent advances the epoch after every change of a map, and of a route as long as it reports
//! those; here a comparison of the tables does.

use std::collections::BTreeMap;
use std::ops::Deref;

use abi::{Flow, OffloadCandidate, Offloaded, PendingCounters, Tuple};

use super::World;
use crate::flow_cache::{Bucket, CacheEntry, FlowCache, WAYS};

/// Nanoseconds per jiffy.
pub const JIFFY: u64 = 4_000_000;
const SECOND: u64 = 1_000_000_000;
/// Entries of the flow cache.
const CAPACITY: u32 = 2_048;

/// The flow cache of the one CPU, and the epochs that it depends on.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Whether the flow cache is off.
    pub disabled: bool,
    /// Whether the TCX fast path ([`crate::stages::find_cached_redirect`]) is attached before
    /// `from_pod`.
    pub tcx_fast_path: bool,
    /// Number of packets with a cache hit.
    pub hits: u64,
    /// Number of packets that a flow must have before it is cached.
    pub cache_threshold: u64,
    /// The buckets, by index.
    buckets: BTreeMap<u32, Bucket>,
    entries: BTreeMap<u32, CacheEntry>,
    pending: BTreeMap<u32, PendingCounters>,
    shards: BTreeMap<u32, u64>,
    epoch: u64,
    /// Time until which the agent reports changes of routes and rules, by [`World::clock`].
    pub events_valid_until: u64,
    /// Number of changes of netfilter rules.
    pub rulesets: u64,
    /// `skb_tag` of the current packet.
    pub skb_tag: u32,
    /// Whether foreign TC programs run before ours on the uplink's egress.
    pub preceded: bool,
    /// The tables at the last detected change.
    before: Option<Box<World>>,
}

impl Memory {
    /// Returns the cache entries, by index.
    pub const fn cached_verdicts(&self) -> &BTreeMap<u32, CacheEntry> {
        &self.entries
    }
}

impl World {
    /// Starts a new epoch if a table was changed.
    pub(super) fn notice_changes(&mut self) {
        let before = self.memory.before.take();
        let unchanged = before.filter(|before| before.tables() == self.tables());
        if unchanged.is_none() {
            self.memory.epoch += 1;
        }
        self.memory.before = unchanged.or_else(|| Some(Box::new(self.clone())));
    }

    /// Returns the tables that the agent writes, and the state that only the kernel has.
    fn tables(&self) -> impl PartialEq {
        (
            (&self.settings, &self.pods, &self.interfaces),
            (&self.endpoints, &self.hostports, &self.networks),
            (&self.uplinks, &self.locals, &self.prefixes, &self.egress),
            &self.offloaded,
            (&self.rule_sets, &self.identities, &self.policy_rules),
            (
                &self.next_hops,
                &self.egress_routes,
                self.route_mtu,
                &self.mtus,
            ),
        )
    }

    pub(super) fn start_epoch_of(&mut self, shard: u32) {
        *self.memory.shards.entry(shard).or_default() += 1;
    }

    /// Starts a new epoch; tests call it after they have changed flows directly.
    pub fn flows_were_changed(&mut self) {
        self.memory.epoch += 1;
    }

    /// Returns the flow table with the pending counters added.
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

/// A copy of a cache entry at the time of its lookup.
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
        // Tests advance both clocks independently; jiffies must follow either.
        self.clock / JIFFY + u64::from(self.now) * SECOND / JIFFY
    }

    fn nanoseconds_of_jiffy(&self) -> u64 {
        JIFFY
    }

    fn cache_threshold(&self) -> u64 {
        if self.memory.disabled {
            0
        } else {
            self.memory.cache_threshold
        }
    }

    fn epoch_of_tables(&self) -> u64 {
        self.memory.epoch + self.memory.rulesets
    }

    fn events_valid_for(&self) -> u64 {
        self.memory.events_valid_until.saturating_sub(self.clock)
    }

    fn epoch_of_rulesets(&self) -> u64 {
        self.memory.rulesets
    }

    fn read_offloaded(&self, tuple: &Tuple, into: &mut Offloaded) -> bool {
        let found = self.offloaded.get(tuple);
        *into = found.copied().unwrap_or(*into);
        found.is_some()
    }

    fn report_candidate(&mut self, candidate: &OffloadCandidate) {
        self.candidates.push(*candidate);
    }

    fn epoch(&self, shard: u32) -> u64 {
        let shard = self.memory.shards.get(&shard).copied().unwrap_or(0);
        self.epoch_of_tables() + shard
    }

    fn cache_capacity(&self) -> u32 {
        CAPACITY
    }

    fn first_cache_index(&self) -> u32 {
        0
    }

    fn cache_bucket(&self, index: u32) -> Bucket {
        let bucket = self.memory.buckets.get(&index);
        bucket.copied().unwrap_or_default()
    }

    fn store_cache_bucket(&mut self, index: u32, bucket: Bucket) {
        self.memory.buckets.insert(index, bucket);
    }

    fn cache_entry(&self, index: u32) -> Option<EntryCopy> {
        self.memory.entries.get(&index).copied().map(EntryCopy)
    }

    fn store_cache_entry(&mut self, index: u32, entry: &CacheEntry) {
        if !self.memory.disabled {
            self.memory.entries.insert(index, *entry);
        }
    }

    fn pending_counters(&self, index: u32) -> Option<&PendingCounters> {
        self.memory.pending.get(&index)
    }

    fn count_pending(&mut self, index: u32, flow_id: u32, bytes: u32, acknowledgment: u32) -> bool {
        let pending = self.memory.pending.entry(index).or_default();
        if pending.flow_id != flow_id {
            return false;
        }
        pending.packets += 1;
        pending.bytes += u64::from(bytes);
        pending.acknowledged = acknowledgment;
        true
    }

    fn pending_distance(&mut self, bucket: u32, flow_id: u32, sequence: u32) -> u32 {
        let bucket = self.cache_bucket(bucket);
        let pending = (0..WAYS).filter_map(|way| self.memory.pending.get(&bucket.entry(way)));
        pending
            .filter(|pending| pending.flow_id == flow_id && pending.packets > 0)
            .map(|pending| sequence.wrapping_sub(pending.acknowledged))
            .min()
            .unwrap_or(u32::MAX)
    }

    fn clear_pending(&mut self, index: u32) {
        if let Some(pending) = self.memory.pending.get_mut(&index) {
            (pending.packets, pending.bytes) = (0, 0);
        }
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
