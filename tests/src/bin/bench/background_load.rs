//! Runs a measurement while a bulk flow loads the path.

use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// Warm-up in seconds, in which TCP finds its rate and token buckets lose their bursts.
pub(crate) const WARM: u32 = 2;

/// Runs `body` after `bulk` has run for [`WARM`] seconds. `bulk` must last until `body` returns.
pub(crate) fn under_load<T, B: Send>(
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
