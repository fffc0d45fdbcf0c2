//! Eviction from the flow table: a clock hand that removes dead flows, and a victim where there are
//! none.
//!
//! Works without the agent. Bounded: a new flow pays for two inspections at most, one of an account
//! that has used half of its quota for eight, and one for which there is no place for twice
//! sixteen. Near the quota and in a full table, finished flows (closed connections, answered
//! requests) are removed before their timeout: how many of those a pod may have in a minute is not
//! how many flows it may have at once. In a full table, and at the account's own quota, connections
//! that were idle for hours give way as well. The entry of a flow that was idle for a while is in
//! no CPU cache, so the hand rests until an inspection is worth that.
//!
//! Where no flow is dead, one that is alive gives way (decision 103):
//!
//! - At the quota of an account, only its own, and only one that is not assured ([`Progress`]).
//! - In a full table, one of an account with more flows than the newcomer's, or of the newcomer's
//!   account itself if it is not assured. Of accounts with about as many flows, those that are not
//!   assured go first, at random; else the longest idle flow of the account with most flows.
//!
//! The same holds for source ports: where all that are tried are taken, a flow gives way whose
//! account has far more flows.

use abi::{ClockEntry, Flow, FlowFlags, Tuple, protocol};

use crate::flow::{
    FlowState, MIN_IDLE, Need, Progress, discard, flow_state, is_essential, last_seen,
};
use crate::node::Node;
use crate::outcome::code_of_variants;
use crate::work::{QuotaUsage, Work};

/// At its quota, an account needs no more flows than this to choose from.
const CHOICES: u32 = 4;
/// An account may take a place from an assured flow of another one that has more flows by this part
/// of its own. Without a difference, two accounts would take places from each other for ever.
const LEAD: i64 = 8;
/// An account with more than so many times the flows of another one loses a flow before it, however
/// far their flows have come.
const FAR_MORE: i64 = 2;

/// [`ClockHand::idle_account`] for the connections of all accounts.
const ANY_ACCOUNT: u32 = u32::MAX;
/// [`ClockHand::idle_account`] for no connections.
const NO_ACCOUNT: u32 = u32::MAX - 1;

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
    /// Number of flows of the newcomer's account.
    pub live: i64,
    /// Number of flows of the victim's account.
    pub victim_live: i64,
    /// The newcomer's account.
    pub account: u32,
    /// Whether the account has used its quota, so that only its own flows are victims; 0 or 1.
    pub at_quota: u32,
    /// The victim's account.
    pub victim_account: u32,
    /// Slot of the victim's pod.
    pub victim_pod: u32,
    /// `Progress` of the victim.
    pub victim_progress: u32,
    /// Time of the victim's last packet, in seconds of `CLOCK_MONOTONIC`.
    pub victim_last_seen: u32,
    /// Number of flows that the victim was chosen from at random; 0 without a victim.
    pub choices: u32,
    /// Whether a dead flow was removed whose place the newcomer can take; 0 or 1.
    pub freed: u32,
    /// Seconds of `CLOCK_MONOTONIC` before which no inspection is due.
    pub idle_until: u32,
    /// Seconds of `CLOCK_MONOTONIC`.
    pub now: u32,
    /// The account whose long idle connections give way; `ANY_ACCOUNT` or `NO_ACCOUNT`.
    pub idle_account: u32,
    /// Always zero.
    pub reserved: u32,
}

/// What the flows at the head of the clock are inspected for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// Dead flows that are due.
    Due,
    /// Dead and finished flows: places are rare.
    Finished,
    /// A flow that gives its place to the newcomer.
    Victim,
}

code_of_variants!(Search: Finished, Victim; else Due);

/// Prepares [`crate::hooks::advance_clock_hand`].
#[inline(always)]
pub(crate) fn start_advance(work: &mut Work) -> Search {
    work.hand.now = work.now;
    work.hand.idle_account = NO_ACCOUNT;
    if work.quota_usage != QuotaUsage::LOW || work.clock_full != 0 {
        Search::Finished
    } else {
        Search::Due
    }
}

