//! `viaductctl bypass` and `viaductctl log-level`: settings of the agent that end by themselves.

use anyhow::Result;
use api::{BypassSetting, Client, LogLevelSetting, path};
use clap::ValueEnum;

use crate::duration::seconds;
use crate::{advised, decode};

/// Options of `viaductctl bypass`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Bypass {
    /// Mode of the netfilter bypass; `configured` ends a temporary one
    #[arg(value_enum)]
    mode: Mode,
    /// Time after which the configured mode is in effect again, for example 90s, 10m or 1h, at most
    /// 24h; a restart of the agent ends it too
    #[arg(long = "for", value_name = "TIME", value_parser = up_to_a_day, default_value = "10m")]
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
    /// Level of the agent (error, warn, info, debug, trace, off), or a comma-separated list of
    /// target=level; in effect until the next reload or start of the agent
    #[arg(required_unless_present = "datapath")]
    level: Option<String>,
    /// Level of the datapath log (off, error, warn, info, debug, trace), in effect as long. The
    /// agent loads other programs for it, which takes as long as its first start
    #[arg(long, value_name = "LEVEL")]
    datapath: Option<String>,
}

/// Parses the duration of a mode.
fn up_to_a_day(text: &str) -> Result<u64, String> {
    let is_valid = |seconds: &u64| (1..=86_400).contains(seconds);
    let wrong = || "must be from 1s to 24h".to_owned();
    seconds(text).and_then(|time| Some(time).filter(is_valid).ok_or_else(wrong))
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
    /// Sets the levels, and returns a line with each.
    pub(crate) fn run(&self, client: &Client) -> Result<String> {
        let wanted = LogLevelSetting {
            level: self.level.clone().unwrap_or_default(),
            datapath: self.datapath.clone(),
        };
        let reply = client.put(path::LOG_LEVEL, &wanted).map_err(advised)?;
        Ok(lines(&decode(&reply)?))
    }
}

fn lines(set: &LogLevelSetting) -> String {
    let agent = Some(&set.level).filter(|level| !level.is_empty());
    let lines = [
        ("Log level", agent),
        ("Datapath log", set.datapath.as_ref()),
    ];
    lines
        .into_iter()
        .filter_map(|(what, level)| Some((what, level?)))
        .fold(String::new(), |text, (what, level)| {
            text + what + ": " + level + ", until the next reload\n"
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_log_level_that_was_set_has_a_line() {
        let set = |level: &str, datapath: Option<&str>| {
            lines(&LogLevelSetting {
                level: level.to_owned(),
                datapath: datapath.map(str::to_owned),
            })
        };
        let (agent, datapath) = (
            "Log level: debug, until the next reload\n",
            "Datapath log: trace, until the next reload\n",
        );
        assert_eq!(set("debug", None), agent);
        assert_eq!(set("", Some("trace")), datapath);
        assert_eq!(set("debug", Some("trace")), format!("{agent}{datapath}"));
    }

    #[test]
    fn the_time_of_a_bypass_mode_is_at_most_a_day() {
        for (text, expected) in [("1", 1), ("10m", 600), ("24h", 86_400)] {
            assert_eq!(up_to_a_day(text), Ok(expected), "{text}");
        }
        for text in ["", "0s", "25h", "1d"] {
            assert!(up_to_a_day(text).is_err(), "{text}");
        }
    }
}
