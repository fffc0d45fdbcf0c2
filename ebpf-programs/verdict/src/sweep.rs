//! Forgetting flows that are dead. Walks nothing: it is asked about one entry at a time.

use abi::{Flow, FlowFlags, Tuple};

use crate::flow::{FlowState, discard, flow_state};
use crate::node::Node;

/// What a sweep was about to do to one entry, and did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// It stays.
    Kept,
    /// It was removed, and its opposite with it.
    Removed(FlowState),
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
    let flow_state = flow_state(node, key, flow, opposite, now, false);
    if flow_state == FlowState::Alive {
        return Sweep::Kept;
    }
    let original = flow.flags & FlowFlags::ORIGINAL != 0;
    discard(node, key, opposite, original);
    Sweep::Removed(flow_state)
}
