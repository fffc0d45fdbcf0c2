//! The memory of the agent's process.

use nix::sys::prctl;

/// Turns transparent huge pages off for the process (`PR_SET_THP_DISABLE`).
///
/// Where the node has them set to `always`, one byte that stays allocated keeps 2 MiB resident: the
/// memory of a burst of large responses would not return to the system. Called before the first
/// large allocation, because pages that are huge already stay so.
pub(crate) fn disable_huge_pages() {
    if let Err(error) = prctl::set_thp_disable(true) {
        tracing::warn!(
            %error,
            "cannot turn transparent huge pages off for the agent: it may keep more memory resident"
        );
    }
}

/// Takes the code of the start out of the resident memory, most of which is code.
pub(crate) fn release_code_of_start() {
    if let Err(error) = kernel::release_code() {
        tracing::debug!(%error, "the code of the start stays in the resident memory");
    }
}
