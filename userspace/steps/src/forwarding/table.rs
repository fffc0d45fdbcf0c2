//! Filter tables as observed: base chains, and rules as far as they matter for forwarding.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use super::names::{ADMIN_CHAIN, FORWARD_CHAIN};
use super::place::Place;

/// Interface by which a table is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FilterBackend {
    /// nftables, by netlink. iptables-nft has its tables there, too.
    Nftables,
    /// The older tables of iptables-legacy, by socket options.
    Xtables,
}

/// Family of a filter table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FilterFamily {
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// IPv4 and IPv6.
    Inet,
    /// Frames of bridges.
    Bridge,
}

impl FilterFamily {
    /// Returns the family of the address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() {
            Self::Ip
        } else {
            Self::Ip6
        }
    }

    /// Returns the families of the addresses that a table of this family filters.
    pub fn addresses(self) -> &'static [Self] {
        match self {
            Self::Ip => &[Self::Ip],
            Self::Ip6 => &[Self::Ip6],
            Self::Inet | Self::Bridge => &[Self::Ip, Self::Ip6],
        }
    }
}

/// A filter table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilterTable {
    /// How it is read and written.
    pub backend: FilterBackend,
    /// Family.
    pub family: FilterFamily,
    /// Name.
    pub name: String,
}

impl FilterTable {
    /// Returns the filter table of iptables-nft.
    pub fn iptables(family: FilterFamily) -> Self {
        Self {
            backend: FilterBackend::Nftables,
            family,
            name: "filter".to_owned(),
        }
    }

    /// Returns whether it is a filter table of iptables or ip6tables, of either backend.
    pub fn is_iptables(&self) -> bool {
        matches!(self.family, FilterFamily::Ip | FilterFamily::Ip6) && self.name == "filter"
    }
}

impl fmt::Display for FilterTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = match self.family {
            FilterFamily::Ip => "ip",
            FilterFamily::Ip6 => "ip6",
            FilterFamily::Inet => "inet",
            FilterFamily::Bridge => "bridge",
        };
        write!(f, "table {family} {}", self.name)?;
        match self.backend {
            FilterBackend::Nftables => Ok(()),
            FilterBackend::Xtables => f.write_str(" (legacy)"),
        }
    }
}

/// State of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableState {
    /// Identifies the state: a write is refused when the table has another one.
    pub generation: u64,
    /// Base chains of hooks that forwarded packets pass.
    pub base: Vec<BaseChain>,
    /// Rules of all chains.
    pub rules: BTreeMap<String, Vec<FilterRule>>,
}

/// A base chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseChain {
    /// Name.
    pub name: String,
    /// Hook.
    pub hook: FilterHook,
    /// Whether the policy is to drop.
    pub drops: bool,
}

/// Hook of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FilterHook {
    /// Before routing.
    Prerouting,
    /// Between routing and postrouting.
    Forward,
    /// After routing.
    Postrouting,
    /// Packets of the node's own processes, after routing.
    Output,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterRule {
    /// Identifies the rule in its chain.
    pub handle: u64,
    /// Conditions; the rule applies where all are met.
    pub conditions: Vec<Condition>,
    /// Verdict.
    pub action: Action,
    /// Comment; of a rule of ours, its text.
    pub comment: String,
}

/// Condition of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Incoming interface. A final `*` stands for any rest of the name.
    Input {
        /// Name or pattern.
        name: String,
        /// Whether all other interfaces meet it.
        negated: bool,
    },
    /// Outgoing interface.
    Output {
        /// Name or pattern.
        name: String,
        /// Whether all other interfaces meet it.
        negated: bool,
    },
    /// State of the connection that the first packet of a connection does not have.
    NotNew,
    /// Transport protocol, by number.
    Protocol {
        /// Number.
        number: u8,
        /// Whether all other protocols meet it.
        negated: bool,
    },
    /// Source or destination address.
    Address {
        /// Whether it is the source.
        source: bool,
        /// Network address.
        network: IpAddr,
        /// Prefix length.
        prefix_len: u8,
        /// Whether all other addresses meet it.
        negated: bool,
    },
    /// Source or destination port.
    Port {
        /// Whether it is the source.
        source: bool,
        /// First and last port of each range.
        ranges: Vec<(u16, u16)>,
        /// Whether all other ports meet it.
        negated: bool,
    },
    /// Destination that is an address of the node.
    LocalDestination {
        /// Whether all other destinations meet it.
        negated: bool,
    },
    /// Mark of the packet or of its connection, which packets of pods do not have.
    Mark,
    /// Anything else.
    Other,
}

