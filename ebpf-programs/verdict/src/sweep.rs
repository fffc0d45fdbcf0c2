//! The sweep: removal of dead flows. Called for one entry at a time; does not walk the table.

use abi::{Flow, FlowFlags, Tuple};

use crate::flow::{FlowState, Need, discard, flow_state};
use crate::node::Node;

/// What the sweep did with one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// The entry stays.
    Kept,
    /// The entry and its other direction were removed.
    Removed(FlowState),
}

/// Removes the entry `flow` at `key`, and its other direction, if the flow is dead. `opposite` is
/// scratch space for a key.
#[inline(always)]
pub fn remove_dead<E: Node>(
    node: &mut E,
    key: &Tuple,
    flow: &Flow,
    opposite: &mut Tuple,
    now: u32,
) -> Sweep {
    *opposite = flow.translated.reverse();
    let flow_state = flow_state(node, key, flow, opposite, now, Need::None);
    if flow_state == FlowState::Alive {
        return Sweep::Kept;
    }
    let original = flow.flags & FlowFlags::ORIGINAL != 0;
    discard(node, key, opposite, original);
    Sweep::Removed(flow_state)
}
