//! `viaductctl bypass` and `viaductctl log-level`: settings of the agent that end by themselves.

use anyhow::Result;
use api::{BypassSetting, Client, LogLevelSetting, path};
use clap::ValueEnum;

use crate::{advised, decode};

/// Options of `viaductctl bypass`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Bypass {
    /// Mode of the netfilter bypass; `configured` ends a temporary one
    #[arg(value_enum)]
    mode: Mode,
    /// Time after which the configured mode is in effect again, for example 90s, 10m or 1h, at most
    /// 24h; a restart of the agent ends it too
    #[arg(long = "for", value_name = "TIME", value_parser = seconds, default_value = "10m")]
    time: u64,
}

/// Mode of the bypass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// All packets traverse bridge and netfilter
    Never,
    /// Bypass while no other software has rules; beside rules, for connections that netfilter has
    /// accepted
    Auto,
    /// Bypass for connections that netfilter has accepted
    Offload,
    /// Bypass regardless of rules
    Always,
    /// The mode of the configuration
    Configured,
}

/// Options of `viaductctl log-level`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LogLevel {
    /// Level (error, warn, info, debug, trace, off), or a comma-separated list of target=level; in
    /// effect until the next reload or start of the agent
    level: String,
}

/// Parses a number of seconds, minutes or hours into seconds.
fn seconds(text: &str) -> Result<u64, String> {
    let invalid = || "must be a number with s, m or h, for example 10m".to_owned();
    let (number, unit) = match text.char_indices().next_back() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3600),
        _ => return Err(invalid()),
    };
    let number: u64 = number.parse().map_err(|_| invalid())?;
    number
        .checked_mul(unit)
        .filter(|seconds| (1..=86_400).contains(seconds))
        .ok_or_else(|| "must be from 1s to 24h".to_owned())
}

impl Bypass {
    /// Sets the mode, and returns a line with what is in effect.
    pub(crate) fn run(&self, client: &Client) -> Result<String> {
        let name = self.mode.to_possible_value();
        let wanted = BypassSetting {
            mode: name.map_or_else(String::new, |value| value.get_name().to_owned()),
            seconds: match self.mode {
                Mode::Configured => 0,
                Mode::Never | Mode::Auto | Mode::Offload | Mode::Always => self.time,
            },
        };
        let reply = client.put(path::BYPASS, &wanted).map_err(advised)?;
        let set: BypassSetting = decode(&reply)?;
        Ok(match set.seconds {
            0 => format!("Bypass: {}, as configured\n", set.mode),
            seconds => format!("Bypass: {} for {seconds} s, then as configured\n", set.mode),
        })
    }
}

impl LogLevel {
    /// Sets the level, and returns a line with it.
    pub(crate) fn run(&self, client: &Client) -> Result<String> {
        let wanted = LogLevelSetting {
            level: self.level.clone(),
        };
        let reply = client.put(path::LOG_LEVEL, &wanted).map_err(advised)?;
        let set: LogLevelSetting = decode(&reply)?;
        Ok(format!("Log level: {}, until the next reload\n", set.level))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_bypass_mode_has_a_unit_and_is_at_most_a_day() {
        for (text, expected) in [("90s", 90), ("10m", 600), ("24h", 86_400)] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "10",
            "m",
            "0s",
            "25h",
            "-1m",
            "1d",
            "9999999999999999999h",
            "1é",
        ] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
