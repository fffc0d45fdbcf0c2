//! Per-pod limits: a token bucket that keeps a debt (GCRA), with headroom for thin flows.
//!
//! A packet passes as long as the debt is within the limit's allowance, and then adds what it costs. So a packet of 64
//! KiB passes a bucket of any size, and is paid for afterwards. In any span of time a pod gets no more than rate × time,
//! the burst, the headroom, and one packet.
//!
//! When a bulk flow has used the allowance up, it loses packets until some debt is paid: that is how TCP learns the
//! rate. Other flows of the pod would lose theirs as well, and a request that is lost waits for a retransmission. So a
//! flow that asks for little (a quarter of the rate, and all such flows together half of it) may go on into the
//! headroom, which bulk never touches.
//!
//! A TCP connection that has lost a packet loses all of them for a moment ([`silence`]): it tries again when there is room.
//!
//! Buckets are shared by all CPUs. Everything that decides about the sum is one compare and exchange; what only guesses
//! which flows are thin is written without care.

use abi::{Address, Direction, DropReason, FLOWS_OF_BUCKET, Limit, LimitFlags, Shaped, TICKS};

use crate::outcome::Decision;
use crate::packet::Packet;
use crate::parse::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV6_HEADER, TCP_FLAGS, UDP_HEADER, tcp_header,
};
use crate::sender::ETHERNET;
use crate::work::Work;

/// How often a bucket is tried before the cost is added without a look: who fails has been overtaken by others, and passes
/// one packet too many at most. The verifier walks through each try anew.
const TRIES: u32 = 2;
/// Parts of the rate that one thin flow may have: one in so many.
const FLOW_SHARE: u64 = 4;
/// Parts of the rate that all thin flows together may have beyond the allowance: one in so many.
const THIN_SHARE: u64 = 2;
/// Bytes that a flow may send at once and still be thin.
const THIN_BURST: u32 = 4 << 10;
const MILLISECOND: u64 = 1_000_000 * TICKS;
/// The same in time, for high rates.
const THIN_TIME: u64 = 3 * MILLISECOND;
/// A flow that was not thin is thin again when it has been silent for so long.
const MEMORY: u64 = 200 * MILLISECOND;
/// Debts by flow are kept in units of so many bits.
const FLOW_UNIT: u32 = 14;
/// The largest packets that Linux makes (BIG TCP): more debt than that beyond the limits, nobody can have made.
const MAX_PACKET: u32 = 512 << 10;
/// Packets that have less to wait than this depart at once: timers are not for that.
const AT_ONCE: u64 = 5 * MILLISECOND;

const TCP: u8 = 6;

/// What shaping asks of the node beyond its tables.
pub trait Shaper {
    /// One bucket.
    type Bucket: Bucket;

    /// Nanoseconds of `CLOCK_MONOTONIC`.
    fn clock(&self) -> u64;
    /// The limit of a pod.
    fn limit(&self, pod: u32, direction: Direction) -> Option<&Limit>;
    /// Whether the address is one of the pod's [`abi::ShapedSubnetKey`]s.
    fn is_shaped_subnet(&self, pod: u32, generation: u32, address: &Address) -> bool;
    /// The bucket of a pod.
    fn bucket(&mut self, pod: u32, direction: Direction) -> Option<Self::Bucket>;
    /// How the packet will be cut up: into how many, with how much payload each. `(0, 0)` where it will not be.
    fn segments(&self) -> (u32, u32);
    /// The latter alone.
    fn segment_size(&self) -> u32;
    /// A number that is the same for all packets of a flow.
    fn flow_hash(&mut self) -> u32;
    /// Marks the packet as having met congestion; false where its sender would not heed it.
    fn mark_congestion(&mut self) -> bool;
    /// Whether packets may be told when to depart.
    fn may_delay(&self) -> bool;
    /// Tells the packet when to depart, in nanoseconds of the clock.
    fn delay(&mut self, until: u64);
    /// Counts what became of a packet.
    fn count_shaped(&mut self, pod: u32, direction: Direction, bytes: u32, ending: Ending);
}

/// One bucket, shared by all CPUs.
pub trait Bucket {
    /// [`abi::Bucket::paid_at`].
    fn paid_at(&self) -> u64;
    /// Replaces [`abi::Bucket::paid_at`] if it still is `old`, and tells whether.
    fn replace(&self, old: u64, new: u64) -> bool;
    /// Adds to [`abi::Bucket::paid_at`].
    fn add(&self, cost: u64);
    /// [`abi::Bucket::thin_paid_at`].
    fn thin_paid_at(&self) -> u64;
    /// Writes [`abi::Bucket::thin_paid_at`].
    fn set_thin_paid_at(&self, at: u64);
    /// One of [`abi::Bucket::flows`]; the index wraps.
    fn flow(&self, index: u32) -> u32;
    /// Writes one of [`abi::Bucket::flows`].
    fn set_flow(&self, index: u32, at: u32);
    /// One of [`abi::Bucket::silent_until`]; the index wraps.
    fn silent_until(&self, index: u32) -> u32;
    /// Writes one of [`abi::Bucket::silent_until`].
    fn set_silent_until(&self, index: u32, at: u32);
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "several of them are true of one packet"
)]
pub struct Ending {
    /// It was dropped.
    pub dropped: bool,
    /// It passed because its flow is thin.
    pub spared: bool,
    /// It was marked.
    pub marked: bool,
    /// It was told when to depart.
    pub delayed: bool,
}

