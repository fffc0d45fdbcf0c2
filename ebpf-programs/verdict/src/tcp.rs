//! TCP state of a flow: which SYN, FIN and RST are the connection's own.
//!
//! A sender that is not on the path can forge all of a segment but the sequence numbers. So a
//! segment changes the state of an established flow only if it fits them (RFC 5961):
//!
//! - A RST resets the flow if its sequence number is the one that the receiver has acknowledged
//!   last. A RST up to [`WINDOW`] behind it may follow data that is not acknowledged yet: the flow
//!   then waits for a shorter time, until a packet contradicts. Any other RST changes nothing.
//! - A FIN closes its direction up to [`WINDOW`] behind the acknowledged sequence number, or up to
//!   [`IN_FLIGHT`] behind it if the receiver acknowledges it.
//! - A SYN opens a connection that is closed or not established. On an established one, the
//!   receiver must acknowledge it.
//!
//! The last acknowledgment number of each direction is in the flow's entry, or with the pending
//! counters of the flow cache: packets that hit the cache store it there. The sequence numbers are
//! compared for packets with SYN, FIN or RST only.

use abi::{Flow, FlowFlags, Seen, Timeouts};

use crate::flow_cache::{FlowCache, place_of_tuple, shard};
use crate::node::Node;
use crate::work::{Headers, Hook, Work};

/// Sequence numbers behind the acknowledged one within which a FIN or RST counts as the sender's.
const WINDOW: u32 = 1 << 16;

/// Most bytes that a sender has on the way.
const IN_FLIGHT: u32 = 1 << 24;

/// Idle timeout in seconds after a RST that may be the connection's own. Netfilter waits as long
/// for an acknowledgment of data (`nf_conntrack_tcp_timeout_unacknowledged`).
const SUSPECTED: u32 = 300;

/// Flags that change the state of a connection.
const CONTROL: u32 = Seen::SYN | Seen::FIN | Seen::RST;
/// Bits of an entry for which every packet is compared.
const WATCHED: u32 = Seen::AWAITS_SYN | Seen::AWAITS_FIN | Seen::RESET_SUSPECTED;
/// Bits that a connection starts without.
const STATE: u32 = CONTROL | Seen::ACK | Seen::FIN_CONFIRMED | WATCHED;

/// Fills what the first packet says about the sequence numbers of [`Work::pair`].
#[inline(always)]
pub(crate) fn start(work: &mut Work) {
    let headers = &work.headers;
    work.pair.original.flow.acknowledged = headers.acknowledgment;
    if opens(headers) {
        work.pair.reply.flow.awaited = headers.next_sequence;
        work.pair.reply.flow.seen = Seen::AWAITS_SYN;
    }
}

/// Updates both directions of the flow for a TCP packet whose `entry` is a copy of `flow`. Returns
/// the [`Seen`] bits to add to the entry.
#[inline(always)]
pub(crate) fn observe<E: Node + FlowCache>(
    node: &mut E,
    entry: E::Entry,
    flow: &Flow,
    work: &mut Work,
) -> u32 {
    let seen = work.headers.seen;
    if seen & CONTROL == 0 && flow.seen & WATCHED == 0 {
        if seen & Seen::ACK != 0 {
            node.set_acknowledged(entry, work.headers.acknowledgment);
        }
        return seen;
    }
    work.pair.reply.key = work.translated.reverse();
    let Some(opposite) = node.flow(&work.pair.reply.key) else {
        return Seen::PACKET;
    };
    let other = node.read(opposite);
    if other.flow_id != flow.flow_id {
        return Seen::PACKET;
    }
    if seen & Seen::RST != 0 {
        return reset(node, flow, &other, work);
    }
    node.set_seen(entry, flow.seen & !Seen::RESET_SUSPECTED);
    if opens(&work.headers) {
        return open(node, [entry, opposite], [flow, &other], work);
    }
    answer(node, [entry, opposite], [flow, &other], work);
    if seen & Seen::FIN != 0 {
        let behind = fin_distance(node, &other, work);
        if behind >= IN_FLIGHT {
            return Seen::PACKET;
        }
        if behind >= WINDOW {
            node.set_awaited(opposite, work.headers.next_sequence);
            node.set_seen(opposite, other.seen | Seen::AWAITS_FIN);
            start_epochs(node, work);
            return Seen::PACKET;
        }
    }
    if seen & Seen::ACK != 0 {
        node.set_acknowledged(entry, work.headers.acknowledgment);
    }
    seen
}

