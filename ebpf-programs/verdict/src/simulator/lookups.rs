//! Lookups in the kernel that the tables of a node do not answer: routes and sockets.

use std::fmt::Debug;

use abi::{Address, Tuple};

use crate::node::Socket;

/// Answers of a kernel. Without one, [`World`](super::World) has maps with routes and sockets.
pub trait KernelLookups: Debug + Send + Sync {
    /// Returns the route of a packet that came in by the link `from`, as
    /// [`crate::Node::egress_route`]; `None` where the kernel would not forward the packet.
    fn egress_route(&self, from: u32, tuple: &Tuple) -> Option<EgressRoute>;

    /// Returns which socket of the node a packet with this tuple would reach; TCP and UDP only.
    fn socket(&self, incoming: &Tuple) -> Socket;
}

/// A route by which the kernel forwards a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EgressRoute {
    /// Interface index of the link by which the packet leaves.
    pub link: u32,
    /// The next hop: the destination itself where that is on the link.
    pub hop: Address,
    /// MTU of the route in bytes; 0 where the route has none of its own.
    pub mtu: u32,
}
