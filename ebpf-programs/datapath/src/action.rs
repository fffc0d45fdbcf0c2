//! From a verdict to what the traffic control hook returns.

use verdict::Verdict;

/// Go on with whoever is behind us: `TC_ACT_OK` would end the packet's way through the filters of others.
pub(crate) const NEXT: i32 = -1;
const SHOT: i32 = 2;

/// The traffic control action of a verdict.
#[inline(always)]
pub(crate) fn of(verdict: Verdict) -> i32 {
    match verdict {
        Verdict::Pass => NEXT,
        Verdict::Drop(_) => SHOT,
    }
}
