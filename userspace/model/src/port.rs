//! Port mappings (hostports) of a runtime's request.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::str::FromStr;

/// A protocol whose ports can be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// Transmission Control Protocol.
    Tcp,
    /// User Datagram Protocol.
    Udp,
    /// Stream Control Transmission Protocol.
    Sctp,
}

impl Protocol {
    /// Returns the IP protocol number.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// Returns the lower-case name, for example `tcp`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

/// A protocol that is not tcp, udp or sctp.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown protocol {0:?}: tcp, udp and sctp are known")]
pub struct UnknownProtocol(pub String);

impl FromStr for Protocol {
    type Err = UnknownProtocol;

    fn from_str(text: &str) -> Result<Self, UnknownProtocol> {
        [Self::Tcp, Self::Udp, Self::Sctp]
            .into_iter()
            .find(|protocol| protocol.name().eq_ignore_ascii_case(text))
            .ok_or_else(|| UnknownProtocol(text.to_owned()))
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One published host port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortMapping {
    /// Port of the node (`hostPort`).
    pub host_port: NonZeroU16,
    /// Port of the pod (`containerPort`).
    pub container_port: NonZeroU16,
    /// Transport protocol.
    pub protocol: Protocol,
    /// The only address of the node that is published (`hostIP`); `None` for all.
    pub host_address: Option<IpAddr>,
}

/// A published port, in one address family, that another interface of the same container serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StandbyPort {
    /// The published port.
    pub mapping: PortMapping,
    /// Whether the family is IPv4.
    pub ipv4: bool,
}

impl fmt::Display for PortMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host_address {
            Some(IpAddr::V6(v6)) => write!(f, "[{v6}]:")?,
            Some(IpAddr::V4(v4)) => write!(f, "{v4}:")?,
            None => {}
        }
        write!(
            f,
            "{}->{}/{}",
            self.host_port, self.container_port, self.protocol
        )
    }
}
