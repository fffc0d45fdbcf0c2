//! Limits and token buckets for the simulator: the clock is a number, and threads share buckets as
//! CPUs do.

use std::array;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use abi::{
    Address, Direction, EndpointFlags, FLOWS_OF_BUCKET, Limit, SettingsFlags, Shaped,
    ShapedSubnetKey,
};

use super::World;
use crate::packet::Packet as _;
use crate::shape::{Bucket, Shaper, ShapingOutcome, flow_index};

/// A bucket that threads share.
#[derive(Debug)]
pub struct SharedBucket {
    paid_at: AtomicU64,
    low_rate_paid_at: AtomicU64,
    flows: [AtomicU32; FLOWS_OF_BUCKET],
    silent_until: [AtomicU32; FLOWS_OF_BUCKET],
}

impl Default for SharedBucket {
    fn default() -> Self {
        Self {
            paid_at: AtomicU64::new(0),
            low_rate_paid_at: AtomicU64::new(0),
            flows: array::from_fn(|_| AtomicU32::new(0)),
            silent_until: array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

impl From<&abi::Bucket> for SharedBucket {
    /// Copies the state of a bucket of the datapath.
    fn from(bucket: &abi::Bucket) -> Self {
        Self {
            paid_at: AtomicU64::new(bucket.paid_at),
            low_rate_paid_at: AtomicU64::new(bucket.low_rate_paid_at),
            flows: bucket.flows.map(AtomicU32::new),
            silent_until: bucket.silent_until.map(AtomicU32::new),
        }
    }
}

impl Bucket for SharedBucket {
    fn paid_at(&self) -> u64 {
        self.paid_at.load(Ordering::SeqCst)
    }

    fn replace(&self, old: u64, new: u64) -> bool {
        self.paid_at
            .compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    fn add(&self, cost: u64) {
        self.paid_at.fetch_add(cost, Ordering::SeqCst);
    }

    fn low_rate_paid_at(&self) -> u64 {
        self.low_rate_paid_at.load(Ordering::Relaxed)
    }

    fn set_low_rate_paid_at(&self, at: u64) {
        self.low_rate_paid_at.store(at, Ordering::Relaxed);
    }

    fn flow(&self, index: u32) -> u32 {
        self.flows[flow_index(index)].load(Ordering::Relaxed)
    }

    fn set_flow(&self, index: u32, at: u32) {
        self.flows[flow_index(index)].store(at, Ordering::Relaxed);
    }

    fn silent_until(&self, index: u32) -> u32 {
        self.silent_until[flow_index(index)].load(Ordering::Relaxed)
    }

    fn set_silent_until(&self, index: u32, at: u32) {
        self.silent_until[flow_index(index)].store(at, Ordering::Relaxed);
    }
}

impl Bucket for Arc<SharedBucket> {
    fn paid_at(&self) -> u64 {
        (**self).paid_at()
    }

    fn replace(&self, old: u64, new: u64) -> bool {
        (**self).replace(old, new)
    }

    fn add(&self, cost: u64) {
        (**self).add(cost);
    }

    fn low_rate_paid_at(&self) -> u64 {
        (**self).low_rate_paid_at()
    }

    fn set_low_rate_paid_at(&self, at: u64) {
        (**self).set_low_rate_paid_at(at);
    }

    fn flow(&self, index: u32) -> u32 {
        (**self).flow(index)
    }

    fn set_flow(&self, index: u32, at: u32) {
        (**self).set_flow(index, at);
    }

    fn silent_until(&self, index: u32) -> u32 {
        (**self).silent_until(index)
    }

    fn set_silent_until(&self, index: u32, at: u32) {
        (**self).set_silent_until(index, at);
    }
}

impl World {
    /// Sets the limit of a pod in one direction.
    pub fn limit(&mut self, pod: u32, direction: Direction, limit: Limit) {
        self.limits.insert((pod, direction), limit);
        let interfaces = self.interfaces.values_mut();
        for interface in interfaces.filter(|it| it.pod == pod) {
            interface.flags |= EndpointFlags::LIMITED;
        }
        for endpoint in self.endpoints.values_mut().filter(|it| it.pod == pod) {
            endpoint.flags |= EndpointFlags::LIMITED;
        }
    }
}

impl Shaper for World {
    type Bucket = Arc<SharedBucket>;

    fn clock(&self) -> u64 {
        self.clock
    }

    fn limit(&self, pod: u32, direction: Direction) -> Option<&Limit> {
        self.limits.get(&(pod, direction))
    }

    fn is_shaped_subnet(&self, pod: u32, generation: u32, address: &Address) -> bool {
        let contains = |(peer, length): &(ShapedSubnetKey, u32)| {
            let bits = |address: Address| u128::from_be_bytes(address.bytes());
            let shift = 128 - (length - ShapedSubnetKey::POD_BITS);
            let differ = bits(peer.address) ^ bits(*address);
            peer.pod == pod && differ.checked_shr(shift).unwrap_or(0) == 0
        };
        let peers = self.peers.iter().filter(|(key, _)| contains(key));
        // Only the longest match counts, as in the trie.
        let longest = peers.max_by_key(|((_, length), _)| *length);
        longest.is_some_and(|(_, owner)| *owner == generation)
    }

    fn bucket(&mut self, pod: u32, direction: Direction) -> Option<Arc<SharedBucket>> {
        Some(Arc::clone(
            self.buckets.entry((pod, direction)).or_default(),
        ))
    }

    fn segments(&self) -> (u32, u32) {
        self.segments
    }

    fn segment_size(&self) -> u32 {
        self.segments.1
    }

    fn flow_hash(&mut self) -> u32 {
        self.flow_hash
    }

    /// Marks IPv4 only and leaves the header checksum: tests check whether a packet is marked, not
    /// how.
    fn mark_congestion(&mut self) -> bool {
        let capable = self.ethertype() == 0x0800 && self.packet[15] & 3 != 0;
        self.congested |= capable;
        capable
    }

    fn may_delay(&self) -> bool {
        self.settings.flags & SettingsFlags::DELIVERY_TIME != 0
    }

    fn delay(&mut self, until: u64) {
        self.departure = Some(until);
    }

    fn count_shaped(
        &mut self,
        pod: u32,
        direction: Direction,
        bytes: u32,
        outcome: ShapingOutcome,
    ) {
        let counts: &mut Shaped = self.shaped.entry((pod, direction)).or_default();
        outcome.count(counts, bytes);
    }
}
