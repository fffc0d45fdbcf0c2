//! Durations of options (`--for`): a number of seconds, or one with `s`, `m` or `h`.

/// Parses a duration into seconds.
pub(crate) fn seconds(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.char_indices().next_back() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3600),
        _ => (text, 1),
    };
    // `u64` itself would accept a sign.
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let number: Option<u64> = number.parse().ok().filter(|_| is_number);
    number
        .and_then(|number| number.checked_mul(unit))
        .ok_or_else(|| "must be a number of seconds, or one with s, m or h such as 10m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_number_of_seconds_minutes_or_hours() {
        for (text, expected) in [
            ("0", 0),
            ("90", 90),
            ("90s", 90),
            ("10m", 600),
            ("24h", 86_400),
        ] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "m",
            "-1m",
            "+1m",
            "1d",
            "1.5h",
            "9999999999999999999h",
            "1é",
        ] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
