//! Lookups of single packets in the kernel: routes and sockets.

use std::net::SocketAddr;

/// A packet whose route is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RoutedPacket {
    /// Interface index of the link that the packet came in by; `None` for a packet of the node.
    pub from: Option<u32>,
    /// Source address and port.
    pub source: SocketAddr,
    /// Destination address and port.
    pub destination: SocketAddr,
    /// IP protocol number.
    pub protocol: u8,
}

/// The kernel's route of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRoute {
    /// The decision of the kernel.
    pub decision: RouteDecision,
    /// The route as `ip route` shows it, or the kernel's error.
    pub route: String,
}

/// What the kernel does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteDecision {
    /// The packet leaves by a link.
    Leaves {
        /// Interface index of the link.
        link: u32,
        /// The next hop; `None` where that is the destination.
        gateway: Option<std::net::IpAddr>,
        /// MTU of the route in bytes; `None` for that of the link.
        mtu: Option<u32>,
    },
    /// The packet is for the node itself.
    Local,
    /// There is no route, or it rejects the packet.
    Unreachable,
    /// The receiving link does not forward, or the kernel does not accept the source address there:
    /// the reverse path filter, or an address of the node. Not distinguished from
    /// [`RouteDecision::Unreachable`] by every kernel.
    SourceRefused,
}

/// The socket of the node that a packet would reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundSocket {
    /// No socket.
    None,
    /// A listening or unconnected socket.
    Open,
    /// A socket that is connected to the packet's source.
    Connected,
}
