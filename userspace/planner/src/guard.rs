//! Who stands in front of uplinks: the XDP program that drops what can never be right, where the operator asks for it.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use model::IfName;

use crate::uplink::{Ours, uplinks};
use crate::{LinkKind, NodeIntent, Observed, Plan, Records, Step};

/// Whether guards stand in front of uplinks (`--xdp-guard`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuardMode {
    /// None does.
    #[default]
    Off,
    /// In the driver, in front of every uplink that can have one.
    Native,
}

impl GuardMode {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Native => "native",
        }
    }
}

/// A guard that stands somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Whether it is this agent's program, and not one that an agent before it has left.
    pub is_current: bool,
}

/// One effect on a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardStep {
    /// Post it at an uplink.
    Post(IfName),
    /// Withdraw it from a link.
    Withdraw(IfName),
}

impl GuardStep {
    /// What puts things back as they were.
    pub(crate) fn undo(&self) -> Self {
        match self.clone() {
            Self::Post(link) => Self::Withdraw(link),
            Self::Withdraw(link) => Self::Post(link),
        }
    }
}

/// Plans the guards of the node. Apart from the rest of it: no ADD fails because a driver takes none.
pub fn plan_guards(intent: &NodeIntent, observed: &Observed, records: &Records) -> Plan {
    match intent.guard {
        GuardMode::Off => withdraw_all(observed),
        GuardMode::Native => {
            let ours = Ours::of_networks(&intent.networks, observed).with_records(records);
            let mut wanted = uplinks(&intent.uplinks, observed, &ours);
            wanted.retain(|name| has_driver(name, observed));
            plan(&wanted, observed)
        }
    }
}

/// Withdraws all.
pub(crate) fn withdraw_all(observed: &Observed) -> Plan {
    plan(&BTreeSet::new(), observed)
}

/// Posts guards at these links, and withdraws all others.
fn plan(wanted: &BTreeSet<IfName>, observed: &Observed) -> Plan {
    let standing = &observed.guards;
    let is_current = |name: &IfName| standing.get(name).is_some_and(|it| it.is_current);
    let strays = standing.keys().filter(|name| !wanted.contains(*name));
    let missing = wanted.iter().filter(|name| !is_current(name));
    let withdrawn = strays.cloned().map(GuardStep::Withdraw);
    let posted = missing.cloned().map(GuardStep::Post);
    Plan::of(withdrawn.chain(posted).map(Step::Guard))
}

/// Bridges have none, and no frame comes by a tunnel without Ethernet.
fn has_driver(name: &IfName, observed: &Observed) -> bool {
    let link = observed.links.get(name);
    link.is_some_and(|link| !matches!(link.kind, LinkKind::Raw | LinkKind::Bridge))
}

impl fmt::Display for GuardMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for GuardStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Post(link) => write!(f, "post a guard at {link}"),
            Self::Withdraw(link) => write!(f, "withdraw the guard from {link}"),
        }
    }
}

impl FromStr for GuardMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let modes = [Self::Off, Self::Native];
        let named = modes.into_iter().find(|mode| mode.name() == text);
        named.ok_or_else(|| format!("{text:?} is none of off, native"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::link;

    fn name(text: &str) -> IfName {
        text.parse().unwrap()
    }

    /// A node whose one link of note, `eth0`, has this agent's guard, or another's, or none.
    fn node(guard: Option<bool>) -> Observed {
        let mut observed = Observed::default();
        observed
            .links
            .insert(name("eth0"), link(2, LinkKind::Ethernet, &[]));
        let guard = guard.map(|is_current| (name("eth0"), Posted { is_current }));
        observed.guards.extend(guard);
        observed
    }

    /// What is planned where `uplink` is the uplink.
    fn planned(guard: GuardMode, uplink: &str, observed: &Observed) -> Vec<String> {
        let intent = NodeIntent {
            uplinks: BTreeSet::from([name(uplink)]),
            guard,
            ..NodeIntent::default()
        };
        let plan = plan_guards(&intent, observed, &Records::new());
        plan.steps().iter().map(ToString::to_string).collect()
    }

    fn steps(mode: GuardMode, guard: Option<bool>) -> Vec<String> {
        planned(mode, "eth0", &node(guard))
    }

    #[test]
    fn a_guard_is_posted_once_and_withdrawn_when_nobody_wants_it() {
        assert_eq!(steps(GuardMode::Native, None), ["post a guard at eth0"]);
        assert!(steps(GuardMode::Native, Some(true)).is_empty());
        assert!(steps(GuardMode::Off, None).is_empty());
        let withdrawn = ["withdraw the guard from eth0"];
        assert_eq!(steps(GuardMode::Off, Some(true)), withdrawn);
        assert_eq!(steps(GuardMode::Off, Some(false)), withdrawn);
    }

    #[test]
    fn a_guard_of_an_agent_before_us_is_relieved() {
        let relieved = steps(GuardMode::Native, Some(false));
        assert_eq!(relieved, ["post a guard at eth0"]);
    }

    #[test]
    fn a_link_that_is_no_uplink_any_more_loses_its_guard() {
        let steps = planned(GuardMode::Native, "eth1", &node(Some(true)));
        assert_eq!(steps, ["withdraw the guard from eth0"]);
    }

    #[test]
    fn where_no_driver_receives_frames_nobody_stands_on_guard() {
        for kind in [LinkKind::Raw, LinkKind::Bridge] {
            let mut observed = node(None);
            for link in observed.links.values_mut() {
                link.kind = kind;
            }
            assert!(planned(GuardMode::Native, "eth0", &observed).is_empty());
        }
    }

    #[test]
    fn modes_are_words() {
        for word in ["off", "native"] {
            assert_eq!(word.parse::<GuardMode>().unwrap().to_string(), word);
        }
        let error = "generic".parse::<GuardMode>().unwrap_err();
        assert!(error.contains("none of"), "{error}");
    }
}
