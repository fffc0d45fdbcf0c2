//! Hostports, reached from outside: packets that come in by an uplink and have no flow yet; and
//! pods addressed directly.

use abi::maps::OUTSIDE_ACCOUNTS;
use abi::{
    Address, DropReason, EndpointFlags, FlowFlags, Hostport, HostportKey, PrefixClass, Seen, Tuple,
};

use crate::access;
use crate::address::{is_forwardable, is_invalid_source, is_loopback, is_subnet_broadcast};
use crate::flow::{self, Terms};
use crate::flow_cache::Steps;
use crate::masquerade::{masquerade_flag, next_port};
use crate::node::{Node, Socket};
use crate::outcome::Decision;
use crate::row_cache;
use crate::work::{Fragment, Hook, HostportMatch, Transport, Work};

/// Drops packets from outside with a source address of this node's pods, martians, and packets to
/// addresses that no pod has.
#[inline(always)]
pub(crate) fn check_outside_source<E: Node>(node: &mut E, work: &mut Work) -> Decision<()> {
    if is_martian(&work.headers.tuple) {
        return Err(DropReason::Martian);
    }
    if row_cache::is_pod_address(node, work) {
        return Err(DropReason::SpoofedFromOutside);
    }
    if row_cache::is_unassigned(node, work) && leads_to_bridge(node, work, work.interface) {
        return Err(DropReason::UnknownPod);
    }
    Ok(())
}

/// Returns whether the kernel would forward a packet that came in by the link `from` to a bridge of
/// pods. Addresses of the node itself lead nowhere.
#[inline(always)]
fn leads_to_bridge<E: Node>(node: &mut E, work: &mut Work, from: u32) -> bool {
    let link = node.egress_route(from, &work.headers.tuple, &mut work.hop, &mut 0);
    link != 0 && node.network(link).is_some()
}

/// Returns whether a packet from outside has addresses that are never on a wire. With
/// `route_localnet`, the stack would deliver packets from and to 127.0.0.0/8.
#[inline(always)]
pub(crate) fn is_martian(tuple: &Tuple) -> bool {
    is_invalid_source(&tuple.source) || is_loopback(&tuple.destination)
}

