//! Additions to numbers that several CPUs share.

use core::intrinsics::{AtomicOrdering, atomic_xadd};

/// Adds to a number that other CPUs add to as well, and returns what it was. Never relaxed: then the compiler leaves
/// the fetching instruction out and returns the amount (LLVM issue 210280).
///
/// # Safety
/// `counter` must point to a map's value, aligned.
#[inline(always)]
pub(crate) unsafe fn fetch_add(counter: *mut u64, amount: u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::SeqCst }>(counter, amount) }
}

/// Adds to a number that other CPUs add to as well. The result is not used: then no fetching instruction is needed.
///
/// # Safety
/// `counter` must point to a map's value, aligned.
#[inline(always)]
pub(crate) unsafe fn add(counter: *mut u64, amount: u64) {
    // SAFETY: the caller's promise.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(counter, amount) };
}
