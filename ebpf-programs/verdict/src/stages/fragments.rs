//! Stages of fragments: the state of their datagram, and fragments that wait.

use crate::fragment;
use crate::fragment_store::FragmentStore;
use crate::node::Node;
use crate::outcome::Decision;
use crate::packet::Packet;
use crate::work::{Content, Hook, Transport, Work};

/// Looks up the state of a fragment's datagram, or starts one. Returns [`Content::Fragment`], or
/// another content where the datagram has no state.
#[inline(always)]
pub fn find_datagram<E: Node + FragmentStore>(
    env: &mut E,
    work: &mut Work,
    hook: Hook,
) -> Decision<Content> {
    fragment::find(env, work, hook)
}

/// Updates the copied state of a fragment's datagram. Drops fragments that overlap, where the hook
/// checks that.
#[inline(always)]
pub fn update_datagram<E>(_: &mut E, work: &mut Work, has_order: bool) -> Decision<()> {
    fragment::update(work, has_order)
}

/// Writes the state of a fragment's datagram, and fills in the ports of a later fragment.
#[inline(always)]
pub fn write_datagram<E: Node + FragmentStore>(
    env: &mut E,
    work: &mut Work,
    hook: Hook,
) -> Content {
    fragment::finish(env, work, hook)
}

/// Holds a fragment until the first one of its datagram arrives; returns whether it is held. Where
/// not, it continues without ports.
#[inline(always)]
pub fn hold_fragment<E: Packet + Node + FragmentStore>(env: &mut E, work: &mut Work) -> bool {
    work.headers.transport = Transport::Portless;
    fragment::hold(env, work)
}

/// Sends a fragment that has waited in a place through the hook again, behind the first one.
#[inline(always)]
pub fn release_fragment<E: Packet + Node + FragmentStore>(
    env: &mut E,
    work: &mut Work,
    place: u32,
) {
    fragment::release(env, work, place);
}

/// Writes the identification that a fragment leaves with. `is_translated` states whether
/// [`Work::translated`] is the packet's tuple by now.
#[inline(always)]
pub fn identify_fragment<E: Packet + Node + FragmentStore>(
    env: &mut E,
    work: &mut Work,
    is_translated: bool,
) -> Decision<()> {
    if !is_translated {
        work.translated = work.headers.tuple;
    }
    fragment::identify(env, work)
}
