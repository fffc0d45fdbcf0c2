//! Flows: lookup, insertion, and when one is dead. Does not know why an address is translated.

mod progress;
mod takeover;

use abi::maps::OUTSIDE_ACCOUNTS;
use abi::{DropReason, Flow, FlowFlags, Seen, Timeouts, Tuple, protocol};

use crate::eviction;
use crate::flow_cache::{FlowCache, Steps, shard};
use crate::hostport_from_pod;
use crate::node::{Insertion, Node, Touch};
use crate::outcome::Decision;
use crate::tcp;
use crate::work::{Hook, Pair, QuotaUsage, Transport, Work};

#[cfg(test)]
pub(crate) use self::progress::LONG_IDLE;
pub use self::progress::is_finished;
use self::progress::is_long_idle;
pub(crate) use self::progress::{MIN_IDLE, Progress};
use self::takeover::{has_lost_address, has_moved, is_for_node};

/// Seconds for which one entry of a pair may exist alone: the two are not inserted at the same
/// instant.
const HALF_PAIR: u32 = 2;
/// Properties that both entries of a new flow have in common.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Hook at which the flow applies to packets of the original direction.
    pub hook: Hook,
    /// [`FlowFlags`] beyond those of the hook and the direction.
    pub flags: u32,
    /// Interface index of the uplink, or of the client's veth.
    pub uplink: u32,
    /// The account that the flow counts for: see [`Flow::account`].
    pub account: u32,
    /// The pod's slot; 0 for a flow of the node itself.
    pub pod: u32,
    /// The pod's generation.
    pub generation: u32,
    /// Seconds of `CLOCK_MONOTONIC`.
    pub now: u32,
}

impl Pair {
    /// Fills both entries of a flow whose first packet has the tuple `from` and gets the tuple
    /// `to`.
    #[inline(always)]
    pub fn fill(&mut self, from: &Tuple, to: &Tuple, terms: &Terms) {
        let (there, back) = match terms.hook {
            Hook::UplinkIn => (FlowFlags::UPLINK_IN, FlowFlags::UPLINK_OUT),
            Hook::UplinkOut => (FlowFlags::UPLINK_OUT, FlowFlags::UPLINK_IN),
            Hook::FromPod => (FlowFlags::FROM_POD, FlowFlags::FROM_POD),
        };
        self.original.key = *from;
        self.reply.key = to.reverse();
        fill(
            &mut self.original.flow,
            terms,
            terms.flags | there | FlowFlags::ORIGINAL,
        );
        fill(&mut self.reply.flow, terms, terms.flags | back);
        self.original.flow.translated = *to;
        self.reply.flow.translated = from.reverse();
    }
}

#[inline(always)]
fn fill(flow: &mut Flow, terms: &Terms, flags: u32) {
    flow.flags = flags | FlowFlags::of_account(terms.account);
    flow.seen = 0;
    flow.created = terms.now;
    flow.last_seen = terms.now;
    flow.uplink = terms.uplink;
    flow.pod = terms.pod;
    flow.generation = terms.generation;
    flow.flow_id = 0;
    flow.packets = 0;
    flow.acknowledged = 0;
    flow.awaited = 0;
    flow.bytes = 0;
}

/// Looks up the packet's flow. On a hit, the packet is counted in the entry, and
/// [`Work::translated`] is the tuple to write.
#[inline(always)]
pub(crate) fn find<E: Node + FlowCache>(node: &mut E, work: &mut Work, hook: Hook) -> bool {
    find_below(node, work, hook, u64::MAX)
}

/// As [`find`], but only if the flow is too new for cache entries.
#[inline(always)]
pub(crate) fn find_new<E: Node + FlowCache>(node: &mut E, work: &mut Work, hook: Hook) -> bool {
    let threshold = node.cache_threshold();
    find_below(node, work, hook, threshold)
}

