//! Wall clock of the agent: the only file that reads it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns seconds since 1970 (UTC); 0 if the machine's clock is set to an earlier time.
pub(crate) fn now() -> u64 {
    now_ms() / 1_000
}

/// As [`now`], in milliseconds.
#[expect(
    clippy::disallowed_methods,
    reason = "all other code gets the time as an argument"
)]
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let milliseconds = since.map_or(0, |duration| duration.as_millis());
    u64::try_from(milliseconds).unwrap_or(u64::MAX)
}
