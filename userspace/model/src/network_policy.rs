//! Network policies: which connections pods may open, and which they accept. The meaning is that of
//! Kubernetes' `NetworkPolicy` (`networking.k8s.io/v1`), without selectors: the program that brings
//! the policies has resolved them into pods and addresses.

mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use crate::{Cidr, PodName, Protocol};

pub use self::text::InvalidPolicyText;

/// A policy. Policies only add up: what one allows, no other forbids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkPolicy {
    /// Name, for people: `namespace/name` in Kubernetes.
    pub name: String,
    /// The pods of this node that it selects.
    pub pods: BTreeSet<PodSelector>,
    /// The connections that the pods accept. `None` where the policy says nothing about them; an
    /// empty list accepts none.
    pub ingress: Option<Vec<PolicyRule>>,
    /// The connections that the pods may open, as above.
    pub egress: Option<Vec<PolicyRule>>,
}

impl NetworkPolicy {
    /// Returns the rules of a direction; `None` where the policy says nothing about it.
    pub fn rules(&self, direction: PolicyDirection) -> Option<&[PolicyRule]> {
        match direction {
            PolicyDirection::Ingress => self.ingress.as_deref(),
            PolicyDirection::Egress => self.egress.as_deref(),
        }
    }
}

/// Direction of a connection, as seen from the selected pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyDirection {
    /// Opened to the pod.
    Ingress,
    /// Opened by the pod.
    Egress,
}

impl PolicyDirection {
    /// Both directions.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// Returns the lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

impl fmt::Display for PolicyDirection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Pods of this node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodSelector {
    /// The pod of this name, which holds before the pod has an address.
    Name(PodName),
    /// Each pod with an address of this prefix.
    Prefix(Cidr),
}

impl PodSelector {
    /// Returns whether a pod with this name and these addresses is selected.
    pub fn selects(&self, name: Option<&PodName>, addresses: &[IpAddr]) -> bool {
        match self {
            Self::Name(own) => name == Some(own),
            Self::Prefix(prefix) => addresses.iter().any(|address| prefix.contains(*address)),
        }
    }
}

/// What a rule allows: connections with any of the peers by any of the ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyRule {
    /// The other ends; `None` for all of them.
    pub peers: Option<Vec<PolicyPeer>>,
    /// Ports of the end that accepts the connection; none for all ports and protocols.
    pub ports: Vec<PolicyPort>,
}

/// Other ends of connections.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyPeer {
    /// The addresses of a prefix, without those of others within it.
    Block {
        /// The prefix.
        cidr: Cidr,
        /// Prefixes within it.
        except: Vec<Cidr>,
    },
    /// The addresses of a group of [`NetworkPolicies`].
    Group(String),
}

impl PolicyPeer {
    /// Returns the addresses of `cidr` without those of `except`, each of which is smaller, as in
    /// Kubernetes.
    pub fn block(cidr: Cidr, except: Vec<Cidr>) -> Result<Self, InvalidBlock> {
        for prefix in [&cidr].into_iter().chain(&except) {
            refuse_mapped(*prefix)?;
        }
        let is_part =
            |hole: &Cidr| cidr.contains(hole.network()) && hole.prefix_len() > cidr.prefix_len();
        match except.iter().find(|hole| !is_part(hole)) {
            Some(hole) => Err(InvalidBlock::Except { hole: *hole, cidr }),
            None => Ok(Self::Block { cidr, except }),
        }
    }
}

/// Prefixes that are no block of a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBlock {
    /// No packet has such an address (RFC 4291, 2.5.5.2).
    #[error("{0}: IPv4 in IPv6; give the IPv4 prefix")]
    Mapped(Cidr),
    /// An exception is not within the block, or is all of it.
    #[error("except {hole} is not a part of {cidr}")]
    Except {
        /// The exception.
        hole: Cidr,
        /// The block.
        cidr: Cidr,
    },
}

/// Refuses IPv4 addresses as IPv6 ones.
pub fn refuse_mapped(prefix: Cidr) -> Result<Cidr, InvalidBlock> {
    match prefix.network() {
        IpAddr::V6(network) if network.to_ipv4_mapped().is_some() => {
            Err(InvalidBlock::Mapped(prefix))
        }
        IpAddr::V4(_) | IpAddr::V6(_) => Ok(prefix),
    }
}

/// Ports of one protocol, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyPort {
    /// The protocol.
    pub protocol: Protocol,
    /// First and last port; `None` for all.
    pub ports: Option<(u16, u16)>,
}

/// All policies, and the groups of addresses that their rules name.
///
/// Its text has a line for each group, policy, selector and rule. Names have all bytes but those of
/// letters, digits, `-`, `.` and `_` as `%` and two hexadecimal digits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkPolicies {
    /// The policies.
    pub policies: Vec<NetworkPolicy>,
    /// Addresses and prefixes of each group.
    pub groups: BTreeMap<String, BTreeSet<Cidr>>,
}
