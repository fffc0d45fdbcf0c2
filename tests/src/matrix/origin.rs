//! Where a client of a hostport is.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::NODE;

/// Where a client is, and so what it may dial and as whom the server must see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Another machine.
    World,
    /// A pod of the server's network.
    Near,
    /// A pod of another network.
    Far,
    /// The server's own pod.
    Itself,
    /// A process of the node, by an address of the node.
    Node,
    /// A process of the node, by 127.0.0.1 and `::1`.
    Loopback,
}

impl Origin {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::World,
        Self::Near,
        Self::Far,
        Self::Itself,
        Self::Node,
        Self::Loopback,
    ];

    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::World => "another machine",
            Self::Near => "a pod of the same network",
            Self::Far => "a pod of another network",
            Self::Itself => "the pod itself",
            Self::Node => "a process of the node, by its address",
            Self::Loopback => "a process of the node, by the loopback's",
        }
    }

    /// Whether the client is a process of the node.
    pub const fn is_on_node(self) -> bool {
        matches!(self, Self::Node | Self::Loopback)
    }

    /// What it dials, IPv4 first.
    pub fn dialled(self) -> [IpAddr; 2] {
        if self == Self::Loopback {
            return [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        }
        NODE
    }
}
