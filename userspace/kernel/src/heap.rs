//! Memory that was needed once.

/// Gives back to the kernel what the allocator keeps for later: to load the programs takes ten times of what the agent
/// needs from then on.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "glibc has no other way to ask for it")]
pub(crate) fn give_back() {
    // SAFETY: the function may be called at any time, by any thread.
    unsafe { nix::libc::malloc_trim(0) };
}

/// Other C libraries keep little.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn give_back() {}
