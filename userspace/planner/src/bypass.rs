//! Netfilter bypass: whether packets may bypass the bridge and netfilter, which depends on other
//! software's rules.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use steps::{Entry, EntryKey, Observed};

/// When packets bypass the bridge and netfilter (`--bypass-netfilter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BypassMode {
    /// Where no rule of other software could apply to them.
    #[default]
    Auto,
    /// Regardless of rules, which do not see bypassing packets.
    Always,
    /// Never: all packets traverse the bridge and netfilter.
    Never,
}

impl BypassMode {
    /// Returns the value as the configuration spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }

    /// Returns whether the bypass is on for this observation.
    pub fn is_active(self, observed: &Observed) -> bool {
        match self {
            Self::Auto => obstacles(observed).is_empty(),
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// Returns the obstacles to [`BypassMode::Auto`], as texts for people.
///
/// Rules of other software are obstacles. Where packets have traversed the stack so far,
/// connections in netfilter's conntrack table are obstacles too: once they bypass it, their TCP
/// windows move on unseen, and later rules would classify them as invalid. Conntrack picks up a
/// connection that it has never seen in the middle.
pub fn obstacles(observed: &Observed) -> BTreeSet<String> {
    let mut obstacles = observed.foreign_rules.clone();
    if observed.conntrack_entries > 0 && has_pods(observed) && !is_active_now(observed) {
        let obstacle = "connection tracking: has entries, and some may be of pods";
        obstacles.insert(obstacle.to_owned());
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
    fn foreign_rules_turn_the_bypass_off_unless_it_is_forced() {
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
    fn tracked_connections_of_pods_turn_the_bypass_off() {
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
                conntrack_entries: tracked,
                ..Observed::default()
            }
        };
        let active = |observed: &Observed| BypassMode::Auto.is_active(observed);
        assert!(!active(&observed(0, 1, true)));
        assert!(active(&observed(0, 0, true)), "all have ended");
        assert!(active(&observed(0, 1, false)), "no pod has any");
        let bypassing = abi::SettingsFlags::BYPASS;
        assert!(
            active(&observed(bypassing, 1, true)),
            "the entries are of other traffic"
        );
    }
}