impl Ending {
    /// Adds a packet that ended so.
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

/// Charges the packet to a pod, or refuses it.
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
    let mut ending = Ending {
        spared,
        ..Ending::default()
    };
    if !spared && debt > work.limit.mark {
        ending.marked = env.mark_congestion();
    }
    // A pod's own uplink is where packets can wait; what a pod receives has arrived.
    if !spared && debt > AT_ONCE && direction == Direction::Egress && env.may_delay() {
        ending.delayed = true;
        env.delay(clock.saturating_add((debt - AT_ONCE) / TICKS));
    }
    env.count_shaped(pod, direction, bytes, ending);
    Ok(())
}

/// Whether the limit is for traffic with this packet's other end.
#[inline(always)]
fn applies<E: Packet + Shaper>(env: &E, work: &Work, pod: u32, direction: Direction) -> bool {
    let Limit {
        flags, generation, ..
    } = work.limit;
    if flags == 0 {
        return true;
    }
    // What has no address is with nobody.
    let listed = match remote_address(env, direction) {
        Some(address) => env.is_shaped_subnet(pod, generation, &address),
        None => false,
    };
    listed == (flags & LimitFlags::ONLY_SUBNETS != 0)
}

/// The address of the other end.
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

const DROPPED: Ending = Ending {
    dropped: true,
    spared: false,
    marked: false,
    delayed: false,
};

/// Whether a packet passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// It does.
    Pass {
        /// Ticks of debt before it.
        debt: u64,
        /// Whether it passed only because its flow is thin.
        spared: bool,
    },
    /// It does not.
    Refused,
}

/// Lets a packet of `bytes` pass if the limit allows it now, and charges it. `now` is in ticks.
#[inline(always)]
pub fn admit(bucket: &impl Bucket, limit: &Limit, now: u64, bytes: u32, hash: u32) -> Passage {
    let cost = limit.cost(bytes);
    let thin = is_thin(bucket, limit, now, cost, hash);
    let silent = !thin && silence::is_active(bucket, limit, now, hash);
    let mut passage = Passage::Refused;
    for _ in 0..TRIES {
        let seen = bucket.paid_at();
        let paid_at = clamp_time(seen, now, max_debt(limit));
        let debt = paid_at - now;
        let spared = debt > limit.allowance;
        let room = limit.allowance + limit.headroom;
        let refused = if spared {
            !(thin && debt <= room && take_headroom(bucket, limit, now, cost))
        } else {
            silent && debt > limit.allowance - silence::length(limit)
        };
        if refused {
            // A debt that nobody can have made would stay out of reach as the clock moves on.
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

/// The largest debt that there can be. More of it is of another limit, or of a clock that went back.
#[inline(always)]
const fn max_debt(limit: &Limit) -> u64 {
    limit.allowance + limit.headroom + limit.cost(MAX_PACKET)
}

/// A time in ticks that is neither past nor farther away than `most`.
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

/// Whether the flow is one that asks for little; notes that it asks for `cost`. Two counters for each flow: who shares
/// one of them with a bulk flow is known by the other.
#[inline(always)]
fn is_thin(bucket: &impl Bucket, limit: &Limit, now: u64, cost: u64, hash: u32) -> bool {
    let burst = thin_burst(limit);
    let most = (burst + MEMORY) >> FLOW_UNIT;
    let now = now >> FLOW_UNIT;
    let cost = (cost.saturating_mul(FLOW_SHARE) >> FLOW_UNIT) + 1;
    let one = add_debt(bucket, hash, now, cost, most);
    let other = add_debt(bucket, hash >> 16, now, cost, most);
    let least = if one < other { one } else { other };
    least <= burst >> FLOW_UNIT
}

#[inline(always)]
const fn thin_burst(limit: &Limit) -> u64 {
    let packets = limit.cost(THIN_BURST).saturating_mul(FLOW_SHARE);
    if packets > THIN_TIME {
        // More would not fit into 32 bits of units.
        if packets > 1 << 44 { 1 << 44 } else { packets }
    } else {
        THIN_TIME
    }
}

/// Adds to a flow's debt, and returns what it was.
#[inline(always)]
fn add_debt(bucket: &impl Bucket, index: u32, now: u64, cost: u64, most: u64) -> u64 {
    let now = (now & 0xffff_ffff) as u32;
    let ahead = bucket.flow(index).wrapping_sub(now);
    // What is farther ahead than any debt can be is past, or of a limit that was changed.
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

/// Whether thin flows together have room for `cost` beyond the allowance; takes it.
#[inline(always)]
fn take_headroom(bucket: &impl Bucket, limit: &Limit, now: u64, cost: u64) -> bool {
    let paid_at = clamp_time(bucket.thin_paid_at(), now, max_debt(limit));
    let has_room = paid_at - now <= limit.headroom;
    let added = if has_room {
        cost.saturating_mul(THIN_SHARE)
    } else {
        0
    };
    bucket.set_thin_paid_at(paid_at.saturating_add(added));
    has_room
}

/// The index of a flow's counter.
#[inline(always)]
pub const fn flow_index(index: u32) -> usize {
    index as usize & (FLOWS_OF_BUCKET - 1)
}

/// Bytes of the packet from the IP header on, as many as there will be on a wire: each part that it is cut into has
/// headers of its own.
#[inline(always)]
fn wire_length<E: Packet + Shaper>(env: &E) -> u32 {
    let length = env.len().saturating_sub(ETHERNET);
    let (segments, size) = env.segments();
    if size == 0 {
        return length;
    }
    // Whoever made the packet may not have counted its parts.
    let segments = if segments == 0 {
        length / size + 1
    } else {
        segments
    };
    length.saturating_add((segments - 1).saturating_mul(headers(env)))
}

/// Bytes of IP and transport header.
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

/// Bytes of the IP header, and the protocol behind it. Extension headers are none that a limit looks into.
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

pub use pace::{Pacing, UNPACED, pace_of, pace_with};
pub use window::{WIDEST, window_of};

#[cfg(test)]
mod tests;
