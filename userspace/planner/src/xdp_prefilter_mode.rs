//! Mode of the XDP prefilter.

use std::fmt;
use std::str::FromStr;

/// Mode of the XDP prefilter on uplinks (`--xdp-guard`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpPrefilterMode {
    /// No uplink has the prefilter.
    #[default]
    Off,
    /// Native (driver) mode on every uplink whose link type supports XDP.
    Native,
}

impl XdpPrefilterMode {
    /// Returns the value as the configuration spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Native => "native",
        }
    }
}

impl fmt::Display for XdpPrefilterMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for XdpPrefilterMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let modes = [Self::Off, Self::Native];
        let named = modes.into_iter().find(|mode| mode.name() == text);
        named.ok_or_else(|| format!("{text:?} is none of off, native"))
    }
}
