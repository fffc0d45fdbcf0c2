//! Limits and buckets: helpers and maps behind [`verdict::shape`]'s traits.

use core::ptr;

use abi::{Address, Direction, Limit, SettingsFlags, ShapedSubnetKey};
use aya_ebpf::helpers;
use aya_ebpf::maps::lpm_trie::Key;
use verdict::Node as _;
use verdict::shape::{Bucket, Shaper, ShapingOutcome, flow_index};

use crate::atomic;
use crate::kernel::Kernel;
use crate::maps::{BUCKETS, LIMITS, PEERS, SHAPED};

/// Whether the kernel has `bpf_skb_set_tstamp`; 0 if not. A time that is written without it is lost
/// when the packet is redirected. The loader probes the kernel and sets it.
#[unsafe(no_mangle)]
static HAS_SKB_SET_TSTAMP: u64 = 1;

/// `BPF_SKB_TSTAMP_DELIVERY_MONO`: the time is a delivery time, by `CLOCK_MONOTONIC`.
const DEPARTURE: u32 = 1;

/// A bucket in a map, which other CPUs change concurrently.
#[derive(Clone, Copy)]
pub(crate) struct SharedBucket(*mut abi::Bucket);

impl Bucket for SharedBucket {
    #[inline(always)]
    fn paid_at(&self) -> u64 {
        // SAFETY: the element exists for as long as the map; each number is read whole.
        unsafe { ptr::read_volatile(&raw const (*self.0).paid_at) }
    }

    #[inline(always)]
    fn replace(&self, old: u64, new: u64) -> bool {
        // SAFETY: as above.
        unsafe { atomic::replace(&raw mut (*self.0).paid_at, old, new) }
    }

    #[inline(always)]
    fn add(&self, cost: u64) {
        // SAFETY: as above.
        unsafe { atomic::add(&raw mut (*self.0).paid_at, cost) }
    }

    #[inline(always)]
    fn low_rate_paid_at(&self) -> u64 {
        // SAFETY: as above.
        unsafe { ptr::read_volatile(&raw const (*self.0).low_rate_paid_at) }
    }

    #[inline(always)]
    fn set_low_rate_paid_at(&self, at: u64) {
        // SAFETY: as above.
        unsafe { ptr::write_volatile(&raw mut (*self.0).low_rate_paid_at, at) }
    }

    #[inline(always)]
    fn flow(&self, index: u32) -> u32 {
        // SAFETY: as above, and `flow_index` is within the array.
        unsafe { ptr::read_volatile(&raw const (*self.0).flows[flow_index(index)]) }
    }

    #[inline(always)]
    fn set_flow(&self, index: u32, at: u32) {
        // SAFETY: as above.
        unsafe { ptr::write_volatile(&raw mut (*self.0).flows[flow_index(index)], at) }
    }

    #[inline(always)]
    fn silent_until(&self, index: u32) -> u32 {
        // SAFETY: as above.
        unsafe { ptr::read_volatile(&raw const (*self.0).silent_until[flow_index(index)]) }
    }

    #[inline(always)]
    fn set_silent_until(&self, index: u32, at: u32) {
        // SAFETY: as above.
        unsafe { ptr::write_volatile(&raw mut (*self.0).silent_until[flow_index(index)], at) }
    }
}

#[inline(always)]
const fn row(pod: u32, direction: Direction) -> u32 {
    pod * 2 + direction as u32
}

impl Shaper for Kernel {
    type Bucket = SharedBucket;

    #[inline(always)]
    fn clock(&self) -> u64 {
        // SAFETY: the helper takes nothing.
        unsafe { helpers::bpf_ktime_get_ns() }
    }

    #[inline(always)]
    fn limit(&self, pod: u32, direction: Direction) -> Option<&Limit> {
        LIMITS.get(row(pod, direction))
    }

    #[inline(always)]
    fn is_shaped_subnet(&self, pod: u32, generation: u32, address: &Address) -> bool {
        let key = ShapedSubnetKey {
            pod,
            address: *address,
        };
        PEERS.get(Key::new(ShapedSubnetKey::BITS, key)).copied() == Some(generation)
    }

    #[inline(always)]
    fn bucket(&mut self, pod: u32, direction: Direction) -> Option<SharedBucket> {
        BUCKETS.get_ptr_mut(row(pod, direction)).map(SharedBucket)
    }

    #[inline(always)]
    fn segments(&self) -> (u32, u32) {
        // SAFETY: the context is valid for as long as the program runs.
        let segments = unsafe { ptr::read_volatile(&raw const (*self.context()).gso_segs) };
        (segments, self.segment_size())
    }

    #[inline(always)]
    fn segment_size(&self) -> u32 {
        // SAFETY: as above.
        unsafe { ptr::read_volatile(&raw const (*self.context()).gso_size) }
    }

    #[inline(always)]
    fn flow_hash(&mut self) -> u32 {
        // SAFETY: the helper takes the context.
        unsafe { helpers::bpf_get_hash_recalc(self.context()) as u32 }
    }

    #[inline(always)]
    fn mark_congestion(&mut self) -> bool {
        // SAFETY: the helper takes the context.
        unsafe { helpers::bpf_skb_ecn_set_ce(self.context()) == 1 }
    }

    #[inline(always)]
    fn may_delay(&self) -> bool {
        // SAFETY: a static that only the loader writes, before the object is loaded; volatile,
        // because the compiler must not use the initial value.
        if unsafe { ptr::read_volatile(&raw const HAS_SKB_SET_TSTAMP) } == 0 {
            return false;
        }
        self.settings()
            .is_some_and(|settings| settings.flags & SettingsFlags::DELIVERY_TIME != 0)
    }

    #[inline(always)]
    fn delay(&mut self, until: u64) {
        // If it fails, the packet is sent at once, as with a qdisc that ignores delivery times.
        unsafe { helpers::bpf_skb_set_tstamp(self.context(), until, DEPARTURE) };
    }

    #[inline(always)]
    fn count_shaped(
        &mut self,
        pod: u32,
        direction: Direction,
        bytes: u32,
        outcome: ShapingOutcome,
    ) {
        if let Some(counts) = SHAPED.get_ptr_mut(row(pod, direction)) {
            // SAFETY: the element is this CPU's own.
            outcome.count(unsafe { &mut *counts }, bytes);
        }
    }
}
