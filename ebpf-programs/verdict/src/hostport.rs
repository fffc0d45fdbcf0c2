//! Packets that come in by an uplink without a flow: hostports, and pods addressed directly.

use abi::{Address, DropReason, FlowFlags, Hostport, HostportKey, PrefixClass, Seen};

use crate::address::is_loopback;
use crate::flow::{self, Terms};
use crate::known;
use crate::masquerade::masquerade_flag;
use crate::node::{Node, Socket};
use crate::outcome::Decision;
use crate::work::{HostportMatch, Transport, Way, Work};

/// Refuses packets from outside that claim to come from a pod of this node.
#[inline(always)]
pub(crate) fn check_outsider<E: Node>(node: &E, work: &mut Work) -> Decision<()> {
    if known::is_of_pods(node, work) {
        return Err(DropReason::SpoofedFromOutside);
    }
    Ok(())
}

/// Whether an address is one that this node gives to pods.
#[inline(always)]
pub(crate) fn is_of_pods(node: &impl Node, address: &Address) -> bool {
    node.prefix_class(address) & PrefixClass::PODS != 0
}

/// Looks for the hostport that a packet from outside is for.
#[inline(always)]
pub(crate) fn find<E: Node>(node: &mut E, work: &mut Work) -> Decision<HostportMatch> {
    let found = look(node, work);
    if found == HostportMatch::Pod {
        work.pod = work.hostport.pod;
        if !is_alive(node, &work.hostport) {
            return Err(DropReason::StaleGeneration);
        }
    }
    Ok(found)
}

/// Looks for a hostport. Only addresses of the node have any, and what is for 127.0.0.0/8 never is on a wire.
#[inline(always)]
pub(crate) fn look<E: Node>(node: &mut E, work: &mut Work) -> HostportMatch {
    match work.headers.transport {
        Transport::Tcp | Transport::Udp | Transport::Sctp => {}
        Transport::None
        | Transport::EchoRequest
        | Transport::EchoReply
        | Transport::IcmpError
        | Transport::IcmpOther
        | Transport::Portless => return HostportMatch::None,
    }
    if is_loopback(&work.headers.tuple.destination) || !known::find_hostport(node, work) {
        return HostportMatch::None;
    }
    if belongs_to_socket(node, work) {
        return HostportMatch::Socket;
    }
    HostportMatch::Pod
}

/// Who has a port of an address of the node: the address's own hostport wins over that of every address.
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

/// Whether the pod that has the hostport is still there.
#[inline(always)]
pub(crate) fn is_alive<E: Node>(node: &E, hostport: &Hostport) -> bool {
    flow::is_current(node, hostport.pod, hostport.generation)
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
pub(crate) fn open_direct<E: Node>(node: &mut E, work: &mut Work) -> Decision<bool> {
    let Some(endpoint) = node.endpoint(&work.headers.tuple.destination) else {
        return Ok(false);
    };
    work.endpoint = *endpoint;
    work.pod = work.endpoint.pod;
    if work.endpoint.flags & masquerade_flag(work.headers.family()) == 0
        || !work.headers.may_open()
        || node.prefix_class(&work.headers.tuple.source) & PrefixClass::NO_MASQUERADE != 0
    {
        return Ok(false);
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
    flow::insert(node, work)
}
