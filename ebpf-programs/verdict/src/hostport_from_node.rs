//! Hostports, reached from sockets of the node itself; and binding to their ports.
//!
//! Decides before there is a packet: the socket is connected to the pod instead. So no packet needs
//! translation, and 127.0.0.1 never leaves the node.

use abi::{Address, Dialled, Family, HostportKey, Port};

use crate::address::is_loopback;
use crate::hostport::{is_alive, owner};
use crate::node::Node;

/// A `connect`, `sendmsg` or `bind` of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketRequest {
    /// Cookie of the socket's network namespace.
    pub netns: u64,
    /// IP protocol number.
    pub protocol: u8,
    /// The requested address.
    pub address: Address,
    /// The requested port.
    pub port: Port,
}

/// The pod that a socket is connected to instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectTarget {
    /// The pod's address.
    pub address: Address,
    /// The pod's port.
    pub port: Port,
    /// The node's address and port, which `getpeername` and `recvmsg` report.
    pub requested: Dialled,
}

/// Returns whether a socket is in the node's own network namespace. Pods have namespaces of their
/// own.
#[inline(always)]
pub fn is_of_node<E: Node>(node: &E, netns: u64) -> bool {
    match node.settings() {
        Some(settings) => settings.netns_cookie != 0 && settings.netns_cookie == netns,
        None => false,
    }
}

/// Returns the pod that a socket of the node is to be connected to, if the request is for a
/// hostport.
#[inline(always)]
pub fn redirect<E: Node>(node: &E, request: &SocketRequest) -> Option<ConnectTarget> {
    if !is_of_node(node, request.netns) {
        return None;
    }
    // The unspecified address connects to the node itself.
    let address = if is_unspecified(&request.address) {
        loopback(request.address.family())
    } else {
        request.address
    };
    if !is_loopback(&address) && !node.is_local(&address) {
        return None;
    }
    let hostport = owner(
        node,
        &HostportKey::new(address, request.port, request.protocol),
    )?;
    // For a pod that is gone, the socket connects as if there were no hostport, and gets no answer.
    if !is_alive(node, hostport) {
        return None;
    }
    Some(ConnectTarget {
        address: hostport.address,
        port: hostport.port,
        requested: Dialled {
            address,
            port: request.port,
            reserved: 0,
        },
    })
}

/// Returns whether a socket of the node would be bound to the port of a hostport that `process`
/// (thread group ID) may not bind.
///
/// For a socket bound to the unspecified address, the caller must check [`is_hostport_at`] for each
/// address of the node as well.
#[inline(always)]
pub fn conflicts_with_hostport<E: Node>(node: &E, request: &SocketRequest, process: u32) -> bool {
    let address = &request.address;
    if is_hostport_at(node, address, request, process) {
        return true;
    }
    // A socket bound to `::` receives IPv4 packets as well, unless it has `IPV6_V6ONLY`, which is
    // not known here.
    is_unspecified(address)
        && !address.is_v4()
        && is_hostport_at(node, &unspecified(Family::V4), request, process)
}

/// Returns whether the requested port of `address` is a live hostport that `process` may not bind.
#[inline(always)]
pub fn is_hostport_at<E: Node>(
    node: &E,
    address: &Address,
    request: &SocketRequest,
    process: u32,
) -> bool {
    match owner(
        node,
        &HostportKey::new(*address, request.port, request.protocol),
    ) {
        Some(hostport) => {
            let is_binder = hostport.binder != 0 && hostport.binder == process;
            !is_binder && is_alive(node, hostport)
        }
        None => false,
    }
}

/// Returns whether a socket bound to the unspecified address that `request` names receives packets
/// to `address`.
#[inline(always)]
pub const fn covers(request: &SocketRequest, address: &Address) -> bool {
    address.is_v4() || !request.address.is_v4()
}

/// Returns whether an address is 0.0.0.0, `::ffff:0.0.0.0` or `::`.
#[inline(always)]
pub fn is_unspecified(address: &Address) -> bool {
    address.is_any() || *address == unspecified(Family::V4)
}

#[inline(always)]
const fn unspecified(family: Family) -> Address {
    match family {
        Family::V4 => Address::v4([0; 4]),
        Family::V6 => Address::ANY,
    }
}

#[inline(always)]
const fn loopback(family: Family) -> Address {
    match family {
        Family::V4 => Address::v4([127, 0, 0, 1]),
        Family::V6 => Address::v6([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
    }
}
