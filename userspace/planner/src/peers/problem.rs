//! What cannot be applied of a list of peers, and why.

use std::fmt;
use std::net::IpAddr;

use model::{Cidr, DegradedReason, IfName, PeerName};

/// What cannot be applied of a list of peers, and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeerProblem {
    /// A newer peer has the same name.
    DuplicateName {
        /// Name of both.
        peer: PeerName,
    },
    /// The peer has an address of this node, and other prefixes.
    OwnAddress {
        /// Name of the peer.
        peer: PeerName,
        /// The address.
        address: IpAddr,
    },
    /// A newer peer has the same address.
    DuplicateAddress {
        /// Name of the peer.
        peer: PeerName,
        /// The address.
        address: IpAddr,
        /// Name of the newer peer.
        other: PeerName,
    },
    /// A prefix overlaps a subnet of this node.
    OverlapsOwn {
        /// Name of the peer.
        peer: PeerName,
        /// The prefix.
        prefix: Cidr,
        /// The subnet.
        subnet: Cidr,
    },
    /// A prefix overlaps one of a newer peer.
    OverlapsPeer {
        /// Name of the peer.
        peer: PeerName,
        /// The prefix.
        prefix: Cidr,
        /// Name of the newer peer.
        other: PeerName,
        /// Prefix of the newer peer.
        taken: Cidr,
    },
    /// A prefix contains an address of a node: a route to it would lead away from that node.
    ContainsNode {
        /// Name of the peer.
        peer: PeerName,
        /// The prefix.
        prefix: Cidr,
        /// The address.
        address: IpAddr,
    },
    /// The peer has no address of a family on a link of this node, and has prefixes of that family.
    NotOnLink {
        /// Name of the peer.
        peer: PeerName,
        /// Whether the family is IPv4.
        ipv4: bool,
    },
    /// This node has no route to any address of the peer.
    NoRoute {
        /// Name of the peer.
        peer: PeerName,
    },
    /// A link of other software has the name of a tunnel.
    TunnelTaken {
        /// The link.
        link: IfName,
    },
    /// This node's entry has another name than the agent is configured with.
    OwnName {
        /// Name of the entry.
        peer: PeerName,
        /// Configured name.
        node: PeerName,
    },
    /// Other software has a route to a prefix.
    RouteTaken {
        /// Name of the peer.
        peer: PeerName,
        /// The prefix.
        prefix: Cidr,
        /// Number of the software (`rtm_protocol`).
        protocol: u8,
    },
    /// Routes of other software have more prefixes than the datapath's table has entries.
    TooManyRoutes {
        /// Number of prefixes that are masqueraded therefore.
        count: usize,
    },
}

/// Kind of a problem: each has a degraded reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeerProblemKind {
    /// Names, addresses or prefixes are in conflict.
    Conflict,
    /// A peer is not on a link.
    NotOnLink,
    /// No address of a peer is reached.
    NoRoute,
    /// A tunnel cannot be made.
    Tunnel,
    /// Other software has a route.
    RouteTaken,
    /// Routes have too many prefixes.
    TooManyRoutes,
}

impl PeerProblemKind {
    /// Returns the reason.
    pub fn reason(self) -> DegradedReason {
        match self {
            Self::Conflict => DegradedReason::PeerConflict,
            Self::NotOnLink => DegradedReason::PeerNotOnLink,
            Self::NoRoute => DegradedReason::PeerUnreachable,
            Self::Tunnel => DegradedReason::TunnelUnavailable,
            Self::RouteTaken => DegradedReason::PeerRouteTaken,
            Self::TooManyRoutes => DegradedReason::TooManyRoutes,
        }
    }
}

impl PeerProblem {
    /// Returns the kind.
    pub fn kind(&self) -> PeerProblemKind {
        match self {
            Self::DuplicateName { .. }
            | Self::OwnAddress { .. }
            | Self::DuplicateAddress { .. }
            | Self::OverlapsOwn { .. }
            | Self::OverlapsPeer { .. }
            | Self::ContainsNode { .. }
            | Self::OwnName { .. } => PeerProblemKind::Conflict,
            Self::NoRoute { .. } => PeerProblemKind::NoRoute,
            Self::TunnelTaken { .. } => PeerProblemKind::Tunnel,
            Self::NotOnLink { .. } => PeerProblemKind::NotOnLink,
            Self::RouteTaken { .. } => PeerProblemKind::RouteTaken,
            Self::TooManyRoutes { .. } => PeerProblemKind::TooManyRoutes,
        }
    }

    /// Returns the name of the peer.
    pub fn peer(&self) -> Option<&PeerName> {
        match self {
            Self::DuplicateName { peer }
            | Self::OwnAddress { peer, .. }
            | Self::DuplicateAddress { peer, .. }
            | Self::OverlapsOwn { peer, .. }
            | Self::OverlapsPeer { peer, .. }
            | Self::ContainsNode { peer, .. }
            | Self::NotOnLink { peer, .. }
            | Self::NoRoute { peer }
            | Self::OwnName { peer, .. }
            | Self::RouteTaken { peer, .. } => Some(peer),
            Self::TooManyRoutes { .. } | Self::TunnelTaken { .. } => None,
        }
    }
}

impl PeerProblem {
    /// Writes what prevents a way to a peer.
    fn write_way(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::NotOnLink { peer, ipv4 } = self {
            let family = if *ipv4 { "IPv4" } else { "IPv6" };
            write!(
                f,
                "peer {peer} has no {family} address on a link of this node"
            )
        } else if let Self::NoRoute { peer } = self {
            write!(f, "this node has no route to any address of peer {peer}")
        } else if let Self::TunnelTaken { link } = self {
            write!(
                f,
                "link {link} is not Viaduct's: there is no tunnel until it has another name"
            )
        } else if let Self::OwnName { peer, node } = self {
            write!(
                f,
                "this node is {peer} in the list of peers, and {node} by --node-name: tunnels of other nodes do not reach it"
            )
        } else {
            Ok(())
        }
    }
}

impl fmt::Display for PeerProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DuplicateName { peer } => {
                write!(
                    f,
                    "peer {peer} is listed twice: only the last entry is used"
                )
            }
            Self::OwnAddress { peer, address } => {
                write!(f, "peer {peer} has the address {address} of this node")
            }
            Self::DuplicateAddress {
                peer,
                address,
                other,
            } => write!(f, "peer {peer} has the address {address} of peer {other}"),
            Self::OverlapsOwn {
                peer,
                prefix,
                subnet,
            } => write!(
                f,
                "peer {peer}: {prefix} overlaps this node's own subnet {subnet}"
            ),
            Self::OverlapsPeer {
                peer,
                prefix,
                other,
                taken,
            } => write!(
                f,
                "peer {peer}: {prefix} overlaps {taken} of the newer peer {other}"
            ),
            Self::ContainsNode {
                peer,
                prefix,
                address,
            } => write!(
                f,
                "peer {peer}: {prefix} contains the node address {address}"
            ),
            Self::NotOnLink { .. }
            | Self::NoRoute { .. }
            | Self::TunnelTaken { .. }
            | Self::OwnName { .. } => self.write_way(f),
            Self::RouteTaken {
                peer,
                prefix,
                protocol,
            } => write!(
                f,
                "peer {peer}: other software (route protocol {protocol}) has a route to {prefix}"
            ),
            Self::TooManyRoutes { count } => write!(
                f,
                "routes of --non-masquerade-routes have {count} prefixes: too many, so all of them are masqueraded"
            ),
        }
    }
}
