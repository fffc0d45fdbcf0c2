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
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// Returns the protocol with an IP protocol number.
    pub fn from_number(number: u8) -> Option<Self> {
        (Self::ALL.into_iter()).find(|protocol| protocol.number() == number)
    }

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
        (Self::ALL.into_iter())
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

/// Consecutive host ports that are published to consecutive ports of the pod; a single port is a
/// range of one. The form of published ports in records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    first: PortMapping,
    count: NonZeroU16,
}

impl PortRange {
    /// Returns the range of `count` ports that begins with `first`; `None` if it ends above 65535.
    pub fn new(first: PortMapping, count: NonZeroU16) -> Option<Self> {
        let ends = |port: NonZeroU16| port.checked_add(count.get() - 1).is_some();
        (ends(first.host_port) && ends(first.container_port)).then_some(Self { first, count })
    }

    /// Returns the mappings as ranges, in their order. Mappings form a range only where they follow
    /// each other in ascending order, so that the ranges are the same list.
    pub fn of<'a>(mappings: impl IntoIterator<Item = &'a PortMapping>) -> Vec<Self> {
        let mut ranges: Vec<Self> = Vec::new();
        for mapping in mappings {
            match ranges.last_mut() {
                Some(last) if last.next() == Some(*mapping) => {
                    last.count = last.count.saturating_add(1);
                }
                _ => ranges.push(Self {
                    first: *mapping,
                    count: NonZeroU16::MIN,
                }),
            }
        }
        ranges
    }

    /// Returns the first mapping.
    pub fn first(&self) -> PortMapping {
        self.first
    }

    /// Returns the number of ports.
    pub fn count(&self) -> NonZeroU16 {
        self.count
    }

    /// Returns the mappings, in ascending order.
    pub fn mappings(&self) -> impl Iterator<Item = PortMapping> + use<> {
        let Self { first, count } = *self;
        (0..count.get()).map(move |offset| PortMapping {
            host_port: first.host_port.saturating_add(offset),
            container_port: first.container_port.saturating_add(offset),
            ..first
        })
    }

    /// Returns the last port of the node.
    pub fn last_host_port(&self) -> NonZeroU16 {
        self.first.host_port.saturating_add(self.count.get() - 1)
    }

    /// Returns the last port of the pod.
    pub fn last_container_port(&self) -> NonZeroU16 {
        (self.first.container_port).saturating_add(self.count.get() - 1)
    }

    /// Returns the mapping that continues the range; `None` behind port 65535.
    fn next(&self) -> Option<PortMapping> {
        Some(PortMapping {
            host_port: self.last_host_port().checked_add(1)?,
            container_port: self.last_container_port().checked_add(1)?,
            ..self.first
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(host_port: u16, container_port: u16) -> PortMapping {
        PortMapping {
            host_port: NonZeroU16::new(host_port).unwrap(),
            container_port: NonZeroU16::new(container_port).unwrap(),
            protocol: Protocol::Tcp,
            host_address: None,
        }
    }

    #[test]
    fn mappings_that_follow_each_other_are_one_range_and_ranges_are_the_same_list() {
        let udp = PortMapping {
            protocol: Protocol::Udp,
            ..mapping(8003, 83)
        };
        let list = [
            mapping(8000, 80),
            mapping(8001, 81),
            mapping(8002, 82),
            udp,
            mapping(9000, 80),
            mapping(9001, 80),
            mapping(65_535, 1),
        ];
        let ranges = PortRange::of(&list);
        let counts: Vec<u16> = ranges.iter().map(|range| range.count().get()).collect();
        assert_eq!(counts, [3, 1, 1, 1, 1]);
        let (host, container) = (ranges[0].last_host_port(), ranges[0].last_container_port());
        assert_eq!((host.get(), container.get()), (8002, 82));
        let again: Vec<PortMapping> = ranges.iter().flat_map(PortRange::mappings).collect();
        assert_eq!(again, list);
    }

    #[test]
    fn a_range_of_ports_ends_at_65535() {
        let two = NonZeroU16::new(2).unwrap();
        assert!(PortRange::new(mapping(65_534, 1), two).is_some());
        assert_eq!(PortRange::new(mapping(65_535, 1), two), None);
        assert_eq!(PortRange::new(mapping(1, 65_535), two), None);
    }
}