/// Drops packets to a pod that no router forwards: from an address without a route, from the
/// broadcast address of a subnet of the uplink, or from an address of the node. Without a reverse
/// path filter, the stack forwards the second kind, and the third in IPv6, where it has no check of
/// local sources (`ip6_forward`).
#[inline(always)]
fn check_forwardable<E: Node>(node: &E, work: &Work) -> Decision<()> {
    let source = &work.headers.tuple.source;
    if !is_forwardable(source) || is_broadcast_of_uplink(node, work) || node.is_local(source) {
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
/// is gone, or if no router would forward it to the pod. A packet to a pod's own address is a match
/// as well, without translation: one whose flow must be tracked, and one that will never have any.
#[inline(always)]
pub(crate) fn find<E: Node>(node: &mut E, work: &mut Work) -> Decision<HostportMatch> {
    let found = match find_owner(node, work) {
        HostportMatch::Socket => return Ok(HostportMatch::Socket),
        HostportMatch::None | HostportMatch::Direct if !find_addressed_pod(node, work) => {
            return Ok(HostportMatch::None);
        }
        HostportMatch::None | HostportMatch::Direct => {
            access::check_outsider(node, work)?;
            if is_tracked(node, work) {
                HostportMatch::Pod
            } else if is_untracked(node, work) {
                work.recorder.steps |= Steps::UNTRACKED;
                work.translated = work.headers.tuple;
                HostportMatch::Direct
            } else {
                HostportMatch::None
            }
        }
        HostportMatch::Pod => {
            work.pod = work.hostport.pod;
            if !is_alive(node, &work.hostport) {
                return Err(DropReason::StaleGeneration);
            }
            HostportMatch::Pod
        }
    };
    check_forwardable(node, work)?;
    Ok(found)
}

/// Looks up the owner of the packet's destination port. Only addresses of the node have hostports,
/// and 127.0.0.0/8 never is on a wire.
#[inline(always)]
pub(crate) fn find_owner<E: Node>(node: &mut E, work: &mut Work) -> HostportMatch {
    if !work.headers.transport.has_ports() {
        return HostportMatch::None;
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

/// Returns whether the packet is to a pod's own address, and fills [`Work::hostport`] as for a
/// hostport. An address that the node has as well is the node's.
#[inline(always)]
fn find_addressed_pod<E: Node>(node: &E, work: &mut Work) -> bool {
    let destination = work.headers.tuple.destination;
    let Some(endpoint) = node.endpoint(&destination) else {
        return false;
    };
    if node.is_local(&destination) {
        return false;
    }
    work.endpoint = *endpoint;
    work.pod = work.endpoint.pod;
    work.hostport.address = destination;
    work.hostport.port = work.headers.tuple.destination_port;
    work.hostport.pod = work.endpoint.pod;
    work.hostport.generation = work.endpoint.generation;
    true
}

/// Returns whether a packet from outside to a pod's own address must be tracked. Nothing is
/// translated, but the flow has entries:
///
/// - Where replies would be masqueraded without.
/// - Where the pod is published: no flow to a hostport may get the same tuple at the pod.
#[inline(always)]
fn is_tracked<E: Node>(node: &E, work: &Work) -> bool {
    work.headers.may_open()
        && is_alive(node, &work.hostport)
        && (hides_replies(node, work) || may_clash(work))
}

/// Returns whether neither the packet nor any other with its tuple, in this direction or the other,
/// will have a flow. Fragments are left to the stack.
#[inline(always)]
fn is_untracked<E: Node>(node: &E, work: &Work) -> bool {
    work.headers.fragment == Fragment::Whole
        && is_alive(node, &work.hostport)
        && work.endpoint.flags & EndpointFlags::PUBLISHED == 0
        && !is_internal(node, work)
        && !hides_replies(node, work)
}

/// Returns whether the pod in [`Work::endpoint`] is in an internal network: what it receives
/// without a flow is checked at its own interface.
#[inline(always)]
fn is_internal<E: Node>(node: &E, work: &Work) -> bool {
    node.pod(work.endpoint.pod)
        .is_some_and(|pod| pod.flags & EndpointFlags::INTERNAL != 0)
}

/// Returns whether the pod's packets to the sender are masqueraded unless they have a flow.
#[inline(always)]
fn hides_replies<E: Node>(node: &E, work: &Work) -> bool {
    work.endpoint.flags & masquerade_flag(work.headers.family()) != 0
        && node.prefix_class(&work.headers.tuple.source) & PrefixClass::NO_MASQUERADE == 0
}

/// Returns whether the packet opens a flow that a flow to a hostport of [`Work::endpoint`] may
/// clash with.
#[inline(always)]
pub(crate) fn may_clash(work: &Work) -> bool {
    let opens = match work.headers.transport {
        Transport::Tcp => flow::opens_tcp(work),
        Transport::Udp | Transport::Sctp => true,
        Transport::None
        | Transport::EchoRequest
        | Transport::EchoReply
        | Transport::IcmpError
        | Transport::IcmpOther
        | Transport::Portless => false,
    };
    opens && work.endpoint.flags & EndpointFlags::PUBLISHED != 0
}

/// Tries to insert the flow of a packet from outside with one source port: `Ok(true)` when the
/// packet may enter with [`Work::translated`], `Ok(false)` when another port may succeed.
///
/// The destination becomes the pod, and the client keeps its address. It also keeps its port,
/// unless it has the same port open to the pod by another address of the node, another hostport or
/// the pod's own address: the pod could not distinguish the two flows, and replies would leave from
/// an address that the client does not expect.
#[inline(always)]
pub(crate) fn try_port<E: Node>(node: &mut E, work: &mut Work, attempt: u32) -> Decision<bool> {
    let port = next_port(node, work, attempt)?;
    let to = &mut work.translated;
    *to = work.headers.tuple;
    to.source_port = port;
    to.destination = work.hostport.address;
    to.destination_port = work.hostport.port;
    let dnat = is_translated(work);
    let terms = Terms {
        hook: Hook::UplinkIn,
        flags: flag(dnat, FlowFlags::DNAT),
        uplink: work.interface,
        account: OUTSIDE_ACCOUNTS + work.hostport.pod,
        pod: work.hostport.pod,
        generation: work.hostport.generation,
        now: work.now,
    };
    work.pair
        .fill(&work.headers.tuple, &work.translated, &terms);
    match flow::insert(node, work) {
        Ok(false)
            if !dnat && (!work.headers.transport.has_ports() || is_opened_by_pod(node, work)) =>
        {
            // The pod itself has opened this flow, and its entry serves both.
            work.translated = work.headers.tuple;
            Ok(true)
        }
        Err(DropReason::FlowTableFull | DropReason::FlowQuota)
            if !dnat && !hides_replies(node, work) && is_reply_free(node, work) =>
        {
            // Replies find their way without an entry, too.
            work.translated = work.headers.tuple;
            Ok(true)
        }
        made => made,
    }
}

/// Returns whether the packet's destination is a hostport, not the pod's own address and port.
#[inline(always)]
fn is_translated(work: &Work) -> bool {
    let to = &work.headers.tuple;
    to.destination != work.hostport.address || to.destination_port != work.hostport.port
}

/// Returns whether the replies' tuple is that of a flow which the pod has opened.
#[inline(always)]
fn is_opened_by_pod<E: Node>(node: &E, work: &Work) -> bool {
    node.flow(&work.pair.reply.key)
        .is_some_and(|entry| node.read(entry).flags & FlowFlags::ORIGINAL != 0)
}

/// Returns whether no flow has the replies' tuple of [`Work::pair`].
#[inline(always)]
pub(crate) fn is_reply_free<E: Node>(node: &E, work: &Work) -> bool {
    node.flow(&work.pair.reply.key).is_none()
}

/// Returns `flag` if `set`, else 0.
#[inline(always)]
pub(crate) const fn flag(set: bool, flag: u32) -> u32 {
    if set { flag } else { 0 }
}

#[cfg(test)]
mod tests;
