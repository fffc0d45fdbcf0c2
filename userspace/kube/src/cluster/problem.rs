//! What is wrong with Nodes: reported by name, and it costs only what is wrong.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

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
    /// A prefix overlaps one of another Node, and is not used.
    Overlap {
        /// The Node that has its prefix.
        node: String,
        prefix: Cidr,
        /// The Node without one.
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

/// Appends each prefix that is not used, with the Node that has it. As in the agent, the newest
/// Node comes first, and a prefix is used if it overlaps no used one; the prefixes of the node
/// itself precede all others.
pub(super) fn of_prefixes(own: &str, by_age: &[(&str, &NodeFacts)], problems: &mut Vec<Problem>) {
    let own_node = by_age.iter().find(|(name, _)| *name == own);
    let own_prefixes = own_node.map_or(&[][..], |(_, facts)| &facts.pod_cidrs);
    // Used prefixes, which are disjoint, by their network address.
    let mut used: BTreeMap<IpAddr, (Cidr, &str)> = BTreeMap::new();
    for &(name, facts) in by_age.iter().rev().filter(|(name, _)| *name != own) {
        for prefix in &facts.pod_cidrs {
            let of_own = own_prefixes.iter().find(|one| one.overlaps(prefix));
            let winner = of_own.map(|one| (*one, own)).or_else(|| {
                // One that overlaps is the last that begins before the end.
                let (_, last) = used.range(..=prefix.last()).next_back()?;
                Some(*last).filter(|(one, _)| one.overlaps(prefix))
            });
            match winner {
                None => {
                    used.insert(prefix.network(), (*prefix, name));
                }
                // Two prefixes of one Node.
                Some((_, node)) if node == name => {}
                Some((taken, node)) => problems.push(Problem::Overlap {
                    node: node.to_owned(),
                    prefix: taken,
                    loser: name.to_owned(),
                    lost: *prefix,
                }),
            }
        }
    }
}
