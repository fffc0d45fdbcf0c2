//! Reading a file that may be anything.
//!
//! The database trusts its file further than its checksums go: on pages that are overwritten as a whole it panics. Who
//! ends the process on a panic, as an agent should, asks [`is_catching_panics`] first: such a panic is an answer.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is reading a file that may be damaged, and a panic of it is survived.
pub fn is_catching_panics() -> bool {
    CATCHING.get()
}

/// Runs `read`; the words of its panic if it does not survive.
pub(crate) fn catch_panics<T>(read: impl FnOnce() -> T) -> Result<T, String> {
    let before = CATCHING.replace(true);
    // Nothing that `read` had is used again.
    let result = catch_unwind(AssertUnwindSafe(read));
    CATCHING.set(before);
    result.map_err(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or(panic.downcast_ref::<&str>().copied());
        text.unwrap_or("it cannot be read").to_owned()
    })
}
