//! Stages of an eviction, in the order that [`crate::hooks::evict`] has.

use crate::eviction::{self, Search};
use crate::node::Node;
use crate::work::Work;

/// Prepares the clock hand for a new flow. Returns what it looks for.
#[inline(always)]
pub fn start_advance<E>(_: &mut E, work: &mut Work) -> Search {
    eviction::start_advance(work)
}

/// Appends the clock entry of the new flow, if there was no place for it.
#[inline(always)]
pub fn finish_advance<E: Node>(node: &mut E, work: &mut Work) {
    eviction::finish_advance(node, work);
}

/// Prepares the clock hand for an eviction.
#[inline(always)]
pub fn start_eviction<E: Node>(node: &mut E, work: &mut Work) {
    eviction::start_eviction(node, work);
}

/// Inspects the flow at the head of the clock. Returns whether to inspect another one.
#[inline(always)]
pub fn inspect_flow<E: Node>(node: &mut E, work: &mut Work, search: Search) -> bool {
    eviction::inspect(node, &mut work.hand, search)
}

/// Evicts the flow that was chosen. Returns whether there is a place for [`Work::pair`] now.
#[inline(always)]
pub fn finish_eviction<E: Node>(node: &mut E, work: &mut Work) -> bool {
    eviction::finish_eviction(node, work)
}

/// Evicts the flow that has the source port of [`Work::pair`]. Returns whether the port is free.
#[inline(always)]
pub fn take_port<E: Node>(node: &mut E, work: &mut Work) -> bool {
    eviction::take_port(node, work)
}
