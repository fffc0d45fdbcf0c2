//! The one place that reads the clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970 (UTC); 0 on a machine whose clock says that it is earlier.
#[expect(
    clippy::disallowed_methods,
    reason = "the agent's edge is where time comes in"
)]
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |duration| duration.as_secs())
}
