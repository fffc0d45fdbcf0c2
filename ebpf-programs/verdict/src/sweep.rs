//! Forgetting flows that are dead. Walks nothing: it is asked about one entry at a time.

use abi::{Flow, FlowFlags, Tuple};

use crate::flow::{Fate, discard, fate};
use crate::node::Node;

/// What a sweep was about to do to one entry, and did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// It stays.
    Kept,
    /// It was removed, and its opposite with it.
    Removed(Fate),
}

/// Removes the entry `flow` at `key`, and the other direction, if the flow is dead. `opposite` is room for a key.
#[inline(always)]
pub fn forget<E: Node>(
    node: &mut E,
    key: &Tuple,
    flow: &Flow,
    opposite: &mut Tuple,
    now: u32,
) -> Sweep {
    *opposite = flow.translated.reverse();
    let fate = fate(node, key, flow, opposite, now, false);
    if fate == Fate::Alive {
        return Sweep::Kept;
    }
    let original = flow.flags & FlowFlags::ORIGINAL != 0;
    discard(node, key, opposite, original);
    Sweep::Removed(fate)
}
