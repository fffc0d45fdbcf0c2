//! Hostports that pods of this node dial. The packet goes from the one pod's veth to the other pod's, past bridge and
//! stack: neither would know what to make of an answer from another address than the one that was dialled.
//!
//! The client keeps its address, with two exceptions: a pod that dials itself sees its network's gateway, because no
//! pod takes packets from its own address; and so does one that is dialled by another isolated port of its bridge, because
//! it could not ask for that one's Ethernet address. It keeps its port unless the server could not tell two flows apart then.

use abi::{DropReason, EndpointFlags, Flow, FlowFlags, Mac};

use crate::flow::{self, Terms};
use crate::hostport;
use crate::masquerade::{candidate, is_busy};
use crate::node::Node;
use crate::outcome::{Decision, Verdict};
use crate::packet::Packet;
use crate::shortcut::Steps;
use crate::work::{HostportMatch, Transport, Way, Work};

/// How many ports are tried for a flow.
pub(crate) const TRIES: u32 = 16;
/// Interface of [`Work::endpoint`] where the packet finds its way by itself.
const BY_ITSELF: u32 = 0;

/// Looks for the hostport that a pod's packet is for. On a match, [`Work::endpoint`] is the pod that has it, and
/// [`Work::source`] the address that it will see.
///
/// A packet that opens a flow to such a pod by its own address is a match, too, of which nothing needs translation: the
/// flow is noted, so that none to the hostport looks the same to the pod.
#[inline(always)]
pub(crate) fn find<E: Node>(node: &mut E, work: &mut Work) -> Decision<HostportMatch> {
    match hostport::look(node, work) {
        HostportMatch::Socket => {
            // Nobody tells us when it is closed.
            work.trail.close();
            Ok(HostportMatch::Socket)
        }
        HostportMatch::None if find_beside(node, work) => Ok(HostportMatch::Pod),
        HostportMatch::Pod if is_senders_own(node, work) => {
            find_server(node, work)?;
            Ok(HostportMatch::Pod)
        }
        HostportMatch::None | HostportMatch::Pod => Ok(HostportMatch::None),
    }
}

#[inline(always)]
fn find_server<E: Node>(node: &E, work: &mut Work) -> Decision<()> {
    if !hostport::is_alive(node, &work.hostport) {
        return Err(DropReason::StaleGeneration);
    }
    let server = node.endpoint(&work.hostport.address);
    work.endpoint = *server.ok_or(DropReason::StaleGeneration)?;
    work.source = work.headers.tuple.source;
    if work.endpoint.interface == work.interface || are_isolated(node, work) {
        let family = work.headers.family();
        let network = network(node, work.endpoint.pod).ok_or(DropReason::NoSourceAddress)?;
        work.source = network.gateway(family);
        if work.source.is_any() {
            return Err(DropReason::NoSourceAddress);
        }
    }
    Ok(())
}

/// Whether the bridge lets nothing through between the sender and [`Work::endpoint`].
#[inline(always)]
fn are_isolated<E: Node>(node: &E, work: &Work) -> bool {
    let (Some(client), Some(server)) = (node.pod(work.pod), node.pod(work.endpoint.pod)) else {
        return false;
    };
    client.network == server.network && client.flags & server.flags & EndpointFlags::ISOLATED != 0
}

/// Whether the packet opens a flow to a pod that hostports lead to, by the pod's own address.
#[inline(always)]
fn find_beside<E: Node>(node: &E, work: &mut Work) -> bool {
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
    if !opens {
        return false;
    }
    let Some(endpoint) = node.endpoint(&work.headers.tuple.destination) else {
        return false;
    };
    work.endpoint = *endpoint;
    work.hostport.address = work.headers.tuple.destination;
    work.hostport.port = work.headers.tuple.destination_port;
    work.hostport.pod = work.endpoint.pod;
    work.hostport.generation = work.endpoint.generation;
    work.source = work.headers.tuple.source;
    let found = work.endpoint.flags & EndpointFlags::PUBLISHED != 0
        && hostport::is_alive(node, &work.hostport)
        && is_senders_own(node, work);
    work.endpoint.interface = BY_ITSELF;
    found
}

/// Whether answers to the sender would come back here: a pod that is not checked may send as anybody.
#[inline(always)]
fn is_senders_own<E: Node>(node: &E, work: &Work) -> bool {
    match node.endpoint(&work.headers.tuple.source) {
        Some(endpoint) => endpoint.interface == work.interface,
        None => false,
    }
}