/// Returns whether the packet opens a connection.
#[inline(always)]
const fn opens(headers: &Headers) -> bool {
    headers.seen & (Seen::SYN | Seen::ACK | Seen::RST) == Seen::SYN
}

/// Returns the [`Seen`] bits that a RST adds.
#[inline(always)]
fn reset<E: Node + FlowCache>(node: &mut E, flow: &Flow, other: &Flow, work: &mut Work) -> u32 {
    const RESET: u32 = Seen::PACKET | Seen::RST;
    if flow.seen & Seen::AWAITS_SYN != 0 && acknowledges_awaited(flow, &work.headers) {
        return RESET;
    }
    if other.seen & Seen::ACK == 0 {
        // The other direction has acknowledged nothing: only a SYN could be answered.
        return if flow.seen & Seen::AWAITS_SYN != 0 {
            Seen::PACKET
        } else {
            RESET
        };
    }
    match distance(node, other, work, 0) {
        0 => RESET,
        behind if behind < WINDOW => {
            // The next packet must not hit the cache: it may contradict.
            start_epochs(node, work);
            Seen::PACKET | Seen::RESET_SUSPECTED
        }
        _ => Seen::PACKET,
    }
}

/// Returns the [`Seen`] bits that a SYN adds. Only the flow's client opens its connection again.
#[inline(always)]
fn open<E: Node>(
    node: &mut E,
    [entry, opposite]: [E::Entry; 2],
    [flow, other]: [&Flow; 2],
    work: &mut Work,
) -> u32 {
    if flow.flags & FlowFlags::ORIGINAL == 0 {
        return work.headers.seen;
    }
    // The answer must not hit the cache: it says whether the SYN counts.
    start_epochs(node, work);
    node.set_awaited(opposite, work.headers.next_sequence);
    if is_established(flow.seen, other.seen) && !is_closed(flow.seen, other.seen) {
        node.set_seen(opposite, other.seen | Seen::AWAITS_SYN);
        return Seen::PACKET;
    }
    node.set_seen(entry, flow.seen & !STATE);
    node.set_seen(opposite, other.seen & !STATE | Seen::AWAITS_SYN);
    work.headers.seen
}

/// Records whether the packet acknowledges a SYN or FIN of the other direction.
#[inline(always)]
fn answer<E: Node>(
    node: &mut E,
    [entry, opposite]: [E::Entry; 2],
    [flow, other]: [&Flow; 2],
    work: &mut Work,
) {
    let own = flow.seen & !Seen::RESET_SUSPECTED;
    if !acknowledges_awaited(flow, &work.headers) {
        miss(node, entry, flow, work);
        return;
    }
    if flow.seen & Seen::AWAITS_FIN != 0 {
        node.set_seen(entry, own & !Seen::AWAITS_FIN | Seen::FIN_CONFIRMED);
    } else if flow.seen & Seen::AWAITS_SYN != 0 && work.headers.seen & Seen::SYN != 0 {
        if is_established(flow.seen, other.seen) {
            node.set_seen(opposite, other.seen & !STATE);
            node.set_seen(entry, own & !STATE);
        } else {
            node.set_seen(entry, own & !Seen::AWAITS_SYN);
        }
    }
}

/// Ends the wait of a direction that acknowledges something else: a SYN that the receiver does not
/// know, or a FIN that it has passed without. Until then its packets must not hit the cache.
#[inline(always)]
fn miss<E: Node>(node: &mut E, entry: E::Entry, flow: &Flow, work: &mut Work) {
    if work.headers.seen & (Seen::SYN | Seen::ACK) != Seen::ACK {
        return;
    }
    let ahead = flow.awaited.wrapping_sub(work.headers.acknowledgment);
    let own = flow.seen & !(Seen::RESET_SUSPECTED | Seen::AWAITS_SYN);
    if ahead > IN_FLIGHT {
        node.set_seen(entry, own & !Seen::AWAITS_FIN);
    } else {
        node.set_seen(entry, own);
        work.recorder.mark_uncacheable();
    }
}

