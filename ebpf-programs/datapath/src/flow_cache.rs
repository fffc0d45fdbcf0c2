//! The per-CPU flow cache: maps and a clock behind [`verdict::flow_cache`]'s trait.

use core::ptr;

use abi::maps::{CACHE_CAPACITY_OF_CPU, EPOCH_OF_TABLES, EPOCHS_OF_FLOWS, SHARDS};
use abi::{Events, OffloadCandidate, Offloaded, PendingCounters, Tuple};
use aya_ebpf::helpers;
use verdict::flow_cache::{Bucket, CacheEntry, FlowCache, WAYS};

use crate::atomic;
use crate::kernel::Kernel;
use crate::maps::{CACHE_BUCKETS, CANDIDATES, EPOCHS, EVENTS, FLOW_CACHE, OFFLOADED, PENDING};
use crate::pending;

/// Whether the uplink's program is the first that sees leaving packets, so that packet tags reach
/// it. The loader sets it.
#[unsafe(no_mangle)]
static UPLINK_HANDOFF: u64 = 1;

/// Flow cache entries of each CPU, a power of two. The loader sets it with the capacity of the
/// maps.
#[unsafe(no_mangle)]
static CACHE_CAPACITY: u64 = CACHE_CAPACITY_OF_CPU as u64;

/// Nanoseconds of a jiffy. The loader sets it; of the longest one, if it cannot.
#[unsafe(no_mangle)]
static JIFFY: u64 = 10_000_000;

impl FlowCache for Kernel {
    type EntryRef = &'static CacheEntry;

    #[inline(always)]
    fn mark(&self) -> u32 {
        // SAFETY: the context is valid for as long as the program runs.
        unsafe { ptr::read_volatile(&raw const (*self.context()).mark) }
    }

    #[inline(always)]
    fn jiffies(&self) -> u64 {
        // SAFETY: the helper takes nothing. The verifier replaces the call by a load.
        unsafe { helpers::bpf_jiffies64() }
    }

    #[inline(always)]
    fn nanoseconds_of_jiffy(&self) -> u64 {
        // SAFETY: a static that only the loader writes, before the object is loaded; volatile,
        // because the compiler must not use the initial value.
        unsafe { ptr::read_volatile(&raw const JIFFY) }
    }

    #[inline(always)]
    fn epoch_of_tables(&self) -> u64 {
        // SAFETY: the element exists for as long as the map; the numbers are read whole.
        let of_events = events(|events| unsafe {
            let routes = ptr::read_volatile(&raw const (*events).routes);
            routes.wrapping_add(ptr::read_volatile(&raw const (*events).rulesets))
        });
        epoch(EPOCH_OF_TABLES).wrapping_add(of_events)
    }

    #[inline(always)]
    fn epoch_of_rulesets(&self) -> u64 {
        // SAFETY: as above.
        events(|events| unsafe { ptr::read_volatile(&raw const (*events).rulesets) })
    }

    #[inline(always)]
    fn read_offloaded(&self, tuple: &Tuple, into: &mut Offloaded) -> bool {
        // SAFETY: values of this map are plain numbers that stay readable until the program ends.
        match unsafe { OFFLOADED.get(tuple) } {
            Some(offloaded) => {
                *into = *offloaded;
                true
            }
            None => false,
        }
    }

    #[inline(always)]
    fn report_candidate(&mut self, candidate: &OffloadCandidate) {
        // Where the agent is behind, the next packet of the connection is reported.
        let _full = CANDIDATES.output::<OffloadCandidate>(candidate, 0);
    }

    #[inline(always)]
    fn events_valid_for(&self) -> u64 {
        // SAFETY: as above.
        let until =
            events(|events| unsafe { ptr::read_volatile(&raw const (*events).valid_until) });
        // SAFETY: the helper takes nothing.
        until.saturating_sub(unsafe { helpers::bpf_ktime_get_coarse_ns() })
    }

    #[inline(always)]
    fn epoch(&self, shard: u32) -> u64 {
        self.epoch_of_tables().wrapping_add(epoch(of_shard(shard)))
    }

    #[inline(always)]
    fn cache_capacity(&self) -> u32 {
        capacity()
    }

    #[inline(always)]
    fn first_cache_index(&self) -> u32 {
        // SAFETY: the helper takes nothing.
        let cpu = unsafe { helpers::bpf_get_smp_processor_id() } as u32;
        cpu.wrapping_mul(self.cache_capacity())
    }

    #[inline(always)]
    fn cache_bucket(&self, index: u32) -> Bucket {
        bucket(index).copied().unwrap_or_default()
    }

