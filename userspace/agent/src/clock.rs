//! Wall clock of the agent: the only file that reads it.

use std::time::{SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Returns seconds since 1970 (UTC); 0 if the machine's clock is set to an earlier time.
pub(crate) fn now() -> u64 {
    now_ms() / 1_000
}

/// As [`now`], in milliseconds.
pub(crate) fn now_ms() -> u64 {
    let since = system_time().duration_since(UNIX_EPOCH);
    let milliseconds = since.map_or(0, |duration| duration.as_millis());
    u64::try_from(milliseconds).unwrap_or(u64::MAX)
}

/// Returns the time of the machine's clock.
#[expect(
    clippy::disallowed_methods,
    reason = "all other code gets the time as an argument"
)]
pub(crate) fn system_time() -> SystemTime {
    SystemTime::now()
}

/// Returns a time in seconds since 1970 (UTC) in the format of RFC 3339.
pub(crate) fn rfc3339(seconds: u64) -> String {
    rfc3339_ms(seconds.saturating_mul(1_000))
}

/// As [`rfc3339`], of a time in milliseconds. Empty for a time after the year 9999, for which the
/// format has no place.
pub(crate) fn rfc3339_ms(milliseconds: u64) -> String {
    let nanoseconds = i128::from(milliseconds) * 1_000_000;
    OffsetDateTime::from_unix_timestamp_nanos(nanoseconds)
        .ok()
        .and_then(|time| time.format(&Rfc3339).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_in_rfc_3339_has_milliseconds_where_they_are_not_zero() {
        assert_eq!(rfc3339(1_700_000_000), "2023-11-14T22:13:20Z");
        assert_eq!(rfc3339_ms(1_700_000_000_250), "2023-11-14T22:13:20.25Z");
        assert_eq!(rfc3339(u64::MAX), "");
    }
}
