//! Whether packets may go past bridge and stack: only where nobody else could have a say in them.

use std::fmt;
use std::str::FromStr;

use crate::Observed;

/// When packets go past bridge and stack (`--bypass-netfilter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BypassMode {
    /// Where no rule of anybody could matter to them.
    #[default]
    Auto,
    /// Whatever rules there are: they do not see such packets.
    Always,
    /// Not at all.
    Never,
}

impl BypassMode {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }

    /// Whether packets go past bridge and stack of a node that looks like this.
    pub fn is_active(self, observed: &Observed) -> bool {
        match self {
            Self::Auto => observed.foreign_rules.is_empty(),
            Self::Always => true,
            Self::Never => false,
        }
    }
}

impl fmt::Display for BypassMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for BypassMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let modes = [Self::Auto, Self::Always, Self::Never];
        let named = modes.into_iter().find(|mode| mode.name() == text);
        named.ok_or_else(|| format!("{text:?} is none of auto, always, never"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_others_end_the_bypass_unless_it_is_forced() {
        let with_rules = Observed {
            foreign_rules: ["nftables: chain forward of table inet filter".to_owned()].into(),
            ..Observed::default()
        };
        for (mode, free, ruled) in [
            (BypassMode::Auto, true, false),
            (BypassMode::Always, true, true),
            (BypassMode::Never, false, false),
        ] {
            assert_eq!(mode.is_active(&Observed::default()), free, "{mode}");
            assert_eq!(mode.is_active(&with_rules), ruled, "{mode}");
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        assert!("sometimes".parse::<BypassMode>().is_err());
    }
}