/// Verdict of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// None: the next rule is evaluated.
    Continue,
    /// Accepts the packet in this base chain.
    Accept,
    /// Drops or rejects the packet.
    Drop,
    /// Evaluates a chain and comes back.
    Jump(String),
    /// Evaluates a chain in place of the rest of this one.
    Goto(String),
    /// Ends the chain.
    Return,
    /// Anything else that ends the evaluation.
    Other,
}

/// A jump of a chain of other software to one of ours.
pub struct OwnJump {
    /// Chain of other software.
    pub chain: String,
    /// Handle of the rule in the chain.
    pub handle: u64,
    /// Chain of ours.
    pub to: &'static str,
}

impl FilterRule {
    /// Returns whether the rule applies to every packet.
    pub fn is_unconditional(&self) -> bool {
        self.conditions.is_empty()
    }

    /// Returns the chain of ours that the rule jumps to.
    pub fn own_target(&self) -> Option<&'static str> {
        let Action::Jump(to) = &self.action else {
            return None;
        };
        [FORWARD_CHAIN, ADMIN_CHAIN]
            .into_iter()
            .find(|own| own == to)
    }
}

impl TableState {
    /// Returns the rules of a chain that are not ours.
    pub fn foreign_rules(&self, chain: &str) -> Vec<&FilterRule> {
        let rules = self.rules.get(chain).map(Vec::as_slice);
        let foreign = rules.unwrap_or_default().iter();
        foreign.filter(|rule| rule.own_target().is_none()).collect()
    }

    /// Returns the jumps to chains of ours.
    pub fn own_jumps(&self) -> Vec<OwnJump> {
        let all = self
            .rules
            .iter()
            .flat_map(|(chain, rules)| rules.iter().map(move |rule| (chain, rule)));
        all.filter_map(|(chain, rule)| {
            Some(OwnJump {
                chain: chain.clone(),
                handle: rule.handle,
                to: rule.own_target()?,
            })
        })
        .collect()
    }

    /// Returns whether a jump is where it belongs: no rule of other software is between.
    pub fn is_at(&self, jump: &OwnJump, place: &Place) -> bool {
        if jump.chain != place.chain() {
            return false;
        }
        let rules = self
            .rules
            .get(&jump.chain)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let Some(at) = rules.iter().position(|rule| rule.handle == jump.handle) else {
            return false;
        };
        let is_own = |rule: &FilterRule| rule.own_target().is_some();
        let mut after = rules.iter().skip(at + 1).filter(|rule| !is_own(rule));
        match place {
            Place::First { .. } => rules.iter().take(at).all(is_own),
            Place::Last { .. } => after.next().is_none(),
            Place::Before { handle, .. } => after.next().is_some_and(|rule| rule.handle == *handle),
        }
    }

    /// Returns the comments of a chain's rules; `None` where there is no such chain.
    pub fn comments(&self, chain: &str) -> Option<Vec<String>> {
        let rules = self.rules.get(chain)?.iter();
        Some(rules.map(|rule| rule.comment.clone()).collect())
    }

    /// Returns whether the chain exists, is empty but for rules of ours, accepts by default, and is
    /// reached from rules of ours only.
    pub fn is_unused(&self, chain: &str) -> bool {
        let reached = self.rules.iter().any(|(from, rules)| {
            from != ADMIN_CHAIN
                && rules.iter().any(|rule| {
                    matches!(&rule.action, Action::Jump(to) | Action::Goto(to) if to == chain)
                })
        });
        let drops = self
            .base
            .iter()
            .any(|base| base.name == chain && base.drops);
        self.rules.contains_key(chain) && self.foreign_rules(chain).is_empty() && !reached && !drops
    }
}
