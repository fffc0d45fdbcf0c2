//! Location of the client of a hostport.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::NODE;

/// Location of the client. It determines the addresses that the client can connect to, and the
/// client address that the server must see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Another machine, seen by its own address.
    World,
    /// Another pod of the server's network, seen by its own address.
    SameNetwork,
    /// A pod of another network, seen by its own address.
    OtherNetwork,
    /// The server's own pod, seen as the gateway.
    SamePod,
    /// A process of the node that connects to an address of the node, seen as the gateway.
    Node,
    /// A process of the node that connects to 127.0.0.1 and `::1`, seen as the gateway.
    Loopback,
}

impl Origin {
    /// All variants.
    pub const ALL: [Self; 6] = [
        Self::World,
        Self::SameNetwork,
        Self::OtherNetwork,
        Self::SamePod,
        Self::Node,
        Self::Loopback,
    ];

    /// Returns the description in the demo's output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::World => "another machine",
            Self::SameNetwork => "a pod of the same network",
            Self::OtherNetwork => "a pod of another network",
            Self::SamePod => "the server's own pod",
            Self::Node => "a process of the node, to the node's address",
            Self::Loopback => "a process of the node, to the loopback address",
        }
    }

    /// Returns whether the client is a process of the node.
    pub const fn is_on_node(self) -> bool {
        matches!(self, Self::Node | Self::Loopback)
    }

    /// Returns the addresses that the client connects to, IPv4 first.
    pub fn targets(self) -> [IpAddr; 2] {
        if self == Self::Loopback {
            return [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        }
        NODE
    }
}
