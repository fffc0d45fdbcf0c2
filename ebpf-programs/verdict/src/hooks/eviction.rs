//! The order of an eviction: how many flows are inspected for a new one.

use crate::eviction::Search;
use crate::hook_stages::HookStages;
use crate::work::Lack;

/// Flows inspected for each new one: two, so that the hand is faster than the table fills.
const INSPECTIONS: u32 = 2;
/// Flows inspected for each new one near the account's quota: if one in eight is finished, there is
/// a place for the new one.
const INSPECTIONS_NEAR_QUOTA: u32 = 8;
/// Flows inspected for a new one that has no place.
const INSPECTIONS_WHEN_FULL: u32 = 16;

/// Inspects the flows at the head of the clock, if they are due or a place is needed, and removes
/// dead ones. Then appends the clock entry of the flow that was inserted, if there was no place for
/// it.
#[inline(always)]
pub fn advance_clock_hand(stages: &mut impl HookStages) {
    let search = stages.start_advance();
    let inspections = match search {
        Search::Due => INSPECTIONS,
        Search::Finished | Search::Victim => INSPECTIONS_NEAR_QUOTA,
    };
    for _ in 0..inspections {
        if !stages.inspect_flow(search) {
            break;
        }
    }
    stages.finish_advance();
}

/// Evicts a flow for [`crate::Work::pair`]. Returns whether there is now what it lacks.
#[inline(always)]
pub fn evict(stages: &mut impl HookStages, lack: Lack) -> bool {
    if lack == Lack::Port {
        return stages.take_port();
    }
    stages.start_eviction();
    for _ in 0..INSPECTIONS_WHEN_FULL {
        if !stages.inspect_flow(Search::Victim) {
            break;
        }
    }
    stages.finish_eviction()
}