/// As [`find`], but only if the flow has had fewer packets in this direction.
#[inline(always)]
fn find_below<E: Node + FlowCache>(
    node: &mut E,
    work: &mut Work,
    hook: Hook,
    packets: u64,
) -> bool {
    work.reverse_path_ok = 0;
    let Some(entry) = node.flow(&work.headers.tuple) else {
        return false;
    };
    let flow = node.read(entry);
    if flow.flags & hook.flag() == 0 || flow.packets >= packets {
        return false;
    }
    work.translated = flow.translated;
    if is_stale(node, &flow)
        || has_moved(&flow, hook, work.interface)
        || (hook == Hook::FromPod && !hostport_from_pod::has_current_pods(node, work, &flow))
        || has_lost_address(node, &flow, &work.translated.source, hook, work.now)
        || is_for_node(node, work, &flow, hook)
    {
        // Not read from the copy of the entry, which takes the stack: a chain of functions has 512
        // bytes, and Linux 6.1 rounds each of them up to 32.
        work.pair.reply.key = work.translated.reverse();
        let original = flow.flags & FlowFlags::ORIGINAL != 0;
        discard(node, &work.headers.tuple, &work.pair.reply.key, original);
        return false;
    }
    work.recorder.steps |= Steps::FLOW;
    work.recorder.flow_id = flow.flow_id;
    let is_confirmed = flow.flags & FlowFlags::REVERSE_PATH_OK != 0 && flow.last_seen == work.now;
    work.reverse_path_ok = u32::from(is_confirmed);
    work.recorder.packets_before = flow.packets;
    // A packet between two pods is counted for its sender here.
    if hook != Hook::FromPod {
        work.pod = flow.pod;
    }
    let seen = if work.headers.transport == Transport::Tcp {
        tcp::observe(node, entry, &flow, work)
    } else {
        work.headers.seen
    };
    node.touch(
        entry,
        Touch {
            seen,
            now: work.now,
            bytes: work.headers.length,
        },
    );
    true
}

/// Returns whether the pod that the flow was created for is gone.
#[inline(always)]
pub(crate) fn is_stale<E: Node>(node: &E, flow: &Flow) -> bool {
    flow.pod != 0 && !is_current(node, flow.pod, flow.generation)
}

/// Returns whether the pod of that generation still has the slot.
#[inline(always)]
pub(crate) fn is_current<E: Node>(node: &E, slot: u32, generation: u32) -> bool {
    // A free slot keeps the generation of its last owner until it gets another.
    node.pod(slot)
        .is_some_and(|pod| pod.interface != 0 && pod.generation == generation)
}

/// Removes an entry and, if it is of the same flow, the entry of the other direction.
///
/// The reply's entry is removed last: it is what reserves the port.
#[inline(always)]
pub(crate) fn discard<E: Node>(node: &mut E, key: &Tuple, opposite: &Tuple, original: bool) {
    let has_other = other_direction(node, key, opposite).is_some();
    if has_other && !original {
        node.remove_flow(opposite);
    }
    node.remove_flow(key);
    if has_other && original {
        node.remove_flow(opposite);
    }
}

/// Returns the entry of the other direction, unless there is none or it is another flow's.
#[inline(always)]
fn other_direction<E: Node>(node: &E, key: &Tuple, opposite: &Tuple) -> Option<Flow> {
    let flow = node.read(node.flow(opposite)?);
    (flow.translated.reverse() == *key).then_some(flow)
}

/// Returns whether the packet opens a TCP connection.
#[inline(always)]
pub(crate) fn opens_tcp(work: &Work) -> bool {
    work.headers.transport == Transport::Tcp
        && work.headers.seen & (Seen::SYN | Seen::ACK) == Seen::SYN
}

/// Inserts [`Work::pair`]. `Ok(false)`: the replies' tuple belongs to another flow that is alive.
#[inline(always)]
pub(crate) fn insert<E: Node>(node: &mut E, work: &mut Work) -> Decision<bool> {
    work.recorder.mark_uncacheable();
    let account = work.pair.original.flow.account();
    // Reserve before the check: two CPUs that insert at once cannot both take the last place of the
    // quota.
    let live = node.reserve_flow(account);
    let quota = quota(node, &work.pair.original.flow);
    work.quota_usage = match live {
        _ if work.quota_usage == QuotaUsage::EVICTED => QuotaUsage::LOW,
        _ if live >= quota => QuotaUsage::FULL,
        _ if live > quota / 2 => QuotaUsage::HIGH,
        _ => QuotaUsage::LOW,
    };
    let inserted = if work.quota_usage == QuotaUsage::FULL {
        Err(DropReason::FlowQuota)
    } else {
        insert_pair(node, work)
    };
    if inserted != Ok(Inserted::New) {
        node.release_flow(account);
    } else if work.pair.original.flow.flags & FlowFlags::FROM_POD != 0 {
        // Packets with these tuples may have cache entries that were made without a flow.
        node.start_epoch(shard(&work.pair.original.key));
        node.start_epoch(shard(&work.pair.reply.key));
    }
    Ok(inserted? != Inserted::Not)
}