    #[inline(always)]
    fn store_cache_bucket(&mut self, index: u32, bucket: Bucket) {
        if let Some(slot) = CACHE_BUCKETS.get_ptr_mut(index / WAYS) {
            // SAFETY: this CPU's own, and no hook interrupts another. `pending_distance` of another
            // CPU may read it meanwhile, and compares what it finds.
            unsafe { *slot = bucket };
        }
    }

    #[inline(always)]
    fn cache_entry(&self, index: u32) -> Option<&'static CacheEntry> {
        FLOW_CACHE.get(index)
    }

    #[inline(always)]
    fn store_cache_entry(&mut self, index: u32, entry: &CacheEntry) {
        if let Some(slot) = FLOW_CACHE.get_ptr_mut(index) {
            // SAFETY: this CPU's own, and no hook interrupts another.
            unsafe { *slot = *entry };
        }
    }

    #[inline(always)]
    fn pending_counters(&self, index: u32) -> Option<&PendingCounters> {
        PENDING.get(index)
    }

    #[inline(always)]
    fn count_pending(&mut self, index: u32, flow_id: u32, bytes: u32, acknowledgment: u32) -> bool {
        let Some(pending) = PENDING.get_ptr_mut(index) else {
            return false;
        };
        // SAFETY: as above.
        unsafe {
            if (*pending).flow_id != flow_id {
                return false;
            }
            (*pending).packets += 1;
            (*pending).bytes += u64::from(bytes);
            (*pending).acknowledged = acknowledgment;
        }
        true
    }

    #[inline(always)]
    fn pending_distance(&mut self, bucket: u32, flow_id: u32, sequence: u32) -> u32 {
        let (bucket, flow_id) = (u64::from(bucket), u64::from(flow_id));
        pending::distance(self.context(), bucket, flow_id, u64::from(sequence)) as u32
    }

    #[inline(always)]
    fn clear_pending(&mut self, index: u32) {
        if let Some(pending) = PENDING.get_ptr_mut(index) {
            // SAFETY: as above.
            unsafe {
                (*pending).packets = 0;
                (*pending).bytes = 0;
            }
        }
    }

    #[inline(always)]
    fn reset_pending(&mut self, index: u32, key: &Tuple, flow_id: u32) {
        if let Some(pending) = PENDING.get_ptr_mut(index) {
            // SAFETY: as above.
            unsafe {
                (*pending).key = *key;
                (*pending).flow_id = flow_id;
                (*pending).packets = 0;
                (*pending).bytes = 0;
            }
        }
    }

    #[inline(always)]
    fn hands_off_to_uplink(&self) -> bool {
        // SAFETY: a static that only the loader writes, before the object is loaded; volatile,
        // because the compiler must not use the initial value.
        unsafe { ptr::read_volatile(&raw const UPLINK_HANDOFF) != 0 }
    }

    #[inline(always)]
    fn skb_tag(&self) -> u32 {
        // SAFETY: the context is valid for as long as the program runs.
        unsafe { ptr::read_volatile(&raw const (*self.context()).tc_index) }
    }

    #[inline(always)]
    fn set_skb_tag(&mut self, skb_tag: u32) {
        // SAFETY: as above.
        unsafe { ptr::write_volatile(&raw mut (*self.context()).tc_index, skb_tag) }
    }
}

/// Returns the bucket at an index of [`FlowCache::cache_bucket`].
#[inline(always)]
pub(crate) fn bucket(index: u32) -> Option<&'static Bucket> {
    CACHE_BUCKETS.get(index / WAYS)
}

/// Returns the number of flow cache entries of each CPU.
#[inline(always)]
pub(crate) fn capacity() -> u32 {
    // SAFETY: a static that only the loader writes, before the object is loaded.
    (unsafe { ptr::read_volatile(&raw const CACHE_CAPACITY) }) as u32
}

#[inline(always)]
const fn of_shard(shard: u32) -> u32 {
    EPOCHS_OF_FLOWS + (shard & (SHARDS - 1))
}

#[inline(always)]
fn epoch(index: u32) -> u64 {
    match EPOCHS.get_ptr(index) {
        // SAFETY: the element exists for as long as the map; the number is read whole.
        Some(epoch) => unsafe { ptr::read_volatile(epoch) },
        None => 0,
    }
}

/// Reads a number of the event table.
#[inline(always)]
fn events(read: impl Fn(*const Events) -> u64) -> u64 {
    EVENTS.get_ptr(0).map_or(0, read)
}

/// Starts another epoch of a shard for all CPUs.
#[inline(always)]
pub(crate) fn start_epoch(shard: u32) {
    if let Some(epoch) = EPOCHS.get_ptr_mut(of_shard(shard)) {
        // SAFETY: a map's value, aligned.
        unsafe { atomic::add(epoch, 1) }
    }
}
