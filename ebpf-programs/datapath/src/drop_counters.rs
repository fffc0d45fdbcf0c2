//! Drop counters by pod and reason.

use abi::PodDropCount;
use abi::maps::DROP_REASONS;
use aya_ebpf::bindings::BPF_NOEXIST;

use crate::atomic;
use crate::maps::{self, POD_DROPS};

/// Counts a dropped packet for a pod and a reason. All CPUs share the counter: a pod's drops are an
/// exception, and a copy for each CPU would cost a KiB each.
///
/// A global function: inlined, the verifier would walk it in each stage that counts.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn count_pod_drop(pod: u64, reason: u64) -> u64 {
    if let Some(count) = drop_count(pod as u32, reason as u32) {
        // SAFETY: a map's value, aligned.
        unsafe { atomic::add(&raw mut (*count).packets, 1) }
    }
    0
}

/// Returns the counter of a pod and a reason, and makes one if there is none.
#[inline(always)]
pub(crate) fn drop_count(pod: u32, reason: u32) -> Option<*mut PodDropCount> {
    let drops = match POD_DROPS.get_ptr_mut(pod) {
        Some(drops) => drops,
        None => {
            let none = maps::NO_DROPS.get(0)?;
            // Another CPU may have made it meanwhile.
            let _ = POD_DROPS.insert(pod, none, u64::from(BPF_NOEXIST));
            POD_DROPS.get_ptr_mut(pod)?
        }
    };
    let reason = (reason & (DROP_REASONS - 1)) as usize;
    let reasons = drops.cast::<PodDropCount>();
    // SAFETY: a map's value, aligned; the mask keeps the reason within the array, which is all of
    // the value.
    Some(unsafe { reasons.add(reason) })
}
