//! What is wrong with Nodes: reported by name, and it costs only what is wrong.

use std::fmt;

use model::{Cidr, PeerName};

use super::NodeFacts;

/// Something that is wrong with a Node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Problem {
    /// The node itself has no pod CIDR.
    OwnWithoutCidr,
    /// The agent does not accept the name.
    Name { node: String },
    /// The Node has no pod CIDR: its pods are not reached.
    NoCidr { node: String },
    /// The Node has no address of the type `InternalIP`.
    NoAddress { node: String },
    /// The Node has pod CIDRs of a family of which it has no address.
    NoAddressOfFamily { node: String, family: &'static str },
    /// A CIDR or an address of the Node cannot be used.
    Unusable { node: String, text: String },
    /// Two Nodes have prefixes that overlap.
    Overlap {
        /// The Node that has the prefix.
        node: String,
        prefix: Cidr,
        /// The Node without it.
        loser: String,
        lost: Cidr,
    },
}

impl Problem {
    /// Kinds, as values of a metric's label.
    pub(crate) const KINDS: [&'static str; 7] = [
        "own-without-cidr",
        "name",
        "no-cidr",
        "no-address",
        "no-address-of-family",
        "unusable",
        "overlap",
    ];

    /// Returns the kind, one of [`Problem::KINDS`].
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::OwnWithoutCidr => "own-without-cidr",
            Self::Name { .. } => "name",
            Self::NoCidr { .. } => "no-cidr",
            Self::NoAddress { .. } => "no-address",
            Self::NoAddressOfFamily { .. } => "no-address-of-family",
            Self::Unusable { .. } => "unusable",
            Self::Overlap { .. } => "overlap",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnWithoutCidr => f.write_str(
                "this node has no pod CIDR: the controller manager assigns one with --allocate-node-cidrs",
            ),
            Self::Name { node } => write!(f, "node {node:?} has a name that is none of a peer"),
            Self::NoCidr { node } => write!(f, "node {node} has no pod CIDR"),
            Self::NoAddress { node } => write!(f, "node {node} has no InternalIP"),
            Self::NoAddressOfFamily { node, family } => {
                write!(f, "node {node} has an {family} pod CIDR and no {family} InternalIP")
            }
            Self::Unusable { node, text } => {
                write!(f, "node {node} has the unusable CIDR or address {text:?}")
            }
            Self::Overlap {
                node,
                prefix,
                loser,
                lost,
            } => write!(
                f,
                "{lost} of node {loser} overlaps {prefix} of node {node}, which has it"
            ),
        }
    }
}

/// Appends what is wrong with one Node.
pub(super) fn of_node(name: &str, facts: &NodeFacts, problems: &mut Vec<Problem>) {
    let node = || name.to_owned();
    if name.parse::<PeerName>().is_err() {
        problems.push(Problem::Name { node: node() });
    }
    if facts.pod_cidrs.is_empty() {
        problems.push(Problem::NoCidr { node: node() });
    }
    problems.extend(facts.unusable.iter().map(|text| Problem::Unusable {
        node: node(),
        text: text.to_string(),
    }));
    if facts.addresses.is_empty() {
        problems.push(Problem::NoAddress { node: node() });
        return;
    }
    for (is_ipv4, family) in [(true, "IPv4"), (false, "IPv6")] {
        let has_cidr = facts.pod_cidrs.iter().any(|one| one.is_ipv4() == is_ipv4);
        let has_address = facts.addresses.iter().any(|one| one.is_ipv4() == is_ipv4);
        if has_cidr && !has_address {
            let node = node();
            problems.push(Problem::NoAddressOfFamily { node, family });
        }
    }
}

/// Appends overlapping prefixes of two Nodes. The newer Node has the prefix, unless the other one
/// is the node itself, whose own prefixes stay.
///
/// Prefixes are nested or disjoint: in their order, those that contain the next one are a stack.
pub(super) fn of_prefixes(own: &str, by_age: &[(&str, &NodeFacts)], problems: &mut Vec<Problem>) {
    let mut prefixes: Vec<(Cidr, usize)> = by_age
        .iter()
        .enumerate()
        .flat_map(|(age, (_, facts))| facts.pod_cidrs.iter().map(move |cidr| (*cidr, age)))
        .collect();
    prefixes.sort_unstable();
    prefixes.dedup();
    let rank = |age: usize| (by_age[age].0 == own, age);
    let mut around: Vec<(Cidr, usize)> = Vec::new();
    for (prefix, age) in prefixes {
        while around
            .last()
            .is_some_and(|(outer, _)| !outer.overlaps(&prefix))
        {
            around.pop();
        }
        let others = around.iter().filter(|(_, other)| *other != age);
        problems.extend(others.map(|&(outer, other)| {
            let (winner, prefix, loser, lost) = if rank(age) > rank(other) {
                (age, prefix, other, outer)
            } else {
                (other, outer, age, prefix)
            };
            Problem::Overlap {
                node: by_age[winner].0.to_owned(),
                prefix,
                loser: by_age[loser].0.to_owned(),
                lost,
            }
        }));
        around.push((prefix, age));
    }
}