/// Ends [`crate::hooks::advance_clock_hand`].
#[inline(always)]
pub(crate) fn finish_advance<E: Node>(node: &mut E, work: &Work) {
    if work.clock_full != 0 {
        // If the clock is still full, the flow is left to the sweep.
        node.push_clock(&work.clock_entry);
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

/// Prepares [`crate::hooks::evict`] for a newcomer without a place.
#[inline(always)]
pub(crate) fn start_eviction<E: Node>(node: &E, work: &mut Work) {
    let hand = &mut work.hand;
    let newcomer = &work.pair.original.flow;
    hand.now = work.now;
    hand.account = newcomer.account();
    hand.live = if is_essential(newcomer) {
        0
    } else {
        node.live_flows(hand.account)
    };
    hand.at_quota = u32::from(work.quota_usage == QuotaUsage::FULL);
    hand.idle_account = if hand.at_quota != 0 {
        hand.account
    } else {
        ANY_ACCOUNT
    };
    hand.choices = 0;
    hand.freed = 0;
}

/// Ends [`crate::hooks::evict`]: evicts the victim, unless a dead flow has left its place. Returns
/// whether there is a place now.
#[inline(always)]
pub(crate) fn finish_eviction<E: Node>(node: &mut E, work: &mut Work) -> bool {
    let hand = &work.hand;
    if hand.freed != 0 {
        if hand.choices != 0 {
            // The victim is not evicted after all: it goes back into the clock.
            node.push_clock(&hand.victim);
        }
    } else if hand.choices != 0 {
        discard(node, &hand.victim.key, &hand.victim_opposite, true);
        node.count_evicted(hand.victim_pod);
    } else {
        return false;
    }
    if hand.at_quota != 0 {
        work.quota_usage = QuotaUsage::EVICTED;
    }
    true
}

/// Takes the entry at the head of the clock, and removes its flow if it is dead, or if it is
/// finished and places are rare. A flow that lives goes back into the clock, or becomes the victim.
/// Returns whether to inspect another one.
#[inline(always)]
pub(crate) fn inspect<E: Node>(node: &mut E, hand: &mut ClockHand, search: Search) -> bool {
    if (search == Search::Due && is_resting(node, hand)) || !node.pop_clock(&mut hand.entry) {
        return false;
    }
    let Some(flow) = node.flow(&hand.entry.key) else {
        return true;
    };
    hand.flow = node.read(flow);
    // Only original directions have clock entries, and a newer flow with the same key has an entry
    // of its own.
    if hand.flow.flow_id != hand.entry.flow_id || hand.flow.flags & FlowFlags::ORIGINAL == 0 {
        return true;
    }
    hand.opposite = hand.flow.translated.reverse();
    let need = need(hand, search);
    let ClockHand {
        entry,
        flow,
        opposite,
        now,
        ..
    } = hand;
    let is_alive = flow_state(node, &entry.key, flow, opposite, *now, need) == FlowState::Alive;
    if !is_alive {
        discard(node, &entry.key, opposite, true);
    }
    match (search, is_alive) {
        (Search::Victim, true) => {
            pick_victim(node, hand);
            hand.at_quota == 0 || hand.choices < CHOICES
        }
        (Search::Victim, false) => {
            let is_freed = hand.at_quota == 0 || hand.flow.account() == hand.account;
            hand.freed = u32::from(is_freed);
            !is_freed
        }
        (Search::Due | Search::Finished, true) => {
            hand.entry.due = due(node, hand.entry.key.protocol, hand.now);
            node.push_clock(&hand.entry);
            true
        }
        (Search::Due | Search::Finished, false) => true,
    }
}

/// Evicts the flow that has the replies' tuple of [`Work::pair`], if its account has far more flows
/// than the newcomer's, and it is not in use. Returns whether the tuple is free.
#[inline(always)]
pub(crate) fn take_port<E: Node>(node: &mut E, work: &mut Work) -> bool {
    let hand = &mut work.hand;
    let key = &work.pair.reply.key;
    let Some(entry) = node.flow(key) else {
        return false;
    };
    hand.flow = node.read(entry);
    hand.opposite = hand.flow.translated.reverse();
    let account = hand.flow.account();
    let own = work.pair.original.flow.account();
    if account == 0 || account == own {
        return false;
    }
    let Some(opposite) = node.flow(&hand.opposite) else {
        return false;
    };
    let other = node.read(opposite);
    let is_original = hand.flow.flags & FlowFlags::ORIGINAL != 0;
    let progress = if is_original {
        Progress::of(&hand.flow, &other, key.protocol)
    } else {
        Progress::of(&other, &hand.flow, key.protocol)
    };
    let idle = work.now.saturating_sub(last_seen(&hand.flow, &other));
    let is_in_use = progress == Progress::ASSURED && idle < MIN_IDLE;
    if is_in_use || node.live_flows(account) <= FAR_MORE * node.live_flows(own) {
        return false;
    }
    discard(node, key, &hand.opposite, is_original);
    node.count_evicted(hand.flow.pod);
    true
}

/// Returns how much the place of the flow under inspection is needed.
#[inline(always)]
const fn need(hand: &ClockHand, search: Search) -> Need {
    if hand.idle_account == ANY_ACCOUNT || hand.idle_account == hand.flow.account() {
        return Need::Idle;
    }
    match search {
        Search::Due => Need::None,
        Search::Finished | Search::Victim => Need::Finished,
    }
}

/// Keeps the better of two victims, the flow under inspection and the one before, and puts the
/// other back into the clock.
#[inline(always)]
fn pick_victim<E: Node>(node: &mut E, hand: &mut ClockHand) {
    let Some(opposite) = node.flow(&hand.opposite) else {
        node.push_clock(&hand.entry);
        return;
    };
    let other = node.read(opposite);
    let progress = Progress::of(&hand.flow, &other, hand.entry.key.protocol);
    let account = hand.flow.account();
    let live = node.live_flows(account);
    let last_seen = last_seen(&hand.flow, &other);
    let is_better = gives_way(hand, live, progress)
        && is_better(node.random(), hand, live, progress, last_seen);
    if !is_better {
        node.push_clock(&hand.entry);
        return;
    }
    if hand.choices != 0 {
        node.push_clock(&hand.victim);
    }
    let of_same_kind =
        hand.choices != 0 && account == hand.victim_account && progress == hand.victim_progress;
    if !of_same_kind {
        hand.choices = 1;
    }
    hand.victim = hand.entry;
    hand.victim_opposite = hand.opposite;
    hand.victim_live = live;
    hand.victim_account = account;
    hand.victim_pod = hand.flow.pod;
    hand.victim_progress = progress;
    hand.victim_last_seen = last_seen;
}

/// Returns whether the flow under inspection gives way to the newcomer. Its account has `live`
/// flows.
#[inline(always)]
const fn gives_way(hand: &ClockHand, live: i64, progress: u32) -> bool {
    let account = hand.flow.account();
    let is_assured = progress == Progress::ASSURED;
    if account == hand.account {
        !is_assured && !is_essential(&hand.flow)
    } else if hand.at_quota != 0 || account == 0 {
        false
    } else if is_assured {
        live > hand.live + hand.live / LEAD
    } else {
        live > hand.live
    }
}

/// Returns whether the flow under inspection is a better victim than the one before. Counts the
/// flows that are equally good, of which one is chosen by the `random` number.
#[inline(always)]
fn is_better(random: u32, hand: &mut ClockHand, live: i64, progress: u32, last_seen: u32) -> bool {
    if hand.choices == 0 {
        return true;
    }
    let is_same_account = hand.flow.account() == hand.victim_account;
    // An account with few flows loses none while one with far more is seen.
    if !is_same_account && live > FAR_MORE * hand.victim_live {
        return true;
    }
    if !is_same_account && hand.victim_live > FAR_MORE * live {
        return false;
    }
    if progress != hand.victim_progress {
        return progress > hand.victim_progress;
    }
    if !is_same_account {
        return live > hand.victim_live;
    }
    if progress == Progress::ASSURED {
        return last_seen < hand.victim_last_seen;
    }
    hand.choices += 1;
    (u64::from(random) * u64::from(hand.choices)) >> 32 == 0
}

#[cfg(test)]
mod tests;
