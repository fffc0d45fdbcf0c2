//! Rules of our chains in filter tables.

use std::fmt;
use std::net::IpAddr;

use model::{Cidr, IfName, Protocol};

/// A rule of a chain of ours. All accept the packet, but for [`AcceptRule::Admin`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AcceptRule {
    /// Packets from a link of ours.
    From(IfName),
    /// Answers to a link of ours: packets of established connections, and errors about them.
    AnswersTo(IfName),
    /// Packets from an address, of an interface that another plugin made.
    FromAddress(IpAddr),
    /// Answers to that address.
    AnswersToAddress(IpAddr),
    /// Packets from a prefix to a link of ours: hosts that reach pods directly.
    Direct(Cidr, IfName),
    /// Packets from the pods of peers to a link of ours.
    Peers {
        /// Link by which they arrive.
        input: IfName,
        /// Their source prefix; `None` for a tunnel, of which the datapath checks the sources.
        source: Option<Cidr>,
        /// Link of ours.
        link: IfName,
    },
    /// Packets to published ports, after the translation.
    ToPorts {
        /// Address of the pod.
        address: IpAddr,
        /// Transport protocol.
        protocol: Protocol,
        /// First and last ports of the pod.
        ports: (u16, u16),
    },
    /// Evaluates a chain of the administrator.
    Admin(String),
}

impl AcceptRule {
    /// Returns an address of the family that the rule is for; `None` for all.
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Self::From(_) | Self::AnswersTo(_) | Self::Admin(_) => None,
            Self::FromAddress(address)
            | Self::AnswersToAddress(address)
            | Self::ToPorts { address, .. } => Some(*address),
            Self::Direct(prefix, _) => Some(prefix.network()),
            Self::Peers { source, .. } => source.as_ref().map(Cidr::network),
        }
    }
}

/// The text is the comment by which a present rule is recognised.
impl fmt::Display for AcceptRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("viaduct: ")?;
        match self {
            Self::From(link) => write!(f, "from {link}"),
            Self::AnswersTo(link) => write!(f, "answers to {link}"),
            Self::FromAddress(address) => write!(f, "from {address}"),
            Self::AnswersToAddress(address) => write!(f, "answers to {address}"),
            Self::Direct(prefix, link) => write!(f, "from {prefix} to {link}"),
            Self::Peers {
                input,
                source: None,
                link,
            } => write!(f, "peers, from {input} to {link}"),
            Self::Peers {
                input,
                source: Some(prefix),
                link,
            } => write!(f, "peers, from {prefix} by {input} to {link}"),
            Self::ToPorts {
                address,
                protocol,
                ports: (first, last),
            } if first == last => write!(f, "to {address} port {first}/{protocol}"),
            Self::ToPorts {
                address,
                protocol,
                ports: (first, last),
            } => write!(f, "to {address} ports {first}-{last}/{protocol}"),
            Self::Admin(chain) => write!(f, "firewall plugin, chain {chain}"),
        }
    }
}
