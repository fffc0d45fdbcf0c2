//! Eviction from the flow table: a clock hand that removes dead flows, and a victim where there are
//! none.
//!
//! Works without the agent. Bounded: a new flow pays for two inspections at most, one of a pod that
//! has used half of its quota for eight, and one that finds the table full for sixteen. Near the
//! quota and in a full table, finished flows (closed connections, answered requests) are removed
//! before their timeout: how many of those a pod may have in a minute is not how many flows it may
//! have at once. In a full table, and at the pod's own quota, connections that were idle for hours
//! give way as well. The entry of a flow that was idle for a while is in no CPU cache, so the hand
//! rests until an inspection is worth that.

use abi::{ClockEntry, Flow, FlowFlags, Seen, Tuple, protocol};

use crate::flow::{FlowState, Need, discard, flow_state};
use crate::node::Node;
use crate::work::QuotaUsage;

/// Flows inspected for each new one: two, so that the hand is faster than the table fills.
const INSPECTIONS: u32 = 2;
/// Flows inspected for each new one near the pod's quota: if one in eight is finished, there is a
/// place for the new one.
const INSPECTIONS_NEAR_QUOTA: u32 = 8;
/// Flows inspected when the table is full.
const INSPECTIONS_WHEN_FULL: u32 = 16;

/// [`ClockHand::idle_pod`] for the connections of all pods.
const ANY_POD: u32 = u32::MAX;

/// State of the clock hand, per CPU. All-zero bytes are a valid value.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ClockHand {
    /// The clock entry under inspection.
    pub entry: ClockEntry,
    /// The flow of that entry.
    pub flow: Flow,
    /// Key of the flow's other direction.
    pub opposite: Tuple,
    /// The clock entry of the flow to evict.
    pub victim: ClockEntry,
    /// Key of the victim's other direction.
    pub victim_opposite: Tuple,
    /// Number of flows of the victim's pod; before there is a victim, the number that its pod must
    /// exceed.
    pub max_live: i64,
    /// [`Flow::created`] of the victim.
    pub victim_created: u32,
    /// Seconds of `CLOCK_MONOTONIC` before which no inspection is due.
    pub idle_until: u32,
    /// Slot of the victim's pod.
    pub victim_pod: u32,
    /// Whether there is a victim; 0 or 1.
    pub has_victim: u32,
    /// Whether a dead flow was removed; 0 or 1.
    pub freed: u32,
    /// Seconds of `CLOCK_MONOTONIC`.
    pub now: u32,
    /// Slot of the pod whose long idle connections give way; 0 for none, [`ANY_POD`] for all.
    pub idle_pod: u32,
    /// Always zero.
    pub reserved: u32,
}

/// Result of inspecting the flow at the head of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inspection {
    /// The clock is empty.
    Empty,
    /// The flow was removed before.
    Gone,
    /// The flow was dead, and is removed now.
    Reaped,
    /// The flow is alive.
    Alive,
}

/// Inspects the flows at the head of the clock, if they are due or a place is needed, and removes
/// dead ones. `pod` has used as much of its quota as `usage` says.
#[inline(always)]
pub(crate) fn advance<E: Node>(node: &mut E, hand: &mut ClockHand, now: u32, usage: u32, pod: u32) {
    let needed = usage != QuotaUsage::LOW;
    hand.now = now;
    hand.idle_pod = if usage == QuotaUsage::FULL { pod } else { 0 };
    let inspections = if needed {
        INSPECTIONS_NEAR_QUOTA
    } else {
        INSPECTIONS
    };
    for _ in 0..inspections {
        if !needed && is_resting(node, hand) {
            return;
        }
        match inspect_next(node, hand, needed) {
            Inspection::Empty => return,
            Inspection::Gone | Inspection::Reaped => {}
            Inspection::Alive => {
                hand.entry.due = due(node, hand.entry.key.protocol, now);
                node.push_clock(&hand.entry);
            }
        }
    }
}

/// Returns whether no inspection is due yet. The head's due time is cached until then: entries
/// behind the head wait in any case.
#[inline(always)]
fn is_resting<E: Node>(node: &E, hand: &mut ClockHand) -> bool {
    if hand.idle_until <= hand.now && node.peek_clock(&mut hand.entry) {
        hand.idle_until = hand.entry.due;
    }
    hand.idle_until > hand.now
}

