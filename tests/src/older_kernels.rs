//! What kernels before others lack, for tests that expect something else there.

use aya::programs::ProgramType;
use aya::sys::{BpfHelper, is_helper_supported};

/// Whether programs of traffic control can walk over a map, without which no agent starts (Linux
/// 5.13).
pub fn walks_over_maps() -> bool {
    has(
        ProgramType::SchedClassifier,
        BpfHelper::BPF_FUNC_for_each_map_elem,
    )
}

/// Whether the departure time of a packet outlives its redirection (Linux 5.18).
pub fn keeps_departure_times() -> bool {
    has(
        ProgramType::SchedClassifier,
        BpfHelper::BPF_FUNC_skb_set_tstamp,
    )
}

/// Whether a program chooses the error of `bind` (Linux 6.1). Others return `EPERM`.
pub fn chooses_bind_errors() -> bool {
    has(ProgramType::CgroupSockAddr, BpfHelper::BPF_FUNC_set_retval)
}

/// A kernel that cannot be asked is taken for a new one: then the test fails, and is not skipped.
fn has(kind: ProgramType, helper: BpfHelper) -> bool {
    is_helper_supported(kind, helper).unwrap_or(true)
}
