//! Room in the flow table: a clock hand that forgets dead flows, and who goes first when there are none.
//!
//! Works without the agent. Bounded: a new flow pays for two looks at most, one of a pod with half the flows that it may have
//! for eight, and one that finds the table full for sixteen. Where room is needed, connections that were closed and questions
//! that were answered go before their time: how many of those a pod may have in a minute is not how many flows it may have. A
//! look at a flow that nothing was heard of for a while finds nothing of it in any cache, so the hand rests until it is
//! worth one.

use abi::{Flow, FlowFlags, Seen, Tuple, Turn, protocol};

use crate::flow::{Fate, discard, fate};
use crate::node::Node;

/// How many flows are looked at for each new one: the hand is faster than the table fills.
const LOOKS: u32 = 2;
/// How many where the pod might be refused one otherwise: if one in eight is over, there is room for the new one.
const LOOKS_IN_NEED: u32 = 8;
/// How many flows are looked at when the table is full.
const SEARCH: u32 = 16;

/// Notes of the hand. All-zero bytes are a valid value.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Hand {
    /// The turn being looked at.
    pub turn: Turn,
    /// The flow whose turn it is.
    pub flow: Flow,
    /// The key of its other direction.
    pub opposite: Tuple,
    /// The flow that is to make room.
    pub victim: Turn,
    /// The key of its other direction.
    pub victim_opposite: Tuple,
    /// How many flows its pod has, or how many one must have to be taken instead.
    pub most: i64,
    /// When it was made.
    pub victim_created: u32,
    /// Until when the flow that had waited longest was not worth a look.
    pub rests_until: u32,
    /// Its pod.
    pub pod: u32,
    /// Whether there is a victim.
    pub found: u32,
    /// Whether a dead flow was forgotten.
    pub freed: u32,
    /// Seconds of `CLOCK_MONOTONIC`.
    pub now: u32,
}

/// What a look at the next flow found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// No flow waits.
    Nobody,
    /// The flow was forgotten before.
    Gone,
    /// The flow was dead, and is forgotten now.
    Freed,
    /// It lives.
    Alive,
}

/// Looks at the flows that have waited longest, if they are due or their room is needed, and forgets those that are dead.
#[inline(always)]
pub(crate) fn turn<E: Node>(node: &mut E, hand: &mut Hand, now: u32, needed: bool) {
    hand.now = now;
    let looks = if needed { LOOKS_IN_NEED } else { LOOKS };
    for _ in 0..looks {
        if !needed && rests(node, hand) {
            return;
        }
        match look(node, hand, needed) {
            Look::Nobody => return,
            Look::Gone | Look::Freed => {}
            Look::Alive => {
                hand.turn.due = due(node, hand.turn.key.protocol, now);
                node.await_turn(&hand.turn);
            }
        }
    }
}

/// Whether the flow that has waited longest is not worth a look yet. Until it is, which one that is need not be asked again:
/// those behind it wait in any case.
#[inline(always)]
fn rests<E: Node>(node: &E, hand: &mut Hand) -> bool {
    if hand.rests_until <= hand.now && node.next_turn(&mut hand.turn) {
        hand.rests_until = hand.turn.due;
    }
    hand.rests_until > hand.now
}

/// When a flow of this protocol that lives now is worth a look: when most like it have ended. Not what its own state would
/// say, because those behind it wait as well.
#[inline(always)]
pub(crate) fn due<E: Node>(node: &E, protocol: u8, now: u32) -> u32 {
    let Some(settings) = node.settings() else {
        return 0;
    };
    let timeouts = &settings.timeouts;
    let rest = match protocol {
        protocol::TCP => timeouts.tcp_closing,
        protocol::UDP => timeouts.udp_single,
        _ => timeouts.icmp,
    };
    now.saturating_add(rest)
}

/// Makes room for a flow of `pod` in a full table: a dead flow goes, or else the youngest flow without a reply of the
/// pod that has most flows, among those looked at. Never one of a pod that has no more flows than the newcomer's.
#[inline(always)]
pub(crate) fn make<E: Node>(node: &mut E, hand: &mut Hand, pod: u32, now: u32) -> bool {
    hand.now = now;
    hand.found = 0;
    hand.freed = 0;
    hand.pod = 0;
    hand.most = if pod == 0 { 0 } else { node.live_flows(pod) };
    for _ in 0..SEARCH {
        match look(node, hand, true) {
            Look::Nobody => break,
            Look::Gone => {}
            Look::Freed => {
                hand.freed = 1;
                break;
            }
            Look::Alive => weigh(node, hand),
        }
    }
    if hand.freed != 0 {
        if hand.found != 0 {
            node.await_turn(&hand.victim);
        }
        return true;
    }
    if hand.found == 0 {
        return false;
    }
    discard(node, &hand.victim.key, &hand.victim_opposite, true);
    node.count_evicted(hand.pod);
    true
}

/// Takes a turn, and judges the flow, by whether room is needed.
#[inline(always)]
fn look<E: Node>(node: &mut E, hand: &mut Hand, needed: bool) -> Look {
    if !node.take_turn(&mut hand.turn) {
        return Look::Nobody;
    }
    let Some(entry) = node.flow(&hand.turn.key) else {
        return Look::Gone;
    };
    hand.flow = node.read(entry);
    // Only an original direction waits, and a flow that came later under the same key waits by itself.
    if hand.flow.ticket != hand.turn.ticket || hand.flow.flags & FlowFlags::ORIGINAL == 0 {
        return Look::Gone;
    }
    hand.opposite = hand.flow.translated.reverse();
    let Hand {
        turn,
        flow,
        opposite,
        now,
        ..
    } = hand;
    if fate(node, &turn.key, flow, opposite, *now, needed) == Fate::Alive {
        return Look::Alive;
    }
    discard(node, &turn.key, opposite, true);
    Look::Freed
}

/// Keeps the better victim of two, and lets the other wait again.
#[inline(always)]
fn weigh<E: Node>(node: &mut E, hand: &mut Hand) {
    let live = node.live_flows(hand.flow.pod);
    let younger =
        hand.found != 0 && hand.flow.pod == hand.pod && hand.flow.created >= hand.victim_created;
    let better = hand.flow.pod != 0 && (live > hand.most || younger);
    if !better || has_reply(node, &hand.opposite) {
        node.await_turn(&hand.turn);
        return;
    }
    if hand.found != 0 {
        node.await_turn(&hand.victim);
    }
    hand.victim = hand.turn;
    hand.victim_created = hand.flow.created;
    hand.victim_opposite = hand.opposite;
    hand.most = live;
    hand.pod = hand.flow.pod;
    hand.found = 1;
}

#[inline(always)]
fn has_reply<E: Node>(node: &E, opposite: &Tuple) -> bool {
    match node.flow(opposite) {
        Some(entry) => node.read(entry).seen & Seen::PACKET != 0,
        None => false,
    }
}

#[cfg(test)]
mod tests;
