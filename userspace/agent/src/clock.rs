//! Wall clock of the agent: the only function that reads it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns seconds since 1970 (UTC); 0 if the machine's clock is set to an earlier time.
#[expect(
    clippy::disallowed_methods,
    reason = "all other code gets the time as an argument"
)]
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |duration| duration.as_secs())
}
