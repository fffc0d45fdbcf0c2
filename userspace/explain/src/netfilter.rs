//! Evaluates a packet in the tables of netfilter, as far as their conditions are known.
//!
//! Three-valued: a rule with a condition that is not known may or may not apply. A packet is said
//! to be dropped only where every possible evaluation drops it. Where a rule leads a connection is
//! not decoded: it is said that it may be translated, and by which rule.

use std::collections::BTreeMap;
use std::net::IpAddr;

use steps::{
    Action, BaseChain, Condition, FilterFamily, FilterHook, FilterRule, FilterTable, ForwardTables,
    TableState,
};

/// Longest chain of jumps that is followed; the kernel's limit is 16.
const DEEPEST: usize = 32;

/// A packet as netfilter sees it.
#[derive(Clone, Debug)]
pub(crate) struct FilteredPacket {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) protocol: u8,
    /// Source and destination port; `None` for a protocol without ports.
    pub(crate) ports: Option<[u16; 2]>,
    /// Whether the destination is an address of the node.
    pub(crate) is_local: bool,
    /// Name of the link that it came in by.
    pub(crate) input: String,
    /// Name of the link that it leaves by; `None` before the route is known.
    pub(crate) output: Option<String>,
    /// Whether it opens a connection.
    pub(crate) is_new: bool,
}

/// The verdict of all chains of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Filtered {
    /// No chain filters such packets.
    NoChain,
    /// All chains accept it. Their names.
    Accepted(String),
    /// A rule or policy drops it.
    Dropped(String),
    /// A rule or policy may drop it: it has conditions that are not known here.
    Unknown(String),
}

/// Evaluates the packet in the tables of IP, or of bridges, at a hook.
pub(crate) fn evaluate(
    tables: &ForwardTables,
    hook: FilterHook,
    is_bridged: bool,
    packet: &FilteredPacket,
) -> Filtered {
    let family = FilterFamily::of(packet.source);
    let concerned = tables.tables.iter().filter(|(table, _)| {
        (table.family == FilterFamily::Bridge) == is_bridged
            && table.family.addresses().contains(&family)
    });
    let (mut names, mut unknown) = (Vec::new(), None);
    for (table, state) in concerned {
        for base in state.base.iter().filter(|base| base.hook == hook) {
            names.push(format!("{} of {table}", base.name));
            let ends = Evaluation {
                table,
                state,
                packet,
            }
            .base(base);
            match ends.dropped {
                Some(by) if !ends.accepted && ends.unknown.is_none() => {
                    return Filtered::Dropped(by);
                }
                Some(by) => unknown = unknown.or(Some(by)),
                None => unknown = unknown.or(ends.unknown),
            }
        }
    }
    match unknown {
        Some(by) => Filtered::Unknown(by),
        None if names.is_empty() => Filtered::NoChain,
        None => Filtered::Accepted(names.join(", ")),
    }
}

/// Returns the first rule that may translate the destination of the packet, which opens a
/// connection, in the tables of IP at a hook.
pub(crate) fn translator(
    tables: &BTreeMap<FilterTable, TableState>,
    hook: FilterHook,
    packet: &FilteredPacket,
) -> Option<String> {
    let family = FilterFamily::of(packet.source);
    let mut concerned = tables.iter().filter(|(table, _)| {
        table.family != FilterFamily::Bridge && table.family.addresses().contains(&family)
    });
    concerned.find_map(|(table, state)| {
        let mut chains = state.base.iter().filter(|base| base.hook == hook);
        let evaluation = Evaluation {
            table,
            state,
            packet,
        };
        chains.find_map(|base| evaluation.base(base).unknown)
    })
}

/// The ways in which the evaluation of a chain may end.
#[derive(Default)]
struct Ends {
    /// Behind the last rule, or by a rule that returns.
    through: bool,
    accepted: bool,
    /// By this rule or policy.
    dropped: Option<String>,
    /// By this rule, whose verdict is not known.
    unknown: Option<String>,
}

struct Evaluation<'a> {
    table: &'a FilterTable,
    state: &'a TableState,
    packet: &'a FilteredPacket,
}

