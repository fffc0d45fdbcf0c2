//! Per-pod bandwidth limits: a token bucket that keeps a debt (GCRA), with headroom for low-rate
//! flows.
//!
//! A packet passes while the debt is within the limit's allowance, and then adds its cost. So a
//! packet of 64 KiB passes a bucket of any size, and is paid for afterwards. In any span of time a
//! pod gets at most rate × time, the burst, the headroom, and one packet.
//!
//! When a bulk flow has used up the allowance, its packets are dropped until some debt is paid:
//! that is how TCP learns the rate. Other flows of the pod would lose packets as well, and a lost
//! request waits for a retransmission. So a low-rate flow may use the headroom, which bulk flows
//! never touch. A flow is low-rate while it sends a quarter of the rate at most; all low-rate flows
//! together get half of the rate at most.
//!
//! All packets of a TCP connection that has lost one are dropped for a moment (`silence.rs`): the
//! sender retries when the bucket has room.
//!
//! Buckets are shared by all CPUs. Updates of the debt are a compare-and-exchange; the counters
//! that only estimate which flows are low-rate are plain writes.

use abi::{Address, Direction, DropReason, FLOWS_OF_BUCKET, Limit, LimitFlags, Shaped, TICKS};

use crate::outcome::Decision;
use crate::packet::Packet;
use crate::parse::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV6_HEADER, TCP_FLAGS, UDP_HEADER, tcp_header,
};
use crate::sender::ETHERNET;
use crate::work::Work;

/// Number of compare-and-exchange attempts before the cost is added unconditionally. A CPU whose
/// attempts fail was overtaken by others, and passes one packet too many at most. The verifier
/// walks each attempt again.
const TRIES: u32 = 2;
/// Divisor of the rate: the share that one low-rate flow may use.
const FLOW_SHARE: u64 = 4;
/// Divisor of the rate: the share that all low-rate flows may use beyond the allowance.
const LOW_RATE_SHARE: u64 = 2;
/// Bytes that a low-rate flow may send at once.
const LOW_RATE_BURST: u32 = 4 << 10;
const MILLISECOND: u64 = 1_000_000 * TICKS;
/// [`LOW_RATE_BURST`] in ticks, for high rates.
const LOW_RATE_TIME: u64 = 3 * MILLISECOND;
/// Ticks without a packet after which a flow is low-rate again.
const LOW_RATE_AGAIN: u64 = 200 * MILLISECOND;
/// Unit of the per-flow debts: the number of low bits of the ticks that are cut off.
const FLOW_UNIT: u32 = 14;
/// Largest packet that Linux builds (BIG TCP), in bytes: a debt of more than that beyond the limits
/// is invalid.
const MAX_PACKET: u32 = 512 << 10;
/// Packets with a shorter delay than this are sent at once: timers are too coarse for it.
const MIN_DELAY: u64 = 5 * MILLISECOND;
/// Packets of one size that may wait at a time: `sch_fq` drops those of a flow beyond 100.
const MAX_WAITING: u64 = 48;
/// Longest delay: `sch_fq` drops packets whose time is more than ten seconds away.
const MAX_DELAY: u64 = 5_000 * MILLISECOND;

const TCP: u8 = 6;

/// Buckets, clock and packet metadata that shaping needs beyond [`crate::Node`].
pub trait Shaper {
    /// One bucket.
    type Bucket: Bucket;

    /// Returns nanoseconds of `CLOCK_MONOTONIC`.
    fn clock(&self) -> u64;
    /// Returns the limit of a pod in one direction.
    fn limit(&self, pod: u32, direction: Direction) -> Option<&Limit>;
    /// Returns whether the address is in one of the pod's shaped subnets
    /// ([`abi::ShapedSubnetKey`]).
    fn is_shaped_subnet(&self, pod: u32, generation: u32, address: &Address) -> bool;
    /// Returns the bucket of a pod in one direction.
    fn bucket(&mut self, pod: u32, direction: Direction) -> Option<Self::Bucket>;
    /// Returns the number of GSO segments of the packet and the payload bytes of each; `(0, 0)`
    /// where the packet will not be segmented.
    fn segments(&self) -> (u32, u32);
    /// Returns the payload bytes of each GSO segment, 0 where the packet will not be segmented.
    fn segment_size(&self) -> u32;
    /// Returns a hash that is the same for all packets of a flow.
    fn flow_hash(&mut self) -> u32;
    /// Sets ECN CE on the packet; returns false where its sender does not support ECN.
    fn mark_congestion(&mut self) -> bool;
    /// Returns whether the uplink's qdisc honours delivery times (`fq`).
    fn may_delay(&self) -> bool;
    /// Sets the packet's delivery time, in nanoseconds of the clock.
    fn delay(&mut self, until: u64);
    /// Counts a packet by its outcome.
    fn count_shaped(&mut self, pod: u32, direction: Direction, bytes: u32, outcome: ShapingOutcome);
}

