//! Netfilter bypass: whether packets may bypass the bridge and netfilter, which depends on other
//! software's rules.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use steps::{Entry, EntryKey, Observed};

use crate::offload::{ConnectionState, HoldingRule, RulesetClass, classify};

/// When packets bypass the bridge and netfilter (`--bypass-netfilter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BypassMode {
    /// All packets where no rule of other software could apply to them; beside rules, those of
    /// established connections, as [`BypassMode::Offload`].
    #[default]
    Auto,
    /// Packets of connections that netfilter has accepted, unless a rule must see every packet.
    Offload,
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
            Self::Offload => "offload",
            Self::Always => "always",
            Self::Never => "never",
        }
    }

    /// Returns whether all packets bypass netfilter with this observation.
    pub fn is_active(self, observed: &Observed) -> bool {
        match self {
            Self::Auto => obstacles(observed).is_empty(),
            Self::Always => true,
            Self::Offload | Self::Never => false,
        }
    }

    /// Returns whether packets of established connections bypass netfilter with this observation,
    /// and others do not.
    pub fn offloads(self, observed: &Observed) -> bool {
        match self {
            Self::Auto | Self::Offload => {
                !self.is_active(observed)
                    && observed.foreign_paths.is_empty()
                    && holding_rules(observed).is_empty()
            }
            Self::Always | Self::Never => false,
        }
    }

    /// Returns whether UDP flows without a reply do so as well.
    pub fn offloads_unreplied(self, observed: &Observed) -> bool {
        self.offloads(observed) && holding_unreplied(observed).is_empty()
    }
}

/// Returns the rules that must see every packet of established connections.
pub fn holding_rules(observed: &Observed) -> BTreeSet<HoldingRule> {
    rules_that_hold(observed, ConnectionState::Established)
}

/// Returns the rules that must see every packet of UDP flows without a reply.
pub fn holding_unreplied(observed: &Observed) -> BTreeSet<HoldingRule> {
    rules_that_hold(observed, ConnectionState::Unreplied)
}

fn rules_that_hold(observed: &Observed, state: ConnectionState) -> BTreeSet<HoldingRule> {
    match classify(&observed.path_tables, state) {
        RulesetClass::EveryPacket(rules) => rules,
        RulesetClass::Empty | RulesetClass::Offloadable => BTreeSet::new(),
    }
}

/// Returns the obstacles to [`BypassMode::Auto`], as texts for people.
///
/// Rules of other software are obstacles. Where packets have traversed the stack so far,
/// connections in netfilter's conntrack table are obstacles too: once they bypass it, their TCP
/// windows move on unseen, and later rules would classify them as invalid. Conntrack picks up a
/// connection that it has never seen in the middle.
pub fn obstacles(observed: &Observed) -> BTreeSet<String> {
    let mut obstacles: BTreeSet<String> = (observed.foreign_rules)
        .union(&observed.foreign_paths)
        .cloned()
        .collect();
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
        let modes = [Self::Auto, Self::Offload, Self::Always, Self::Never];
        let named = modes.into_iter().find(|mode| mode.name() == text);
        named.ok_or_else(|| format!("{text:?} is none of auto, offload, always, never"))
    }
}

#[cfg(test)]
mod tests {
    use steps::{PathHook, PathRule, PathTable, Statement};

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
            (BypassMode::Offload, false, false),
            (BypassMode::Never, false, false),
        ] {
            assert_eq!(mode.is_active(&Observed::default()), free, "{mode}");
            assert_eq!(mode.is_active(&with_rules), ruled, "{mode}");
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        assert!("sometimes".parse::<BypassMode>().is_err());
    }

    #[test]
    fn established_connections_are_offloaded_beside_rules_that_permit_it() {
        let table = |statement: &str| PathTable {
            name: "nftables: table inet filter".to_owned(),
            bases: [("forward".to_owned(), PathHook::Forward)].into(),
            chains: [(
                "forward".to_owned(),
                vec![PathRule {
                    statements: vec![Statement::Named(statement.to_owned())],
                }],
            )]
            .into(),
        };
        let rules = |statement| Observed {
            foreign_rules: ["nftables: chain forward of table inet filter".to_owned()].into(),
            path_tables: vec![table(statement)],
            ..Observed::default()
        };
        let ipsec = Observed {
            foreign_paths: ["IPsec: a policy".to_owned()].into(),
            ..rules("counter")
        };
        let new = Statement::State {
            established: false,
            new: true,
        };
        let mut of_new = rules("quota");
        for rules in of_new.path_tables[0].chains.values_mut() {
            rules[0].statements.insert(0, new.clone());
        }
        assert!(BypassMode::Auto.offloads(&of_new));
        assert!(!BypassMode::Auto.offloads_unreplied(&of_new));
        assert!(BypassMode::Auto.offloads_unreplied(&rules("counter")));
        assert!(!BypassMode::Never.offloads_unreplied(&rules("counter")));
        let offloads = |mode: BypassMode| {
            [
                &Observed::default(),
                &rules("counter"),
                &rules("quota"),
                &ipsec,
            ]
            .map(|observed| mode.offloads(observed))
        };
        assert_eq!(offloads(BypassMode::Auto), [false, true, false, false]);
        assert_eq!(offloads(BypassMode::Offload), [true, true, false, false]);
        assert_eq!(offloads(BypassMode::Always), [false; 4]);
        assert_eq!(offloads(BypassMode::Never), [false; 4]);
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