impl Evaluation<'_> {
    fn base(&self, base: &BaseChain) -> Ends {
        let mut ends = Ends::default();
        self.chain(&base.name, 0, &mut ends);
        if ends.through && base.drops {
            let policy = format!("policy DROP of chain {} of {}", base.name, self.table);
            ends.dropped.get_or_insert(policy);
        } else if ends.through {
            ends.accepted = true;
        }
        ends
    }

    /// Adds the ways in which the evaluation of a chain may end.
    fn chain(&self, name: &str, depth: usize, ends: &mut Ends) {
        let rules = self.state.rules.get(name).map(Vec::as_slice);
        for (index, rule) in rules.unwrap_or_default().iter().enumerate() {
            let Some(is_sure) = self.meets(rule) else {
                continue;
            };
            let this = || {
                let comment = match rule.comment.as_str() {
                    "" => String::new(),
                    text => format!(" ({text:?})"),
                };
                let number = index + 1;
                format!("rule {number} of chain {name} of {}{comment}", self.table)
            };
            let is_end = match &rule.action {
                Action::Continue => false,
                Action::Accept => {
                    ends.accepted = true;
                    true
                }
                Action::Drop => {
                    ends.dropped.get_or_insert_with(this);
                    true
                }
                Action::Other => {
                    ends.unknown.get_or_insert_with(this);
                    true
                }
                Action::Return => {
                    ends.through = true;
                    true
                }
                Action::Jump(_) | Action::Goto(_) if depth == DEEPEST => {
                    ends.unknown.get_or_insert_with(this);
                    true
                }
                Action::Jump(to) => {
                    let before = std::mem::take(&mut ends.through);
                    self.chain(to, depth + 1, ends);
                    let comes_back = std::mem::replace(&mut ends.through, before);
                    !comes_back
                }
                Action::Goto(to) => {
                    self.chain(to, depth + 1, ends);
                    true
                }
            };
            if is_end && is_sure {
                return;
            }
        }
        ends.through = true;
    }

    /// Returns whether the packet is sure to meet the conditions of a rule; `None` where it does
    /// not meet them.
    fn meets(&self, rule: &FilterRule) -> Option<bool> {
        let mut is_sure = true;
        for condition in &rule.conditions {
            is_sure &= self.meets_one(condition)?;
        }
        Some(is_sure)
    }

    fn meets_one(&self, condition: &Condition) -> Option<bool> {
        let known = |is_met: bool, negated: bool| (is_met != negated).then_some(true);
        let is_bridged = self.table.family == FilterFamily::Bridge;
        match condition {
            Condition::Input { .. } | Condition::Output { .. } if is_bridged => Some(false),
            Condition::Input { name, negated } => {
                known(matches_name(name, &self.packet.input), *negated)
            }
            Condition::Output { name, negated } => match &self.packet.output {
                Some(output) => known(matches_name(name, output), *negated),
                None => Some(false),
            },
            Condition::NotNew => (!self.packet.is_new).then_some(false),
            // Packets of pods have no mark when they arrive; rules may set one.
            Condition::Mark | Condition::Other => Some(false),
            Condition::Protocol { number, negated } => {
                known(*number == self.packet.protocol, *negated)
            }
            Condition::Port {
                source,
                ranges,
                negated,
            } => match self.packet.ports {
                Some([from, to]) => {
                    let port = if *source { from } else { to };
                    let mut ranges = ranges.iter();
                    let is_met = ranges.any(|(first, last)| (*first..=*last).contains(&port));
                    known(is_met, *negated)
                }
                None => None,
            },
            Condition::LocalDestination { negated } => known(self.packet.is_local, *negated),
            Condition::Address {
                source,
                network,
                prefix_len,
                negated,
            } => {
                let prefix = model::Cidr::containing(*network, *prefix_len);
                let address = if *source {
                    self.packet.source
                } else {
                    self.packet.destination
                };
                known(
                    prefix.is_some_and(|prefix| prefix.contains(address)),
                    *negated,
                )
            }
        }
    }
}

fn matches_name(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    }
}

#[cfg(test)]
mod tests;
