//! Sockets of the node itself that dial hostports, or want their ports. Decides before there is a packet: the socket is
//! connected to the pod, so nothing has to be translated, and 127.0.0.1 never leaves the node.

use abi::{Address, Dialled, Family, HostportKey, Port};

use crate::address::is_loopback;
use crate::hostport::{is_alive, owner};
use crate::node::Node;

/// A socket, and the address and port that it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dial {
    /// Cookie of the socket's network namespace.
    pub netns: u64,
    /// IP protocol number.
    pub protocol: u8,
    /// The address.
    pub address: Address,
    /// The port.
    pub port: Port,
}

/// Where a socket is connected instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirected {
    /// The pod's address.
    pub address: Address,
    /// The pod's port.
    pub port: Port,
    /// What the socket is to believe that it talks to.
    pub dialled: Dialled,
}

/// Whether a socket is the node's own: pods have namespaces of theirs.
#[inline(always)]
pub fn is_of_node<E: Node>(node: &E, netns: u64) -> bool {
    match node.settings() {
        Some(settings) => settings.netns_cookie != 0 && settings.netns_cookie == netns,
        None => false,
    }
}

/// Where a socket of the node is to be connected instead, if it dials a hostport.
#[inline(always)]
pub fn redirect<E: Node>(node: &E, dial: &Dial) -> Option<Redirected> {
    if !is_of_node(node, dial.netns) {
        return None;
    }
    // To dial no address is to dial the node itself.
    let address = if is_unspecified(&dial.address) {
        loopback(dial.address.family())
    } else {
        dial.address
    };
    if !is_loopback(&address) && !node.is_local(&address) {
        return None;
    }
    let hostport = owner(node, &HostportKey::new(address, dial.port, dial.protocol))?;
    // To a pod that is gone the socket may talk as if there were no hostport: nobody answers.
    if !is_alive(node, hostport) {
        return None;
    }
    Some(Redirected {
        address: hostport.address,
        port: hostport.port,
        dialled: Dialled {
            address,
            port: dial.port,
            reserved: 0,
        },
    })
}

/// Whether a socket of the node would be bound to a port that leads to a pod.
///
/// A socket on every address has to ask [`is_owned`] of each address as well.
#[inline(always)]
pub fn is_claimed<E: Node>(node: &E, dial: &Dial) -> bool {
    let address = &dial.address;
    if is_owned(node, address, dial) {
        return true;
    }
    // A socket on every IPv6 address takes what comes by IPv4 as well, unless it was told not to, which nobody tells.
    is_unspecified(address) && !address.is_v4() && is_owned(node, &unspecified(Family::V4), dial)
}

/// Whether a port of one address leads to a pod.
#[inline(always)]
pub fn is_owned<E: Node>(node: &E, address: &Address, dial: &Dial) -> bool {
    match owner(node, &HostportKey::new(*address, dial.port, dial.protocol)) {
        Some(hostport) => is_alive(node, hostport),
        None => false,
    }
}

/// Whether a socket on every address that `dial` asks for takes packets to `address`.
#[inline(always)]
pub const fn covers(dial: &Dial, address: &Address) -> bool {
    address.is_v4() || !dial.address.is_v4()
}

/// 0.0.0.0, also in the clothes of IPv6, or ::.
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
