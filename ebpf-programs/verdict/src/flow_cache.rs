//! The per-CPU flow cache: packets of established flows reuse the verdict of the packet before
//! them.
//!
//! Each CPU caches, per [`CacheKey`], how the last packet ended: its verdict, the rewrite, and the
//! pods it was counted for. The next packet with the same key ends the same way, without a lookup
//! in any table. Packets that open or close a connection, and packets that are limited or dropped,
//! never use the cache.
//!
//! An entry is valid while the [epoch](FlowCache::epoch) is the one in which it was recorded. The
//! agent starts another epoch after every change of a table, and after the kernel's notification
//! of a change of a route, link or neighbour. The programs start another epoch for the [`shard`] of
//! a flow's tuples when the flow is removed or reopened, or is new between pods. State that only
//! the kernel has is looked up again at the end of the entry's `lifetime` at the latest.
//!
//! Packets that hit the cache are counted in [`PendingCounters`] beside the entry, and added to the
//! flow's entry when the cache entry is replaced. The last acknowledgment number goes the same way.

use core::ops::Deref;

use abi::maps::SHARDS;
use abi::{Address, Events, OffloadCandidate, Offloaded, PendingCounters, Tuple};

use crate::work::Work;

mod bucket;
mod cache_key;
mod lookup;
mod rewrite_template;
mod ring;
mod uplink_handoff;

pub use bucket::{Bucket, CachePlace, WAYS};
pub use cache_key::CacheKey;
pub(crate) use cache_key::place_of_tuple;
pub(crate) use lookup::{apply_hit, find, find_redirect, record};
pub use rewrite_template::RewriteTemplate;
pub use ring::CacheRing;
pub(crate) use uplink_handoff::{find_uplink_flow, propagate, tag_offloaded};

/// Jiffies for which an entry is valid without an agent that reports changes: 10 to 100
/// milliseconds.
pub const MAX_AGE: u64 = 10;

/// Jiffies after which a connection on the stack is reported to the agent again, which may offload
/// it: 0.1 to 1 second.
const MAX_REPORT_AGE: u64 = 10 * MAX_AGE;

/// Jiffies that an uplink-side entry must have left to be added to the pod-side entry of its
/// packet, which ends with it. Otherwise it is made again.
const LEAST_LEFT: u64 = MAX_AGE / 2;

/// Returns the jiffies for which an entry is valid that is recorded now, while changes of routes
/// and neighbours are reported for another `valid_for` nanoseconds: no longer than that, but
/// [`MAX_AGE`] at least. A jiffy has `jiffy` nanoseconds.
#[inline(always)]
pub(crate) fn lifetime(valid_for: u64, jiffy: u64) -> u64 {
    // Bounded, so that no value in the table makes an entry last.
    (valid_for.min(Events::VALIDITY) / jiffy.max(1)).max(MAX_AGE)
}

/// Packets per direction that a flow must have had before cache entries are made for it. Many flows
/// end with fewer. Making an entry costs as much as eight hits save, because the memory it is
/// written to is in no CPU cache.
pub const CACHE_THRESHOLD: u64 = 8;

/// The flow cache's storage and clock on this CPU.
pub trait FlowCache {
    /// A reference to one of this CPU's entries. No other CPU or hook writes the entry while a
    /// packet is processed.
    type EntryRef: Copy + Deref<Target = CacheEntry>;

