//! Packets that come in by an uplink without a flow: hostports, and pods addressed directly.

use abi::{DropReason, FlowFlags, HostportKey, PrefixClass, Seen};

use crate::flow::{self, Terms};
use crate::masquerade::masquerade_flag;
use crate::node::{Node, Socket};
use crate::outcome::Decision;
use crate::work::{HostportMatch, Transport, Way, Work};

/// Refuses packets from outside that claim to come from a pod of this node.
#[inline(always)]
pub(crate) fn check_outsider<E: Node>(node: &E, work: &Work) -> Decision<()> {
    if node.prefix_class(&work.headers.tuple.source) & PrefixClass::PODS != 0 {
        return Err(DropReason::SpoofedFromOutside);
    }
    Ok(())
}

/// Looks for a hostport: the destination's own, then one of every local address.
#[inline(always)]
pub(crate) fn find<E: Node>(node: &mut E, work: &mut Work) -> Decision<HostportMatch> {
    let protocol = work.headers.tuple.protocol;
    match work.headers.transport {
        Transport::Tcp | Transport::Udp | Transport::Sctp => {}
        Transport::None
        | Transport::EchoRequest
        | Transport::EchoReply
        | Transport::IcmpError
        | Transport::IcmpOther
        | Transport::Portless => return Ok(HostportMatch::None),
    }
    let (address, port) = (
        work.headers.tuple.destination,
        work.headers.tuple.destination_port,
    );
    let own = HostportKey::new(address, port, protocol);
    let any = HostportKey::wildcard(work.headers.family(), port, protocol);
    if let Some(hostport) = node.hostport(&own) {
        work.hostport = *hostport;
    } else if node.is_local(&address)
        && let Some(hostport) = node.hostport(&any)
    {
        work.hostport = *hostport;
    } else {
        return Ok(HostportMatch::None);
    }
    // SCTP's CRC covers the ports, and it is left alone.
    if work.headers.transport == Transport::Sctp && work.hostport.port != port {
        return Ok(HostportMatch::None);
    }
    if belongs_to_socket(node, work) {
        return Ok(HostportMatch::Socket);
    }
    work.pod = work.hostport.pod;
    if !flow::is_current(node, work.hostport.pod, work.hostport.generation) {
        return Err(DropReason::StaleGeneration);
    }
    Ok(HostportMatch::Pod)
}

/// Whether a connection of the node itself uses the port: a port of the node's own choosing may equal a hostport.
#[inline(always)]
fn belongs_to_socket<E: Node>(node: &mut E, work: &Work) -> bool {
    let opening = work.headers.transport == Transport::Tcp
        && work.headers.seen & (Seen::SYN | Seen::ACK) == Seen::SYN;
    !opening
        && work.headers.transport != Transport::Sctp
        && node.socket(&work.headers.tuple) == Socket::Connected
}

/// Makes the flow of a hostport: the destination becomes the pod, the client keeps its address.
#[inline(always)]
pub(crate) fn open<E: Node>(node: &mut E, work: &mut Work) -> Decision<()> {
    let mut to = work.headers.tuple;
    to.destination = work.hostport.address;
    to.destination_port = work.hostport.port;
    let terms = Terms {
        way: Way::In,
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
        // The client has this very port open to the pod by another way, and the pod could not tell the two apart.
        Err(DropReason::NatClash)
    }
}

/// Makes a flow that changes nothing for a packet to a pod's own address, so that replies are not masqueraded.
#[inline(always)]
pub(crate) fn open_direct<E: Node>(node: &mut E, work: &mut Work) -> Decision<()> {
    let Some(endpoint) = node.endpoint(&work.headers.tuple.destination) else {
        return Ok(());
    };
    work.endpoint = *endpoint;
    work.pod = work.endpoint.pod;
    if work.endpoint.flags & masquerade_flag(work.headers.family()) == 0
        || !work.headers.may_open()
        || node.prefix_class(&work.headers.tuple.source) & PrefixClass::NO_MASQUERADE != 0
    {
        return Ok(());
    }
    let terms = Terms {
        way: Way::In,
        flags: 0,
        uplink: work.interface,
        pod: work.endpoint.pod,
        generation: work.endpoint.generation,
        now: work.now,
    };
    work.pair
        .fill(&work.headers.tuple, &work.headers.tuple, &terms);
    // When the tuple is taken, the pod itself has opened this flow, and its entry serves both.
    flow::insert(node, work).map(|_| ())
}
