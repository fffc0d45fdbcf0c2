//! What is measured while a bulk flow runs.

use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// Seconds in which TCP finds its rate, and bursts are used up.
pub(crate) const WARM: u32 = 2;

/// Measures by `body` once `bulk` has run for [`WARM`]; `bulk` has to last longer than both.
pub(crate) fn beside<T, B: Send>(
    bulk: impl FnOnce() -> Result<B> + Send,
    body: impl FnOnce() -> Result<T>,
) -> Result<T> {
    thread::scope(|scope| {
        let bulk = scope.spawn(bulk);
        thread::sleep(Duration::from_secs(WARM.into()));
        let value = body();
        let carried = bulk.join().unwrap_or_else(|panic| resume_unwind(panic));
        carried.context("the bulk flow")?;
        value
    })
}
