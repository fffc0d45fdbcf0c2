//! Returns memory of this process to the kernel.

use std::ffi::c_void;
use std::io;
use std::ptr;

use procfs::process::{MMPermissions, MMapPath, Process};
use rustix::mm::{Advice, madvise};

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

/// Takes the code of the process out of its resident memory (`MADV_DONTNEED`, madvise(2)). What is
/// executed again is mapped again, from the page cache. Called after the start of a program, much
/// of whose code is for its start.
///
/// Fails if the mappings of the process cannot be read, or if the kernel refuses.
#[expect(unsafe_code, reason = "madvise(2) is unsafe for mappings with data")]
pub fn release_code() -> io::Result<()> {
    let maps = (Process::myself().and_then(|it| it.maps())).map_err(io::Error::other)?;
    for map in &maps {
        let is_code = map
            .perms
            .contains(MMPermissions::EXECUTE | MMPermissions::PRIVATE)
            && !map.perms.contains(MMPermissions::WRITE)
            && matches!(map.pathname, MMapPath::Path(_));
        if !is_code {
            continue;
        }
        let (start, end) = map.address;
        let start = usize::try_from(start).map_err(io::Error::other)?;
        let length = usize::try_from(end).map_err(io::Error::other)? - start;
        let start = ptr::with_exposed_provenance_mut::<c_void>(start);
        // SAFETY: nothing writes to a mapping without write permission, so that its pages are those
        // of the file, with which the kernel fills them again.
        unsafe { madvise(start, length, Advice::LinuxDontNeed) }?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kilobytes of files that are resident.
    fn resident_file() -> u64 {
        let status = Process::myself().and_then(|it| it.status()).unwrap();
        status.rssfile.unwrap()
    }

    #[test]
    fn code_leaves_the_resident_memory_and_runs_on() {
        let before = resident_file();
        release_code().unwrap();
        let after = resident_file();
        assert!(after < before, "{before} kB, then {after} kB");
    }
}