/// A bucket that is shared by all CPUs.
pub trait Bucket {
    /// Returns [`abi::Bucket::paid_at`].
    fn paid_at(&self) -> u64;
    /// Replaces [`abi::Bucket::paid_at`] if it still is `old`; returns whether it was.
    fn replace(&self, old: u64, new: u64) -> bool;
    /// Adds to [`abi::Bucket::paid_at`].
    fn add(&self, cost: u64);
    /// Returns [`abi::Bucket::low_rate_paid_at`].
    fn low_rate_paid_at(&self) -> u64;
    /// Writes [`abi::Bucket::low_rate_paid_at`].
    fn set_low_rate_paid_at(&self, at: u64);
    /// Returns one of [`abi::Bucket::flows`]; the index wraps.
    fn flow(&self, index: u32) -> u32;
    /// Writes one of [`abi::Bucket::flows`].
    fn set_flow(&self, index: u32, at: u32);
    /// Returns one of [`abi::Bucket::silent_until`]; the index wraps.
    fn silent_until(&self, index: u32) -> u32;
    /// Writes one of [`abi::Bucket::silent_until`].
    fn set_silent_until(&self, index: u32, at: u32);
}

/// The outcome of shaping a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "several of them are true of one packet"
)]
pub struct ShapingOutcome {
    /// The packet was dropped.
    pub dropped: bool,
    /// The packet passed beyond the allowance because its flow is low-rate.
    pub spared: bool,
    /// The packet was marked (ECN CE).
    pub marked: bool,
    /// The packet got a delivery time.
    pub delayed: bool,
}

impl ShapingOutcome {
    /// Adds a packet with this outcome to the counters.
    #[inline(always)]
    pub fn count(self, counts: &mut Shaped, bytes: u32) {
        let bytes = u64::from(bytes);
        if self.dropped {
            counts.dropped_packets += 1;
            counts.dropped_bytes += bytes;
            return;
        }
        counts.passed_packets += 1;
        counts.passed_bytes += bytes;
        if self.marked {
            counts.marked_packets += 1;
            counts.marked_bytes += bytes;
        }
        counts.delayed_packets += u64::from(self.delayed);
        counts.spared_packets += u64::from(self.spared);
    }
}

/// Charges the packet to a pod's limit, or drops it.
#[inline(always)]
pub(crate) fn charge<E: Packet + Shaper>(
    env: &mut E,
    work: &mut Work,
    pod: u32,
    direction: Direction,
) -> Decision<()> {
    if pod == 0 {
        return Ok(());
    }
    match env.limit(pod, direction) {
        Some(limit) if limit.price != 0 => work.limit = *limit,
        _ => return Ok(()),
    }
    if !applies(env, work, pod, direction) {
        return Ok(());
    }
    let Some(bucket) = env.bucket(pod, direction) else {
        return Ok(());
    };
    let bytes = wire_length(env);
    let (hash, clock) = (env.flow_hash(), env.clock());
    let now = clock.saturating_mul(TICKS);
    let passage = admit(&bucket, &work.limit, now, bytes, hash);
    let Passage::Pass { debt, spared } = passage else {
        if is_tcp(env) {
            silence::start(&bucket, &work.limit, now, hash);
        }
        env.count_shaped(pod, direction, bytes, DROPPED);
        return Err(DropReason::RateLimit);
    };
    let mut outcome = ShapingOutcome {
        spared,
        ..ShapingOutcome::default()
    };
    if !spared && debt > work.limit.mark {
        outcome.marked = env.mark_congestion();
    }
    // Only egress packets are delayed: they can wait in the uplink's qdisc. An ingress packet has
    // already arrived.
    if !spared && debt > MIN_DELAY && direction == Direction::Egress && env.may_delay() {
        outcome.delayed = true;
        // What the qdisc drops has been charged before. The limit holds without the delay.
        let waiting = work.limit.cost(bytes).min(MAX_DELAY) * MAX_WAITING;
        let delay = (debt - MIN_DELAY).min(waiting).min(MAX_DELAY);
        env.delay(clock.saturating_add(delay / TICKS));
    }
    env.count_shaped(pod, direction, bytes, outcome);
    Ok(())
}

