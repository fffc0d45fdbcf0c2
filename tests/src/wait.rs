//! Waiting for something to become true. The one place of the harness that sleeps.

use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How long anything may take before it counts as never, on a machine of usual speed.
const DEADLINE: Duration = Duration::from_secs(10);

/// How many times as long everything may take: 1, unless `VIADUCT_TEST_PATIENCE` knows of a slower machine.
static PATIENCE: LazyLock<u32> = LazyLock::new(|| {
    let told = std::env::var("VIADUCT_TEST_PATIENCE").unwrap_or_default();
    told.parse().unwrap_or(1).max(1)
});

/// As long as `usual` on a machine of usual speed.
pub fn patient(usual: Duration) -> Duration {
    usual * *PATIENCE
}

/// Whether this machine is known to be a slower one.
pub fn is_slow() -> bool {
    *PATIENCE > 1
}

/// What takes all that it can get of a machine leaves some of a slower one to others, now and then.
pub(crate) fn rest() {
    if is_slow() {
        thread::sleep(Duration::from_millis(PATIENCE.saturating_sub(1).into()));
    }
}

/// How long anything may take before it counts as never.
pub fn deadline() -> Duration {
    patient(DEADLINE)
}

/// Calls `probe` until it gives a value, at most for [`deadline`]; `what` says what was waited for.
pub fn until<T>(what: &str, probe: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    until_within(DEADLINE, what, probe)
}

/// Calls `probe` until it gives a value, at most for `usual` on a machine of usual speed. An error ends the waiting at once.
pub fn until_within<T>(
    usual: Duration,
    what: &str,
    mut probe: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let (start, deadline) = (Instant::now(), patient(usual));
    // The kernel and other programs do not tell us about everything that we wait for; asking again after a pause
    // that starts short costs at most as much again as the thing itself took.
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(value) = probe()? {
            return Ok(value);
        }
        if start.elapsed() > deadline {
            bail!("waited {deadline:?} in vain: {what}");
        }
        thread::sleep(pause);
        pause = (pause * 3 / 2).min(Duration::from_millis(50));
    }
}
