//! Returns unused heap memory to the kernel.

/// Returns free memory of the allocator to the kernel, after what takes a multiple of the memory
/// that the agent needs from then on: loading programs, observing the node, large responses.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "glibc has no safe function for this")]
pub fn release_free_memory() {
    // SAFETY: `malloc_trim` is thread-safe and has no preconditions.
    unsafe { nix::libc::malloc_trim(0) };
}

/// Does nothing: other C libraries keep little free memory.
#[cfg(not(target_env = "gnu"))]
pub fn release_free_memory() {}