    /// Returns the packet's `fwmark`: routes may depend on it.
    fn mark(&self) -> u32;
    /// Returns the kernel's jiffies.
    fn jiffies(&self) -> u64;
    /// Returns the nanoseconds of a jiffy: 1 to 10 million, as the kernel was built.
    fn nanoseconds_of_jiffy(&self) -> u64;
    /// Returns how many packets per direction a flow must have had before entries are made for it.
    fn cache_threshold(&self) -> u64 {
        CACHE_THRESHOLD
    }
    /// Returns a number that grows with every change of a table by the agent, and with every change
    /// of a route, link, neighbour or netfilter rule that the agent reports.
    fn epoch_of_tables(&self) -> u64;
    /// Returns the nanoseconds for which the agent still reports changes of routes, links,
    /// neighbours and netfilter rules; 0 where it does not.
    fn events_valid_for(&self) -> u64;
    /// Returns a number that grows with every change of netfilter rules that the agent reports.
    fn epoch_of_rulesets(&self) -> u64;
    /// Copies the agent's decision about packets that reach netfilter with this tuple; returns
    /// whether there is one.
    fn read_offloaded(&self, tuple: &Tuple, into: &mut Offloaded) -> bool;
    /// Reports a connection that netfilter has accepted to the agent.
    fn report_candidate(&mut self, candidate: &OffloadCandidate);
    /// Returns a number that grows with every change of a table that a verdict about tuples of this
    /// [`shard`] may depend on.
    fn epoch(&self, shard: u32) -> u64;
    /// Returns the number of entries of each CPU, a power of two.
    fn cache_capacity(&self) -> u32;
    /// Returns the index of this CPU's first entry.
    fn first_cache_index(&self) -> u32;
    /// Returns the bucket at this index, which is that of the CPU's first entry and
    /// `CachePlace::within` together. An entry, which may be in no CPU cache, is read only where
    /// its tag is that of the key.
    fn cache_bucket(&self, index: u32) -> Bucket;
    /// Replaces the bucket at this index.
    fn store_cache_bucket(&mut self, index: u32, bucket: Bucket);
    /// Returns the entry at this index.
    fn cache_entry(&self, index: u32) -> Option<Self::EntryRef>;
    /// Replaces the entry at this index.
    fn store_cache_entry(&mut self, index: u32, entry: &CacheEntry);
    /// Returns the packets that hit the entry at this index and are not yet in the flow table.
    fn pending_counters(&self, index: u32) -> Option<&PendingCounters>;
    /// Counts a packet for the entry at this index, and stores its acknowledgment number (TCP).
    /// Returns false, and counts nothing, where the counters there belong to a flow with another
    /// id.
    fn count_pending(&mut self, index: u32, flow_id: u32, bytes: u32, acknowledgment: u32) -> bool;
    /// Returns the least distance of `sequence` from an acknowledgment number that any CPU has
    /// stored for the flow with this id, for an entry of this bucket; [`u32::MAX`] where there is
    /// none. `bucket` is that of `CachePlace::within`, the same on each CPU.
    fn pending_distance(&mut self, bucket: u32, flow_id: u32, sequence: u32) -> u32;
    /// Sets the pending counters at this index to zero.
    fn clear_pending(&mut self, index: u32);
    /// Sets the pending counters at this index to zero, for the flow with this key and id.
    fn reset_pending(&mut self, index: u32, key: &Tuple, flow_id: u32);
    /// Returns whether `from_pod` may hand packets over to the uplink's program by
    /// [`FlowCache::set_skb_tag`]: only where no other program sees the packet in between.
    fn hands_off_to_uplink(&self) -> bool;
    /// Returns the tag that an earlier hook has left on the packet (`skb->tc_index`); 0 for none.
    fn skb_tag(&self) -> u32;
    /// Tags the packet with 16 bits for the hooks that it passes next (`skb->tc_index`).
    fn set_skb_tag(&mut self, skb_tag: u32);
}

/// Returns the index of the per-flow epoch that changes of this tuple's flow increment.
#[inline(always)]
pub const fn shard(tuple: &Tuple) -> u32 {
    let (source, destination) = (tuple.source.words(), tuple.destination.words());
    let ports = (tuple.source_port.raw() as u32) << 16 | tuple.destination_port.raw() as u32;
    let mixed = source[3] ^ destination[3].rotate_left(5) ^ ports;
    let mixed = mixed ^ mixed >> 16;
    (mixed ^ mixed >> 8) & (SHARDS - 1)
}

/// How packets with one key end. The fields that most packets need lie side by side.
/// Three cache lines, of which the last is read for packets that are rewritten.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct CacheEntry {
    /// The packets that the entry is for.
    pub key: CacheKey,
    /// Longest packet, in bytes from the IP header on, that is known to fit the route or the pod's
    /// link.
    pub max_length: u32,
    /// [`FlowCache::epoch`] when the packet was parsed.
    pub epoch: u64,
    /// [`FlowCache::jiffies`] from which on the entry is invalid.
    pub expires_at: u64,
    /// The verdict, as its [`crate::Code`].
    pub verdict: u64,
    /// [`shard`] of the packets' tuple.
    pub shard: u32,
    /// [`Steps`] to apply to each packet.
    pub steps: u32,
    /// [`abi::Flow::flow_id`] of the flow.
    pub flow_id: u32,
    /// Slot of the sending pod; 0 for none.
    pub from: u32,
    /// Slot of the receiving pod; 0 for none.
    pub to: u32,
    /// Slot of the pod that drops are counted for; 0 for none.
    pub pod: u32,
    /// The rewrite of each packet.
    pub rewrite: RewriteTemplate,
    /// Next hop of [`crate::Verdict::RedirectNeigh`], from [`crate::Work::hop`].
    pub hop: Address,
}

