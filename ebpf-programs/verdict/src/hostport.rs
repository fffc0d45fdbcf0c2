//! Hostports, reached from outside: packets that come in by an uplink and have no flow yet; and
//! pods addressed directly.

use abi::{Address, DropReason, FlowFlags, Hostport, HostportKey, PrefixClass, Seen, Tuple};

use crate::address::{is_forwardable, is_invalid_source, is_loopback, is_subnet_broadcast};
use crate::flow::{self, Terms};
use crate::masquerade::masquerade_flag;
use crate::node::{Node, Socket};
use crate::outcome::Decision;
use crate::row_cache;
use crate::work::{Hook, HostportMatch, Transport, Work};

/// Drops packets from outside with a source address of this node's pods, and martians.
#[inline(always)]
pub(crate) fn check_outside_source<E: Node>(node: &E, work: &mut Work) -> Decision<()> {
    if is_martian(&work.headers.tuple) {
        return Err(DropReason::Martian);
    }
    if row_cache::is_pod_address(node, work) {
        return Err(DropReason::SpoofedFromOutside);
    }
    Ok(())
}

/// Returns whether a packet from outside has addresses that are never on a wire. With
/// `route_localnet`, the stack would deliver packets from and to 127.0.0.0/8.
#[inline(always)]
pub(crate) fn is_martian(tuple: &Tuple) -> bool {
    is_invalid_source(&tuple.source) || is_loopback(&tuple.destination)
}

/// Drops packets to a pod that no router forwards: from an address without a route, or from the
/// broadcast address of a subnet of the uplink. Without a reverse path filter, the stack forwards
/// the latter.
#[inline(always)]
fn check_forwardable<E: Node>(node: &E, work: &Work) -> Decision<()> {
    let source = &work.headers.tuple.source;
    if !is_forwardable(source) || is_broadcast_of_uplink(node, work) {
        return Err(DropReason::Martian);
    }
    Ok(())
}

#[inline(always)]
fn is_broadcast_of_uplink<E: Node>(node: &E, work: &Work) -> bool {
    let source = &work.headers.tuple.source;
    let Some(uplink) = node.uplink(work.interface).filter(|_| source.is_v4()) else {
        return false;
    };
    for own in &uplink.sources {
        if is_subnet_broadcast(source, &own.address, own.prefix_len) {
            return true;
        }
    }
    false
}

/// Returns whether an address is in a pod prefix of this node.
#[inline(always)]
pub(crate) fn is_pod_address(node: &impl Node, address: &Address) -> bool {
    node.prefix_class(address) & PrefixClass::PODS != 0
}

/// Looks up the hostport that a packet from outside is for; drops the packet if the hostport's pod
/// is gone, or if no router would forward it to the pod.
#[inline(always)]
pub(crate) fn find<E: Node>(node: &mut E, work: &mut Work) -> Decision<HostportMatch> {
    let found = find_owner(node, work);
    if found == HostportMatch::Pod {
        work.pod = work.hostport.pod;
        if !is_alive(node, &work.hostport) {
            return Err(DropReason::StaleGeneration);
        }
        check_forwardable(node, work)?;
    }
    Ok(found)
}

/// Looks up the owner of the packet's destination port. Only addresses of the node have hostports,
/// and 127.0.0.0/8 never is on a wire.
#[inline(always)]
pub(crate) fn find_owner<E: Node>(node: &mut E, work: &mut Work) -> HostportMatch {
    match work.headers.transport {
        Transport::Tcp | Transport::Udp | Transport::Sctp => {}
        Transport::None
        | Transport::EchoRequest
        | Transport::EchoReply
        | Transport::IcmpError
        | Transport::IcmpOther
        | Transport::Portless => return HostportMatch::None,
    }
    if is_loopback(&work.headers.tuple.destination) || !row_cache::find_hostport(node, work) {
        return HostportMatch::None;
    }
    if belongs_to_socket(node, work) {
        return HostportMatch::Socket;
    }
    HostportMatch::Pod
}

/// Returns the hostport of an address and port; the hostport of the address itself has precedence
/// over the wildcard's.
#[inline(always)]
pub(crate) fn owner<'a, E: Node>(node: &'a E, own: &HostportKey) -> Option<&'a Hostport> {
    if let Some(hostport) = node.hostport(own) {
        return Some(hostport);
    }
    let any = HostportKey {
        address: Address::ANY,
        ..*own
    };
    node.hostport(&any)
}

/// Returns whether the pod that has the hostport still exists.
#[inline(always)]
pub(crate) fn is_alive<E: Node>(node: &E, hostport: &Hostport) -> bool {
    flow::is_current(node, hostport.pod, hostport.generation)
}

/// Returns whether a connected socket of the node uses the port: an ephemeral port of the node may
/// equal a hostport.
#[inline(always)]
fn belongs_to_socket<E: Node>(node: &mut E, work: &Work) -> bool {
    let opening = work.headers.transport == Transport::Tcp
        && work.headers.seen & (Seen::SYN | Seen::ACK) == Seen::SYN;
    !opening
        && work.headers.transport != Transport::Sctp
        && node.socket(&work.headers.tuple) == Socket::Connected
}

/// Inserts the flow of a hostport: the destination becomes the pod, the client keeps its address.
#[inline(always)]
pub(crate) fn open<E: Node>(node: &mut E, work: &mut Work) -> Decision<()> {
    let mut to = work.headers.tuple;
    to.destination = work.hostport.address;
    to.destination_port = work.hostport.port;
    let terms = Terms {
        hook: Hook::UplinkIn,
        flags: FlowFlags::DNAT,
        uplink: work.interface,
        pod: work.hostport.pod,
        generation: work.hostport.generation,
        now: work.now,
    };
    work.pair.fill(&work.headers.tuple, &to, &terms);
    if flow::insert(node, work)? {
        Ok(())
    } else {
        // The client has this port open to the pod by another address of the node, and the pod
        // could not distinguish the two.
        Err(DropReason::NatClash)
    }
}

/// Inserts a flow without translation for a packet to a pod's own address, so that replies are not
/// masqueraded. Returns whether one was inserted. An address that the node has as well is the
/// node's.
#[inline(always)]
pub(crate) fn open_direct<E: Node>(node: &mut E, work: &mut Work) -> Decision<bool> {
    let Some(endpoint) = node.endpoint(&work.headers.tuple.destination) else {
        return Ok(false);
    };
    if node.is_local(&work.headers.tuple.destination) {
        return Ok(false);
    }
    work.endpoint = *endpoint;
    work.pod = work.endpoint.pod;
    check_forwardable(node, work)?;
    if work.endpoint.flags & masquerade_flag(work.headers.family()) == 0
        || !work.headers.may_open()
        || node.prefix_class(&work.headers.tuple.source) & PrefixClass::NO_MASQUERADE != 0
    {
        return Ok(false);
    }
    let terms = Terms {
        hook: Hook::UplinkIn,
        flags: 0,
        uplink: work.interface,
        pod: work.endpoint.pod,
        generation: work.endpoint.generation,
        now: work.now,
    };
    work.pair
        .fill(&work.headers.tuple, &work.headers.tuple, &terms);
    // Where the tuple exists, the pod itself has opened this flow, and its entry serves both.
    flow::insert(node, work)
}

#[cfg(test)]
mod tests;
