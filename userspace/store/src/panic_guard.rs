//! Catches panics of the database library while it reads a file that may be damaged.
//!
//! The library relies on its file beyond its checksums: it panics on pages that are overwritten as
//! a whole. A panic hook that ends the process calls [`is_catching_panics`] first: such a panic is
//! reported as a damaged file instead.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread reads a possibly damaged file, so that a panic of it is caught.
pub fn is_catching_panics() -> bool {
    CATCHING.get()
}

/// Runs `read`; returns the panic message if it panics.
pub(crate) fn catch_panics<T>(read: impl FnOnce() -> T) -> Result<T, String> {
    let before = CATCHING.replace(true);
    // Nothing that `read` borrowed is used after a panic.
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
