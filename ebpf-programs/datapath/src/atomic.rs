//! Atomic operations on numbers that several CPUs share.

use core::intrinsics::{AtomicOrdering, atomic_and, atomic_cxchg, atomic_or, atomic_xadd};

/// Adds to a shared number, and returns the value before. Never relaxed: then LLVM drops the
/// fetching instruction and returns the amount (LLVM issue 210280).
///
/// # Safety
/// `counter` must point to a map's value, aligned.
#[inline(always)]
pub(crate) unsafe fn fetch_add(counter: *mut u64, amount: u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::SeqCst }>(counter, amount) }
}

/// Replaces a shared number if it still is `old`; returns whether it was. Never relaxed, for the
/// same reason as [`fetch_add`].
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

/// Sets bits of a shared number. A full barrier: the fetching instruction is one.
///
/// # Safety
/// `number` must point to a map's value, aligned.
#[inline(always)]
pub(crate) unsafe fn fetch_or(number: *mut u64, bits: u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { atomic_or::<u64, u64, { AtomicOrdering::SeqCst }>(number, bits) }
}

/// Keeps bits of a shared number, and returns the number before. A full barrier, as [`fetch_or`].
///
/// # Safety
/// `number` must point to a map's value, aligned.
#[inline(always)]
pub(crate) unsafe fn fetch_and(number: *mut u64, bits: u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { atomic_and::<u64, u64, { AtomicOrdering::SeqCst }>(number, bits) }
}

/// Adds to a shared number. The result is not used, so no fetching instruction is needed.
///
/// # Safety
/// `counter` must point to a map's value, aligned.
#[inline(always)]
pub(crate) unsafe fn add(counter: *mut u64, amount: u64) {
    // SAFETY: the caller's promise.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(counter, amount) };
}
