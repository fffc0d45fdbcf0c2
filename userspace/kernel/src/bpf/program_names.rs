//! Names of the TC programs in the BPF object.

use abi::maps::programs;
use steps::Hook;

/// Returns the name of a hook's program in the object.
pub(crate) fn name(hook: Hook) -> &'static str {
    match hook {
        Hook::FromPod => programs::FROM_POD,
        Hook::FromBusyPod => programs::FROM_BUSY_POD,
        Hook::ToPod => programs::TO_POD,
        Hook::UplinkIn => programs::UPLINK_IN,
        Hook::UplinkOut => programs::UPLINK_OUT,
    }
}