/// Returns how many flows the flow's account may have: those that a pod opens, and as many that are
/// opened from outside to it. Flows of other NATs on the node have together as many as a pod. There
/// is no limit to flows of the node that must be translated.
#[inline(always)]
fn quota<E: Node>(node: &E, flow: &Flow) -> i64 {
    let slot = flow.account() % OUTSIDE_ACCOUNTS;
    let own = node.pod(slot).map_or(0, |pod| pod.flow_quota);
    let quota = match own {
        0 => node.settings().map_or(0, |settings| settings.flow_quota),
        own => own,
    };
    if is_essential(flow) || quota == 0 {
        i64::MAX
    } else {
        i64::from(quota)
    }
}

/// Returns whether the node itself needs the flow: its source port was changed.
#[inline(always)]
pub(crate) const fn is_essential(flow: &Flow) -> bool {
    const ESSENTIAL: u32 = FlowFlags::NODE | FlowFlags::SNAT;
    flow.flags & ESSENTIAL == ESSENTIAL
}

/// Result of inserting a pair of entries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inserted {
    /// Both are in the table.
    New,
    /// Another CPU has inserted the same flow.
    Before,
    /// The replies' tuple is another flow's.
    Not,
}

/// Inserts both entries, the reply's first, and appends the flow to the clock.
#[inline(always)]
fn insert_pair<E: Node>(node: &mut E, work: &mut Work) -> Decision<Inserted> {
    work.pair.original.flow.seen = work.headers.seen;
    if work.headers.transport == Transport::Tcp {
        tcp::start(work);
    }
    let flow_id = node.random();
    work.pair.original.flow.flow_id = flow_id;
    work.pair.reply.flow.flow_id = flow_id;
    work.pair.original.flow.packets = 1;
    work.pair.original.flow.bytes = u64::from(work.headers.length);
    if !insert_reply(node, work)? {
        return Ok(Inserted::Not);
    }
    match node.insert_flow(&work.pair.original.key, &work.pair.original.flow) {
        Insertion::Done => {
            work.translated = work.pair.original.flow.translated;
            node.count_flow(work.pair.original.flow.pod);
            work.clock_entry.key = work.pair.original.key;
            work.clock_entry.flow_id = work.pair.original.flow.flow_id;
            work.clock_entry.due = eviction::due(node, work.headers.tuple.protocol, work.now);
            work.clock_full = u32::from(!node.push_clock(&work.clock_entry));
            Ok(Inserted::New)
        }
        Insertion::Full => {
            node.remove_flow(&work.pair.reply.key);
            Err(DropReason::FlowTableFull)
        }
        Insertion::Exists => {
            // Another CPU has inserted the same flow first: its mapping is used for this packet as
            // well.
            node.remove_flow(&work.pair.reply.key);
            let Some(entry) = node.flow(&work.pair.original.key) else {
                return Ok(Inserted::Not);
            };
            work.translated = node.read(entry).translated;
            Ok(Inserted::Before)
        }
    }
}

/// Inserts the reply's entry, which reserves the port: it comes first, and fails where the tuple is
/// taken.
#[inline(always)]
fn insert_reply<E: Node>(node: &mut E, work: &mut Work) -> Decision<bool> {
    for last in [false, true] {
        match node.insert_flow(&work.pair.reply.key, &work.pair.reply.flow) {
            Insertion::Done => return Ok(true),
            Insertion::Full => return Err(DropReason::FlowTableFull),
            Insertion::Exists => {}
        }
        if last || !reap(node, work) {
            return Ok(false);
        }
    }
    Ok(false)
}

