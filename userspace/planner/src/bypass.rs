//! Whether packets may go past bridge and stack: only where nobody else could have a say in them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::{Entry, EntryKey, Observed};

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
            Self::Auto => obstacles(observed).is_empty(),
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// What stands in the way of [`BypassMode::Auto`], in words.
///
/// Rules of others do. And where packets have gone through the stack so far, so do the connections that netfilter has
/// kept track of: out of its sight they would move beyond what it remembers of them, and rules that come later would
/// take them for invalid. One that it has never seen is taken up where it is.
pub fn obstacles(observed: &Observed) -> BTreeSet<String> {
    let mut obstacles = observed.foreign_rules.clone();
    if observed.tracked > 0 && has_pods(observed) && !is_active_now(observed) {
        let words = "connection tracking: knows connections, and pods may have some of them";
        obstacles.insert(words.to_owned());
    }
    obstacles
}

fn has_pods(observed: &Observed) -> bool {
    let mut entries = observed.entries.values();
    entries.any(|entry| matches!(entry, Entry::Pod { .. }))
}

fn is_active_now(observed: &Observed) -> bool {
    let settings = observed.entries.get(&EntryKey::Settings);
    matches!(settings, Some(Entry::Settings(settings))
        if settings.flags & abi::SettingsFlags::BYPASS != 0)
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
    use crate::attachment_entries;
    use crate::testing::{attachment, intent};

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

    #[test]
    fn connections_that_netfilter_knows_are_not_taken_out_of_its_sight() {
        let settings = |flags| {
            let settings = abi::Settings {
                flags,
                ..abi::Settings::default()
            };
            (EntryKey::Settings, Entry::Settings(settings))
        };
        let observed = |flags: u32, tracked, pods: bool| {
            let attachment = attachment(&intent("c1"));
            let entries = attachment_entries(&attachment).into_iter();
            Observed {
                entries: entries.filter(|_| pods).chain([settings(flags)]).collect(),
                tracked,
                ..Observed::default()
            }
        };
        let active = |observed: &Observed| BypassMode::Auto.is_active(observed);
        assert!(!active(&observed(0, 1, true)));
        assert!(active(&observed(0, 0, true)), "all have ended");
        assert!(active(&observed(0, 1, false)), "no pod has any");
        let bypassing = abi::SettingsFlags::BYPASS;
        assert!(active(&observed(bypassing, 1, true)), "they are others");
    }
}