/// Returns whether the packet has the acknowledgment number that its direction is to confirm.
#[inline(always)]
const fn acknowledges_awaited(flow: &Flow, headers: &Headers) -> bool {
    headers.seen & Seen::ACK != 0 && headers.acknowledgment == flow.awaited
}

/// Returns how far a FIN is behind what the `other` direction has acknowledged; 0 where that has
/// acknowledged nothing.
#[inline(always)]
fn fin_distance<E: Node + FlowCache>(node: &mut E, other: &Flow, work: &mut Work) -> u32 {
    if other.seen & Seen::ACK == 0 {
        return 0;
    }
    distance(node, other, work, WINDOW - 1)
}

/// Returns how far the packet's sequence number is behind the last one that the `other` direction
/// has acknowledged. Looks for acknowledgments in the flow cache only where the one in the entry is
/// more than `near` away.
#[inline(always)]
fn distance<E: Node + FlowCache>(node: &mut E, other: &Flow, work: &mut Work, near: u32) -> u32 {
    let sequence = work.headers.sequence;
    let mut least = sequence.wrapping_sub(other.acknowledged);
    if least <= near {
        return least;
    }
    for hook in [Hook::UplinkIn, Hook::UplinkOut, Hook::FromPod] {
        if is_cached_at(other, hook) {
            let place = place_of_tuple(&work.pair.reply.key, hook);
            let bucket = place.within(node.cache_capacity());
            let behind = node.pending_distance(bucket, other.flow_id, sequence);
            if behind < least {
                least = behind;
            }
        }
    }
    least
}

/// Returns whether packets of a direction may have cache entries at a hook. Entries of leaving
/// packets are at the pod's hook as well.
#[inline(always)]
const fn is_cached_at(flow: &Flow, hook: Hook) -> bool {
    let applies = match hook {
        Hook::FromPod => FlowFlags::FROM_POD | FlowFlags::UPLINK_OUT,
        Hook::UplinkIn | Hook::UplinkOut => hook.flag(),
    };
    flow.flags & applies != 0
}

/// Invalidates the cache entries of both directions: the next packet of each is compared.
#[inline(always)]
fn start_epochs<E: Node>(node: &mut E, work: &Work) {
    node.start_epoch(shard(&work.headers.tuple));
    node.start_epoch(shard(&work.pair.reply.key));
}

/// Returns whether both directions have acknowledged something, by their [`Seen`] bits.
#[inline(always)]
pub(crate) const fn is_established(one: u32, other: u32) -> bool {
    one & other & Seen::ACK != 0
}

/// Returns whether a connection was reset, or closed by both sides.
#[inline(always)]
pub(crate) const fn is_closed(one: u32, other: u32) -> bool {
    (one | other) & Seen::RST != 0 || (has_closed(one, other) && has_closed(other, one))
}

/// Returns whether the direction `one` was closed by a FIN.
#[inline(always)]
const fn has_closed(one: u32, other: u32) -> bool {
    one & Seen::FIN != 0 || other & Seen::FIN_CONFIRMED != 0
}

/// Returns the idle timeout in seconds, by the [`Seen`] bits of both directions.
#[inline(always)]
pub(crate) const fn timeout(one: u32, other: u32, timeouts: &Timeouts) -> u32 {
    let either = one | other;
    if either & Seen::RST != 0 {
        return timeouts.tcp_reset;
    }
    if either & (Seen::FIN | Seen::FIN_CONFIRMED) != 0 {
        return timeouts.tcp_closing;
    }
    // A client that sends a SYN and never an ACK, as in a SYN flood, has not established a
    // connection.
    if !is_established(one, other) {
        return timeouts.tcp_opening;
    }
    if either & Seen::RESET_SUSPECTED == 0 {
        return timeouts.tcp_established;
    }
    // Never shorter than after a FIN, never longer than without the RST.
    let suspected = if timeouts.tcp_closing > SUSPECTED {
        timeouts.tcp_closing
    } else {
        SUSPECTED
    };
    if suspected < timeouts.tcp_established {
        suspected
    } else {
        timeouts.tcp_established
    }
}

#[cfg(test)]
mod tests;