/// The network of a pod.
#[inline(always)]
fn network<E: Node>(node: &E, slot: u32) -> Option<&abi::Network> {
    let bridge = node.pod(slot)?.network;
    node.network(bridge)
}

/// Tries one source port: `Ok(true)` when the flow is made, `Ok(false)` when another port is worth a try.
#[inline(always)]
pub(crate) fn try_port<E: Node>(node: &mut E, work: &mut Work, attempt: u32) -> Decision<bool> {
    let random = node.random();
    let settings = node.settings().ok_or(DropReason::NoPort)?;
    let original = work.headers.tuple.source_port;
    let Some(port) = candidate(attempt, original, random, settings) else {
        return Err(DropReason::NoPort);
    };
    let to = &mut work.translated;
    *to = work.headers.tuple;
    to.source = work.source;
    to.source_port = port;
    to.destination = work.hostport.address;
    to.destination_port = work.hostport.port;
    let hairpin = work.source != work.headers.tuple.source;
    let snat = hairpin || attempt > 0;
    let dnat = work.endpoint.interface != BY_ITSELF;
    let terms = Terms {
        way: Way::Pod,
        flags: flag(snat, FlowFlags::SNAT) | flag(dnat, FlowFlags::DNAT),
        uplink: work.interface,
        pod: work.hostport.pod,
        generation: work.hostport.generation,
        now: work.now,
    };
    work.pair
        .fill(&work.headers.tuple, &work.translated, &terms);
    // The gateway's ports are the node's: its sockets talk to pods as well.
    if hairpin && is_busy(node, &work.pair.reply.key) {
        return Ok(false);
    }
    match flow::insert(node, work) {
        // Without a hostport there is nothing that the table is needed for.
        Err(DropReason::FlowTableFull | DropReason::FlowQuota) if !dnat => {
            work.translated = work.headers.tuple;
            Ok(true)
        }
        made => made,
    }
}

#[inline(always)]
const fn flag(set: bool, flag: u32) -> u32 {
    if set { flag } else { 0 }
}

/// Whether both pods of a flow are still the ones that it was made for. [`Work::endpoint`] is then the one that gets
/// the packet; [`Work::translated`] is what the packet will say.
///
/// The flow itself tells the server's generation. The client is known by its interface, whose index is not used again.
#[inline(always)]
pub(crate) fn reaches_its_pod<E: Node>(node: &E, work: &mut Work, flow: &Flow) -> bool {
    let Some(endpoint) = node.endpoint(&work.translated.destination) else {
        return false;
    };
    work.endpoint = *endpoint;
    let client = if flow.flags & FlowFlags::ORIGINAL != 0 {
        work.interface
    } else {
        work.endpoint.interface
    };
    if flow.flags & FlowFlags::DNAT == 0 {
        work.endpoint.interface = BY_ITSELF;
    }
    client == flow.uplink
}

/// Makes the frame one that the bridge might have sent to [`Work::endpoint`]. What nobody dialled goes on by itself.
#[inline(always)]
pub(crate) fn deliver<E: Packet + Node>(env: &mut E, work: &mut Work) -> Verdict {
    if work.endpoint.interface == BY_ITSELF {
        return Verdict::Pass;
    }
    let bridge = match network(env, work.endpoint.pod) {
        Some(network) => network.mac,
        None => Mac::default(),
    };
    match readdress(env, work, bridge) {
        Ok(()) => Verdict::Deliver(work.endpoint.interface),
        Err(reason) => Verdict::Drop(reason),
    }
}

/// Makes the frame one from `bridge` to [`Work::endpoint`], and notes it.
#[inline(always)]
pub(crate) fn readdress<P: Packet>(packet: &mut P, work: &mut Work, bridge: Mac) -> Decision<()> {
    work.trail.stations = stations(work.endpoint.mac, bridge);
    work.trail.steps |= Steps::STATIONS;
    packet.store(0, work.trail.stations)
}

/// Both addresses of an Ethernet header, as words of memory.
#[inline(always)]
fn stations(to: Mac, from: Mac) -> [u32; 3] {
    let (to, from) = (to.bytes(), from.bytes());
    [
        [to[0], to[1], to[2], to[3]],
        [to[4], to[5], from[0], from[1]],
        [from[2], from[3], from[4], from[5]],
    ]
    .map(u32::from_ne_bytes)
}