/// Removes the flow that has the reply's tuple, if it is dead.
#[inline(always)]
fn reap<E: Node>(node: &mut E, work: &mut Work) -> bool {
    let Some(entry) = node.flow(&work.pair.reply.key) else {
        return true;
    };
    let flow = node.read(entry);
    work.translated = flow.translated.reverse();
    if flow_state(
        node,
        &work.pair.reply.key,
        &flow,
        &work.translated,
        work.now,
        Need::None,
    ) == FlowState::Alive
    {
        return false;
    }
    let original = flow.flags & FlowFlags::ORIGINAL != 0;
    discard(node, &work.pair.reply.key, &work.translated, original);
    true
}

/// How much a place in the flow table is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Not at all: flows live until their timeout.
    None,
    /// Finished flows give way.
    Finished,
    /// Connections that have been idle for long give way as well.
    Idle,
}

/// State of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowState {
    /// Alive.
    Alive,
    /// Idle for longer than the timeout of its protocol and state, or finished where a place is
    /// needed.
    TimedOut,
    /// Its pod is gone.
    Stale,
    /// The node has lost the address or the uplink that the flow was masqueraded with.
    AddressGone,
}

/// Returns the state of the entry `flow` at `key`, whose other direction is at `opposite`. Where a
/// place is needed, flows that give way count as timed out.
#[inline(always)]
pub(crate) fn flow_state<E: Node>(
    node: &E,
    key: &Tuple,
    flow: &Flow,
    opposite: &Tuple,
    now: u32,
    need: Need,
) -> FlowState {
    if is_stale(node, flow) || has_lost_client(node, flow) {
        return FlowState::Stale;
    }
    if has_address_gone(node, key, flow, opposite) {
        return FlowState::AddressGone;
    }
    let Some(settings) = node.settings() else {
        return FlowState::Alive;
    };
    let timed_out = match other_direction(node, key, opposite) {
        Some(other) => {
            is_expired(flow, &other, key.protocol, &settings.timeouts, now)
                || (need != Need::None && is_finished(flow, &other, key.protocol, now))
                || (need == Need::Idle && is_long_idle(flow, &other, now))
        }
        None => now.saturating_sub(flow.created) >= HALF_PAIR,
    };
    if timed_out {
        FlowState::TimedOut
    } else {
        FlowState::Alive
    }
}

/// Returns whether the pod is gone that has opened a flow to another pod, and that the flow counts
/// for.
#[inline(always)]
fn has_lost_client<E: Node>(node: &E, flow: &Flow) -> bool {
    flow.flags & FlowFlags::FROM_POD != 0 && node.interface(flow.uplink).is_none()
}

/// Returns whether a masqueraded flow's address or uplink is gone, by the rules of the kernel's
/// MASQUERADE. The address is read where it is a destination: in a tuple that need not be copied
/// for that.
#[inline(always)]
fn has_address_gone<E: Node>(node: &E, key: &Tuple, flow: &Flow, opposite: &Tuple) -> bool {
    if flow.flags & FlowFlags::SNAT == 0 || flow.flags & FlowFlags::FROM_POD != 0 {
        return false;
    }
    let source = if flow.flags & FlowFlags::ORIGINAL == 0 {
        &key.destination
    } else {
        &opposite.destination
    };
    !node.is_local(source) || node.uplink(flow.uplink).is_none()
}

/// Returns whether a flow has been idle for longer than its timeout. The two directions may be
/// given in either order.
#[inline(always)]
pub fn is_expired(one: &Flow, other: &Flow, protocol: u8, timeouts: &Timeouts, now: u32) -> bool {
    now.saturating_sub(last_seen(one, other)) >= timeout(one.seen, other.seen, protocol, timeouts)
}

/// Returns the time of the last packet of either direction.
#[inline(always)]
pub(crate) const fn last_seen(one: &Flow, other: &Flow) -> u32 {
    if one.last_seen > other.last_seen {
        one.last_seen
    } else {
        other.last_seen
    }
}

/// Returns the idle timeout in seconds, by what the two directions have seen ([`Seen`] bits).
#[inline(always)]
pub const fn timeout(one: u32, other: u32, protocol: u8, timeouts: &Timeouts) -> u32 {
    let replied = one & other & Seen::PACKET != 0;
    match protocol {
        protocol::TCP => tcp::timeout(one, other, timeouts),
        protocol::UDP if replied => timeouts.udp_stream,
        protocol::UDP => timeouts.udp_single,
        protocol::ICMP | protocol::ICMPV6 => timeouts.icmp,
        _ => timeouts.other,
    }
}

#[cfg(test)]
mod tests;