/// Returns whether the limit applies to traffic with this packet's remote address.
#[inline(always)]
fn applies<E: Packet + Shaper>(env: &E, work: &Work, pod: u32, direction: Direction) -> bool {
    let Limit {
        flags, generation, ..
    } = work.limit;
    if flags == 0 {
        return true;
    }
    // A packet without an IP address is in no shaped subnet.
    let listed = match remote_address(env, direction) {
        Some(address) => env.is_shaped_subnet(pod, generation, &address),
        None => false,
    };
    listed == (flags & LimitFlags::ONLY_SUBNETS != 0)
}

/// Returns the remote address of a pod's packet.
#[inline(always)]
fn remote_address<P: Packet>(packet: &P, direction: Direction) -> Option<Address> {
    let is_source = direction == Direction::Ingress;
    match packet.ethertype() {
        ETHERTYPE_IPV4 => {
            let offset = if is_source { 12 } else { 16 };
            let [word] = packet.words::<1>(ETHERNET + offset)?;
            Some(Address::from_v4_word(word))
        }
        ETHERTYPE_IPV6 => {
            let offset = if is_source { 8 } else { 24 };
            let words = packet.words::<4>(ETHERNET + offset)?;
            Some(Address::from_words(words))
        }
        _ => None,
    }
}

const DROPPED: ShapingOutcome = ShapingOutcome {
    dropped: true,
    spared: false,
    marked: false,
    delayed: false,
};

/// The decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// The packet passes.
    Pass {
        /// The bucket's debt before this packet, in ticks.
        debt: u64,
        /// Whether the packet passed only because its flow is low-rate.
        spared: bool,
    },
    /// The packet is dropped.
    Refused,
}

/// Lets a packet of `bytes` pass if the limit allows it now, and charges it. `now` is in ticks.
#[inline(always)]
pub fn admit(bucket: &impl Bucket, limit: &Limit, now: u64, bytes: u32, hash: u32) -> Passage {
    let cost = limit.cost(bytes);
    let low_rate = is_low_rate(bucket, limit, now, cost, hash);
    let silent = !low_rate && silence::is_active(bucket, limit, now, hash);
    let mut passage = Passage::Refused;
    for _ in 0..TRIES {
        let seen = bucket.paid_at();
        let paid_at = clamp_time(seen, now, max_debt(limit));
        let debt = paid_at - now;
        let spared = debt > limit.allowance;
        let room = limit.allowance + limit.headroom;
        let refused = if spared {
            !(low_rate && debt <= room && take_headroom(bucket, limit, now, cost))
        } else {
            silent && debt > limit.allowance - silence::length(limit)
        };
        if refused {
            // An invalid debt would stay invalid as the clock moves on: write it back clamped.
            if paid_at < seen {
                bucket.replace(seen, paid_at);
            }
            return Passage::Refused;
        }
        passage = Passage::Pass { debt, spared };
        if bucket.replace(seen, paid_at.saturating_add(cost)) {
            return passage;
        }
    }
    bucket.add(cost);
    passage
}

/// Returns the largest valid debt in ticks. A larger one is from another limit, or from before the
/// clock went back.
#[inline(always)]
const fn max_debt(limit: &Limit) -> u64 {
    limit.allowance + limit.headroom + limit.cost(MAX_PACKET)
}

/// Clamps a time in ticks to between `now` and `most` after it.
#[inline(always)]
fn clamp_time(at: u64, now: u64, most: u64) -> u64 {
    let latest = now.saturating_add(most);
    if at < now {
        now
    } else if at > latest {
        latest
    } else {
        at
    }
}

/// Returns whether the flow is low-rate, and adds `cost` to its debt. There are two counters for
/// each flow: a flow that shares one of them with a bulk flow is recognised by the other.
#[inline(always)]
fn is_low_rate(bucket: &impl Bucket, limit: &Limit, now: u64, cost: u64, hash: u32) -> bool {
    let burst = low_rate_burst(limit);
    let most = (burst + LOW_RATE_AGAIN) >> FLOW_UNIT;
    let now = now >> FLOW_UNIT;
    let cost = (cost.saturating_mul(FLOW_SHARE) >> FLOW_UNIT) + 1;
    let one = add_debt(bucket, hash, now, cost, most);
    let other = add_debt(bucket, hash >> 16, now, cost, most);
    let least = if one < other { one } else { other };
    least <= burst >> FLOW_UNIT
}

