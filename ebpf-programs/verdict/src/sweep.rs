//! Forgetting flows that are dead. Walks nothing: it is asked about one entry at a time.

use abi::{Flow, FlowFlags, Tuple};

use crate::flow::{Fate, fate};
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
///
/// The entry of the reply is removed last: it is what holds the port.
#[inline(always)]
pub fn forget<E: Node>(
    node: &mut E,
    key: &Tuple,
    flow: &Flow,
    opposite: &mut Tuple,
    now: u32,
) -> Sweep {
    let original = flow.flags & FlowFlags::ORIGINAL != 0;
    *opposite = flow.translated.reverse();
    let fate = fate(node, key, flow, opposite, now);
    if fate == Fate::Alive {
        return Sweep::Kept;
    }
    if original {
        node.remove_flow(key);
        node.remove_flow(opposite);
    } else {
        node.remove_flow(opposite);
        node.remove_flow(key);
    }
    Sweep::Removed(fate)
}
