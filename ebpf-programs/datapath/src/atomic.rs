//! Additions to numbers that several CPUs share.

use core::intrinsics::{AtomicOrdering, atomic_cxchg, atomic_xadd};

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

/// Replaces a number that other CPUs replace as well, if it still is `old`, and tells whether. Never relaxed, as above.
///
/// # Safety
/// `number` must point to a map's value, aligned.
#[inline(always)]
pub(crate) unsafe fn replace(number: *mut u64, old: u64, new: u64) -> bool {
    const ORDER: AtomicOrdering = AtomicOrdering::SeqCst;
    // SAFETY: the caller's promise.
    let (_, replaced) = unsafe { atomic_cxchg::<u64, ORDER, ORDER>(number, old, new) };
    replaced
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