/// Returns the ticks of debt up to which a flow is low-rate.
#[inline(always)]
const fn low_rate_burst(limit: &Limit) -> u64 {
    let packets = limit.cost(LOW_RATE_BURST).saturating_mul(FLOW_SHARE);
    if packets > LOW_RATE_TIME {
        // A larger value would not fit into 32 bits of units.
        if packets > 1 << 44 { 1 << 44 } else { packets }
    } else {
        LOW_RATE_TIME
    }
}

/// Adds to a flow's debt, and returns the debt before. Times are in units of 2^[`FLOW_UNIT`] ticks.
#[inline(always)]
fn add_debt(bucket: &impl Bucket, index: u32, now: u64, cost: u64, most: u64) -> u64 {
    let now = (now & 0xffff_ffff) as u32;
    let ahead = bucket.flow(index).wrapping_sub(now);
    // A time farther ahead than any debt is past, or from another limit.
    let debt = if u64::from(ahead) > most {
        0
    } else {
        u64::from(ahead)
    };
    let new = if debt + cost > most {
        most
    } else {
        debt + cost
    };
    bucket.set_flow(index, now.wrapping_add((new & 0xffff_ffff) as u32));
    debt
}

/// Takes `cost` from the headroom of all low-rate flows; returns whether there was enough.
#[inline(always)]
fn take_headroom(bucket: &impl Bucket, limit: &Limit, now: u64, cost: u64) -> bool {
    let paid_at = clamp_time(bucket.low_rate_paid_at(), now, max_debt(limit));
    let has_room = paid_at - now <= limit.headroom;
    let added = if has_room {
        cost.saturating_mul(LOW_RATE_SHARE)
    } else {
        0
    };
    bucket.set_low_rate_paid_at(paid_at.saturating_add(added));
    has_room
}

/// Returns the index of a flow's counter.
#[inline(always)]
pub const fn flow_index(index: u32) -> usize {
    index as usize & (FLOWS_OF_BUCKET - 1)
}

/// Returns the bytes on the wire from the IP header on: each GSO segment has headers of its own.
#[inline(always)]
fn wire_length<E: Packet + Shaper>(env: &E) -> u32 {
    let length = env.len().saturating_sub(ETHERNET);
    let (segments, size) = env.segments();
    if size == 0 {
        return length;
    }
    // The sender of a GSO packet need not have set the number of segments.
    let segments = if segments == 0 {
        length / size + 1
    } else {
        segments
    };
    length.saturating_add((segments - 1).saturating_mul(headers(env)))
}

/// Returns the bytes of IP and transport header.
#[inline(always)]
fn headers<P: Packet>(packet: &P) -> u32 {
    let Some((l4, protocol)) = transport(packet) else {
        return 0;
    };
    if protocol != TCP {
        return l4 + UDP_HEADER;
    }
    match packet.words::<1>(ETHERNET + l4 + TCP_FLAGS) {
        Some([word]) => l4 + tcp_header(word),
        None => l4,
    }
}

#[inline(always)]
fn is_tcp<P: Packet>(packet: &P) -> bool {
    matches!(transport(packet), Some((_, TCP)))
}

/// Returns the bytes of the IP header, and the protocol behind it. Extension headers are not
/// parsed.
#[inline(always)]
fn transport<P: Packet>(packet: &P) -> Option<(u32, u8)> {
    match packet.ethertype() {
        ETHERTYPE_IPV4 => {
            let [first, _, third] = packet.words::<3>(ETHERNET)?;
            let [version_length, ..] = first.to_ne_bytes();
            let [_, protocol, ..] = third.to_ne_bytes();
            Some((u32::from(version_length & 15) * 4, protocol))
        }
        ETHERTYPE_IPV6 => {
            let [_, second] = packet.words::<2>(ETHERNET)?;
            let [_, _, next, _] = second.to_ne_bytes();
            Some((IPV6_HEADER, next))
        }
        _ => None,
    }
}

mod pace;
mod silence;
mod window;

pub use pace::{Pacing, UNPACED, merge_pacing_rate, pacing_rate};
pub use window::{WIDEST, window_limit};

#[cfg(test)]
mod tests;
