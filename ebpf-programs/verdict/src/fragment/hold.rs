//! Fragments that wait for the first one of their datagram. See decision 92.

use abi::{DatagramFlags, Direction, DropReason, HeldHeader, HeldKey, RING, Share};

use super::is_over;
use super::share::held_share;
use crate::fragment_store::FragmentStore;
use crate::node::Node;
use crate::packet::Packet;
use crate::work::{Hook, Work};

/// Returns whether a fragment that is ahead of the first one is held at this hook. The node
/// translates nothing that is for a pod's own address, and at the uplink's egress the order is that
/// of the ingress hooks.
#[inline(always)]
pub(super) fn is_held<E: Node>(env: &E, work: &Work, hook: Hook) -> bool {
    match hook {
        Hook::FromPod => true,
        Hook::UplinkIn => env.is_local(&work.headers.tuple.destination),
        Hook::UplinkOut => false,
    }
}

/// Holds the packet until the first fragment of its datagram arrives. Returns whether it is held,
/// or has been taken by the first fragment already.
///
/// The place of a fragment that still waits is taken over if it is the oldest of the share: that
/// fragment is counted as dropped.
#[inline(always)]
pub(crate) fn hold<E: Packet + Node + FragmentStore>(env: &mut E, work: &mut Work) -> bool {
    let share = held_share(work.fragment.key.share);
    let Some(number) = env.next_held(share) else {
        return false;
    };
    let place = (number & u64::from(RING - 1) & 0xffff) as u16;
    work.fragment.place = HeldKey {
        share,
        place,
        part: 0,
    };
    drop_held(env, work);
    let held = &mut work.fragment.held;
    held.datagram = work.fragment.key;
    held.length = env.len();
    held.seen = work.now;
    held.pod = work.pod;
    if !env.hold(&work.fragment.place, &work.fragment.held) {
        return false;
    }
    let Some(datagram) = env.datagram(&work.fragment.key) else {
        env.remove_held(&work.fragment.place);
        return false;
    };
    let bit = 1 << place;
    env.set_held(datagram, bit);
    // Another CPU may have processed the first fragment meanwhile. It has written the ports before
    // it took the held fragments: one of the two has this one.
    env.read_datagram(datagram, &mut work.fragment.datagram);
    // The ports of a complete datagram are not those of this one.
    let flags = work.fragment.datagram.flags & (DatagramFlags::PORTS | DatagramFlags::COMPLETE);
    if flags != DatagramFlags::PORTS || env.take_held(datagram, bit) == 0 {
        return true;
    }
    env.remove_held(&work.fragment.place);
    env.reinject();
    true
}

/// Drops the fragment that is held in [`super::FragmentWork::place`], and counts that.
#[inline(always)]
fn drop_held<E: Node + FragmentStore>(env: &mut E, work: &mut Work) {
    let Some(held) = env.held(&work.fragment.place) else {
        return;
    };
    work.fragment.held = *held;
    env.remove_held(&work.fragment.place);
    count_lost(env, &work.fragment.held);
}

/// Counts a held fragment whose first one has not arrived.
#[inline(always)]
pub fn count_lost<E: Node>(env: &mut E, held: &HeldHeader) {
    let direction = if held.datagram.share & Share::OUTSIDE == 0 {
        Direction::Egress
    } else {
        Direction::Ingress
    };
    let reason = DropReason::FragmentWithoutFirst;
    env.count_dropped(reason, held.pod, direction, held.length);
    env.report_lost(held, reason);
}

/// Returns whether a held fragment has expired.
#[inline(always)]
pub const fn has_expired(held: &HeldHeader, now: u32) -> bool {
    is_over(held.seen, now)
}

/// Sends the fragment that waits in a place, if it is of this datagram, through the hook again; for
/// place 0, the first fragment before it. Called for all places in ascending order, one by one: a
/// loop in here would make the verifier walk the body for each.
#[inline(always)]
pub(crate) fn release<E: Packet + Node + FragmentStore>(env: &mut E, work: &mut Work, place: u32) {
    if place == 0 {
        env.reinject();
    }
    if work.fragment.datagram.held >> (place & (RING - 1)) & 1 == 0 {
        return;
    }
    work.fragment.place = HeldKey {
        share: held_share(work.fragment.key.share),
        place: (place & 0xffff) as u16,
        part: 0,
    };
    let Some(held) = env.held(&work.fragment.place) else {
        return;
    };
    // The place may have been taken over.
    if held.datagram != work.fragment.key {
        return;
    }
    work.fragment.held = *held;
    if env.restore(&work.fragment.place) {
        env.reinject();
    } else {
        count_lost(env, &work.fragment.held);
    }
    env.remove_held(&work.fragment.place);
}
