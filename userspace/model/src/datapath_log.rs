//! The level of the datapath log.

use std::fmt;
use std::str::FromStr;

/// Least severe level of the records that the programs write into the datapath log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DatapathLogLevel {
    /// No records: the programs contain no code for them.
    #[default]
    Off,
    /// Packets that were dropped because the datapath lacked something that they needed.
    Error,
    /// All dropped packets.
    Warn,
    /// Evicted flows, too.
    Info,
    /// New flows, too.
    Debug,
    /// The verdict of each packet without a flow cache entry, too.
    Trace,
}

/// Error of a text that names no level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of off, error, warn, info, debug and trace")]
pub struct UnknownDatapathLogLevel(pub String);

impl DatapathLogLevel {
    /// All levels, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Off,
        Self::Error,
        Self::Warn,
        Self::Info,
        Self::Debug,
        Self::Trace,
    ];

    /// Returns the number that aya-log has for the level: 0 for off, 5 for trace.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Returns the name in configuration, API and status.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

impl FromStr for DatapathLogLevel {
    type Err = UnknownDatapathLogLevel;

    fn from_str(text: &str) -> Result<Self, UnknownDatapathLogLevel> {
        let found = Self::ALL.into_iter().find(|level| level.name() == text);
        found.ok_or_else(|| UnknownDatapathLogLevel(text.to_owned()))
    }
}

impl fmt::Display for DatapathLogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_datapath_log_level_is_found_by_its_name_and_has_the_number_of_its_place() {
        for (number, level) in DatapathLogLevel::ALL.into_iter().enumerate() {
            assert_eq!(level.to_string().parse(), Ok(level));
            assert_eq!(usize::from(level.number()), number);
        }
        let error = "loud".parse::<DatapathLogLevel>().unwrap_err();
        assert!(error.to_string().contains("\"loud\" is none of off"));
    }
}