/// Returns when a live flow of this protocol is due for inspection: when most flows like it have
/// ended. The flow's own state would give a later time, but entries behind it wait as well.
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

/// Evicts a flow from a full table for a new flow of `pod`. Removes a dead flow, or else, among
/// those inspected, the newest flow without a reply of the pod with most flows. Never evicts from a
/// pod that has no more flows than `pod`. Returns whether a place is free.
#[inline(always)]
pub(crate) fn evict<E: Node>(node: &mut E, hand: &mut ClockHand, pod: u32, now: u32) -> bool {
    hand.now = now;
    hand.idle_pod = ANY_POD;
    hand.has_victim = 0;
    hand.freed = 0;
    hand.victim_pod = 0;
    hand.max_live = if pod == 0 { 0 } else { node.live_flows(pod) };
    for _ in 0..INSPECTIONS_WHEN_FULL {
        match inspect_next(node, hand, true) {
            Inspection::Empty => break,
            Inspection::Gone => {}
            Inspection::Reaped => {
                hand.freed = 1;
                break;
            }
            Inspection::Alive => pick_victim(node, hand),
        }
    }
    if hand.freed != 0 {
        if hand.has_victim != 0 {
            // The victim is not evicted after all: it goes back into the clock.
            node.push_clock(&hand.victim);
        }
        return true;
    }
    if hand.has_victim == 0 {
        return false;
    }
    discard(node, &hand.victim.key, &hand.victim_opposite, true);
    node.count_evicted(hand.victim_pod);
    true
}

/// Takes the entry at the head of the clock, and removes its flow if it is dead, or if it is
/// finished and `needed`.
#[inline(always)]
fn inspect_next<E: Node>(node: &mut E, hand: &mut ClockHand, needed: bool) -> Inspection {
    if !node.pop_clock(&mut hand.entry) {
        return Inspection::Empty;
    }
    let Some(flow) = node.flow(&hand.entry.key) else {
        return Inspection::Gone;
    };
    hand.flow = node.read(flow);
    // Only original directions have clock entries, and a newer flow with the same key has an entry
    // of its own.
    if hand.flow.flow_id != hand.entry.flow_id || hand.flow.flags & FlowFlags::ORIGINAL == 0 {
        return Inspection::Gone;
    }
    hand.opposite = hand.flow.translated.reverse();
    let need = need(hand, needed);
    let ClockHand {
        entry,
        flow,
        opposite,
        now,
        ..
    } = hand;
    if flow_state(node, &entry.key, flow, opposite, *now, need) == FlowState::Alive {
        return Inspection::Alive;
    }
    discard(node, &entry.key, opposite, true);
    Inspection::Reaped
}

/// Returns how much the place of the flow under inspection is needed.
#[inline(always)]
const fn need(hand: &ClockHand, needed: bool) -> Need {
    let gives_way =
        hand.idle_pod == ANY_POD || (hand.idle_pod != 0 && hand.idle_pod == hand.flow.pod);
    if gives_way {
        Need::Idle
    } else if needed {
        Need::Finished
    } else {
        Need::None
    }
}

/// Keeps the better of two victims, and puts the other back into the clock.
#[inline(always)]
fn pick_victim<E: Node>(node: &mut E, hand: &mut ClockHand) {
    let live = node.live_flows(hand.flow.pod);
    let is_newer = hand.has_victim != 0
        && hand.flow.pod == hand.victim_pod
        && hand.flow.created >= hand.victim_created;
    let better = hand.flow.pod != 0 && (live > hand.max_live || is_newer);
    if !better || has_reply(node, &hand.opposite) {
        node.push_clock(&hand.entry);
        return;
    }
    if hand.has_victim != 0 {
        node.push_clock(&hand.victim);
    }
    hand.victim = hand.entry;
    hand.victim_created = hand.flow.created;
    hand.victim_opposite = hand.opposite;
    hand.max_live = live;
    hand.victim_pod = hand.flow.pod;
    hand.has_victim = 1;
}

/// Returns whether the direction at `opposite` has seen a packet.
#[inline(always)]
fn has_reply<E: Node>(node: &E, opposite: &Tuple) -> bool {
    match node.flow(opposite) {
        Some(entry) => node.read(entry).seen & Seen::PACKET != 0,
        None => false,
    }
}

#[cfg(test)]
mod tests;
