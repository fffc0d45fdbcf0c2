//! Evaluates the first packet of a connection from a pod to the world in an observed table.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::IfName;

use steps::{Action, Condition, FilterFamily, FilterRule, TableState};

/// Number of TCP.
const TCP: u8 = 6;

/// First packet of a TCP connection from a pod to the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Family of its addresses.
    pub family: FilterFamily,
    /// Link that the pod's packets come from.
    pub input: IfName,
    /// Links to the world.
    pub outputs: BTreeSet<IfName>,
    /// Address of the pod, or of its subnet.
    pub source: IpAddr,
    /// Whether interfaces are ports of a bridge, whose names are not known.
    pub(crate) is_bridged: bool,
}

impl Probe {
    /// Makes the packet as tables of the inet families see it.
    pub fn new(
        family: FilterFamily,
        input: IfName,
        outputs: BTreeSet<IfName>,
        source: IpAddr,
    ) -> Self {
        Self {
            family,
            input,
            outputs,
            source,
            is_bridged: false,
        }
    }
}

/// Fate of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Dropped, whatever the unknown conditions are.
    Dropped,
    /// Accepted, or unknown.
    Other,
}

enum End {
    Through,
    Dropped,
    Other,
}

/// Returns the fate of the packet in a base chain that drops by default.
pub(crate) fn fate(state: &TableState, base: &str, probe: &Probe) -> Fate {
    let drops = state
        .base
        .iter()
        .any(|chain| chain.name == base && chain.drops);
    match evaluate(state, base, probe, 0) {
        End::Dropped => Fate::Dropped,
        End::Through if drops => Fate::Dropped,
        End::Through | End::Other => Fate::Other,
    }
}

fn evaluate(state: &TableState, chain: &str, probe: &Probe, depth: usize) -> End {
    if depth > 32 {
        return End::Other;
    }
    for rule in state.foreign_rules(chain) {
        let Some(sure) = meets(rule, probe) else {
            continue;
        };
        let end = match &rule.action {
            Action::Continue => continue,
            Action::Accept | Action::Other => return End::Other,
            Action::Drop => End::Dropped,
            Action::Return => End::Through,
            Action::Jump(to) | Action::Goto(to) => evaluate(state, to, probe, depth + 1),
        };
        match (end, sure) {
            (End::Other, _) => return End::Other,
            (End::Dropped, true) => return End::Dropped,
            // An end of this chain, if the condition is met: the next rules could accept.
            (End::Through, true) if !matches!(rule.action, Action::Jump(_)) => return End::Through,
            _ => {}
        }
    }
    End::Through
}

/// Returns whether the packet is sure to meet the conditions of the rule; `None` where it does not
/// meet them.
fn meets(rule: &FilterRule, probe: &Probe) -> Option<bool> {
    let mut sure = true;
    for condition in &rule.conditions {
        sure &= meets_one(condition, probe)?;
    }
    Some(sure)
}

fn meets_one(condition: &Condition, probe: &Probe) -> Option<bool> {
    let known = |is_met: bool, negated: bool| (is_met != negated).then_some(true);
    match condition {
        Condition::Input { .. } | Condition::Output { .. } if probe.is_bridged => Some(false),
        Condition::Input { name, negated } => {
            known(matches_name(name, probe.input.as_str()), *negated)
        }
        Condition::Output { name, negated } => {
            let names = || {
                probe
                    .outputs
                    .iter()
                    .map(|output| matches_name(name, output.as_str()))
            };
            match (names().all(|it| it), names().any(|it| it)) {
                (_, false) => known(false, *negated),
                (true, true) => known(true, *negated),
                (false, true) => Some(false),
            }
        }
        Condition::NotNew | Condition::Mark => None,
        Condition::Protocol { number, negated } => known(*number == TCP, *negated),
        Condition::Address {
            source,
            network,
            prefix_len,
            negated,
        } => {
            let prefix = model::Cidr::containing(*network, *prefix_len);
            let address = if *source { Some(probe.source) } else { None };
            let is_met = match address {
                Some(address) => prefix.is_some_and(|prefix| prefix.contains(address)),
                // The world is behind no prefix but the default.
                None => *prefix_len == 0,
            };
            known(is_met, *negated)
        }
        Condition::Port { .. } | Condition::LocalDestination { .. } | Condition::Other => {
            Some(false)
        }
    }
}

fn matches_name(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    }
}