const _: () = assert!(size_of::<CacheEntry>() == 192);

/// Result of a cache lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheLookup {
    /// No valid entry.
    Miss,
    /// A hit, and the packet is counted in its flow. The caller must call `propagate` and then
    /// `apply_hit`.
    Propagate(CacheHit),
    /// The packet is done; the verdict as its [`crate::Code`].
    Done(u64),
}

/// A cache hit: the entry and the packet's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheHit {
    /// Index of the entry.
    pub index: u32,
    /// Length of the packet in bytes from the IP header on.
    pub bytes: u32,
}

/// Access to the packet's scratch memory, on demand: a packet that hits the cache needs none.
pub trait ScratchProvider {
    /// Returns the scratch memory of the packet.
    fn work(&mut self) -> Option<&mut Work>;
}

impl ScratchProvider for &mut Work {
    fn work(&mut self) -> Option<&mut Work> {
        Some(self)
    }
}

/// Records, on the slow path, what a cache entry for the packets behind this one needs.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CacheRecorder {
    /// The packet's key.
    pub key: CacheKey,
    /// Whether an entry may be made from this packet; 0 or 1.
    pub cacheable: u32,
    /// [`FlowCache::jiffies`] when the packet was parsed.
    pub recorded_at: u64,
    /// [`FlowCache::epoch`] when the packet was parsed.
    pub epoch: u64,
    /// Packets that the flow has had in this direction before.
    pub packets_before: u64,
    /// [`shard`] of the packet's tuple.
    pub shard: u32,
    /// Length in bytes from the IP header on, of the packet or of each GSO segment.
    pub length: u32,
    /// [`Steps`] that were applied to the packet.
    pub steps: u32,
    /// [`abi::Flow::flow_id`] of the packet's flow, if one was found.
    pub flow_id: u32,
    /// MAC addresses that were written, destination first, as words of packet memory.
    pub mac_addresses: [u32; 3],
    /// Whether the pod-side entry is to be updated with the outcome at this hook; 0 or 1.
    pub propagate: u32,
    /// Index of that pod-side entry: the last one that a packet was tagged for.
    pub pod_entry: u32,
    /// Whether an earlier hook has redirected the packet past the stack; 0 or 1.
    pub is_redirected: u32,
}

/// The changes made to a packet: bits of [`CacheRecorder::steps`] and [`CacheEntry::steps`].
#[derive(Clone, Copy, Debug)]
pub struct Steps;

impl Steps {
    /// The packet's flow was found, and the packet counted there.
    pub const FLOW: u32 = 1 << 0;
    /// The TTL, or hop limit, was decremented.
    pub const TTL_DECREMENTED: u32 = 1 << 1;
    /// The MAC addresses were rewritten.
    pub const MAC_ADDRESSES: u32 = 1 << 2;
    /// The IP addresses were rewritten.
    pub const ADDRESSES: u32 = 1 << 3;
    /// The ports were rewritten.
    pub const PORTS: u32 = 1 << 4;
    /// The packet is redirected past rules of other software.
    pub const OFFLOADED: u32 = 1 << 5;
    /// The packet, which has no flow of ours, is translated as netfilter would.
    pub const FOREIGN_NAT: u32 = 1 << 6;
    /// The packet is of a pod, or for one, and no packet with its tuple will have a flow while the
    /// tables do not change.
    pub const UNTRACKED: u32 = 1 << 7;
    /// Anything but the TTL was rewritten.
    pub const REWRITTEN: u32 = Self::MAC_ADDRESSES | Self::ADDRESSES | Self::PORTS;
}

impl CacheRecorder {
    /// Prevents a cache entry from being made from this packet.
    #[inline(always)]
    pub(crate) const fn mark_uncacheable(&mut self) {
        self.cacheable = 0;
    }

    /// Returns whether the packet's flow was found.
    #[inline(always)]
    pub(crate) const fn has_flow(&self) -> bool {
        self.steps & Steps::FLOW != 0
    }

    /// Returns whether no packet with the packet's tuple will have a flow.
    #[inline(always)]
    const fn is_untracked(&self) -> bool {
        self.steps & Steps::UNTRACKED != 0
    }

    /// Returns whether [`Work::translated`] is the tuple that the packet has got.
    #[inline(always)]
    const fn has_translation(&self) -> bool {
        self.steps & (Steps::FLOW | Steps::FOREIGN_NAT) != 0
    }
}

#[cfg(test)]
mod tests;
