//! MASQUERADE: which packets are translated, to which address and port.

use abi::{
    Address, DropReason, EndpointFlags, Family, FlowFlags, HostportKey, Port, PrefixClass, Seen,
    Settings, Tuple, Uplink, protocol,
};

use crate::address::{common_prefix, is_broadcast, is_link_local, is_multicast, same_subnet};
use crate::flow::{self, Terms};
use crate::flow_cache::Steps;
use crate::node::{Node, Socket};
use crate::outcome::Decision;
use crate::row_cache;
use crate::tunnel::is_on_tunnel;
use crate::work::{Hook, Origin, Transport, Work};

/// Ports tried for a flow: its own, some at random, then consecutive ones. Where nine of ten ports
/// are taken, one flow in a million finds none.
pub(crate) const TRIES: u32 = 128;
/// How many of the tries find free ports only.
pub(crate) const FREE_TRIES: u32 = TRIES - 16;
/// How many of the tries are random. Ports that are taken come in runs, so the first tries jump.
/// The last ones continue from the last random port, so that no port is tried twice and a short
/// range is tried to its end.
const RANDOM_TRIES: u32 = 16;

/// Port range where the settings have none.
const DEFAULT_LOW: u16 = 32_768;
const DEFAULT_HIGH: u16 = 65_535;

/// Returns the origin of a packet that leaves without a flow.
#[inline(always)]
pub(crate) fn origin<E: Node>(node: &mut E, work: &mut Work) -> Decision<Origin> {
    let source = work.headers.tuple.source;
    // An address that the node has as well is the node's.
    if let Some(endpoint) = node.endpoint(&source)
        && !row_cache::is_local_source(node, work)
    {
        work.endpoint = *endpoint;
        work.pod = work.endpoint.pod;
        if !flow::is_current(node, work.endpoint.pod, work.endpoint.generation) {
            return Err(DropReason::UnknownPod);
        }
        let flags = node.pod(work.endpoint.pod).map_or(0, |pod| pod.flags);
        if flags & EndpointFlags::INTERNAL != 0 {
            return Err(DropReason::InternalNetwork);
        }
        if !is_masqueraded(node, work) {
            return Ok(untranslated_origin(work, flags));
        }
        // A reply or error without a flow cannot be translated: no flow has the port.
        return if work.headers.may_open() {
            Ok(Origin::Pod)
        } else {
            Err(DropReason::NoFlow)
        };
    }
    if node.is_local(&source) {
        return Ok(node_origin(node, work));
    }
    let class = node.prefix_class(&source);
    if class & (PrefixClass::PODS | PrefixClass::SHARED) == PrefixClass::PODS {
        return Err(DropReason::UnknownPod);
    }
    Ok(Origin::Elsewhere)
}

/// Returns the origin of a packet that leaves with the address of a pod with these
/// [`EndpointFlags`].
#[inline(always)]
fn untranslated_origin(work: &mut Work, flags: u32) -> Origin {
    let destination = &work.headers.tuple.destination;
    let is_closed = flags & EndpointFlags::PUBLISHED_ONLY != 0;
    if is_closed && work.headers.may_open() && !is_multicast(destination) {
        return Origin::Tracked;
    }
    // Flows to a published port, and from outside to a pod of a closed network, have replies.
    if !is_closed && work.endpoint.flags & EndpointFlags::PUBLISHED == 0 {
        work.recorder.steps |= Steps::UNTRACKED;
    }
    Origin::Elsewhere
}

/// Returns the origin of a packet with a source address of the node.
#[inline(always)]
fn node_origin<E: Node>(node: &mut E, work: &mut Work) -> Origin {
    let destination = &work.headers.tuple.destination;
    if !work.headers.may_open() || is_multicast(destination) || is_broadcast(destination) {
        return Origin::Elsewhere;
    }
    if collides(node, work) {
        return Origin::Collision;
    }
    // A port of a socket is found at the socket, for as long as that is open.
    // The node's own stack answers with a RST where it has no socket.
    if work.headers.seen & Seen::RST != 0 {
        return Origin::Elsewhere;
    }
    let may_have_socket = matches!(work.headers.transport, Transport::Tcp | Transport::Udp);
    if may_have_socket && has_socket(node, work) {
        Origin::Elsewhere
    } else {
        Origin::Untranslated
    }
}

/// Returns whether replies to the packet reach a socket of the node: the packet is not of another
/// NAT.
#[inline(always)]
fn has_socket<E: Node>(node: &mut E, work: &mut Work) -> bool {
    // A tunnel lets answers in by their flow or a connected socket: an open one accepts all.
    let is_open_enough = work.headers.transport == Transport::Tcp || !is_on_tunnel(node, work);
    if is_open_enough && node.is_sent_by_socket(&work.headers.tuple) {
        return true;
    }
    work.translated = work.headers.tuple.reverse();
    match node.socket(&work.translated) {
        Socket::None => false,
        Socket::Open => is_open_enough,
        Socket::Connected => true,
    }
}

/// Inserts a flow without translation: of a pod of a closed network, whose replies need it; or for
/// a packet that leaves with the node's address and without a socket. The entries of the latter
/// reserve its source port: netfilter, or a tunnel of the node, has the port in use (decision 95).
///
/// Without a place in the table, the latter passes all the same.
#[inline(always)]
pub(crate) fn track<E: Node>(node: &mut E, work: &mut Work) -> Decision<()> {
    let (flags, generation) = if work.pod == 0 {
        (FlowFlags::NODE, 0)
    } else {
        (0, work.endpoint.generation)
    };
    let terms = Terms {
        hook: Hook::UplinkOut,
        flags,
        uplink: work.interface,
        account: work.pod,
        pod: work.pod,
        generation,
        now: work.now,
    };
    work.pair
        .fill(&work.headers.tuple, &work.headers.tuple, &terms);
    flow::insert(node, work).map(|_| ())
}

/// Returns whether the packet of [`Work::endpoint`] must not leave with the pod's address.
#[inline(always)]
pub(crate) fn is_masqueraded<E: Node>(node: &E, work: &Work) -> bool {
    let wanted = masquerade_flag(work.headers.family());
    let destination = &work.headers.tuple.destination;
    work.endpoint.flags & wanted != 0
        && !is_multicast(destination)
        && !is_broadcast(destination)
        && !is_link_local_v6(destination)
        && !node.is_local(destination)
        && node.prefix_class(destination) & (PrefixClass::NO_MASQUERADE | PrefixClass::PODS) == 0
}

#[inline(always)]
fn is_link_local_v6(address: &Address) -> bool {
    !address.is_v4() && is_link_local(address)
}

/// Returns the [`EndpointFlags`] bit of a family.
#[inline(always)]
pub(crate) const fn masquerade_flag(family: Family) -> u32 {
    match family {
        Family::V4 => EndpointFlags::MASQUERADE_V4,
        Family::V6 => EndpointFlags::MASQUERADE_V6,
    }
}

/// Returns whether a pod's flow has the tuple of the replies to this packet of the node.
#[inline(always)]
fn collides<E: Node>(node: &mut E, work: &mut Work) -> bool {
    work.translated = work.headers.tuple.reverse();
    let Some(entry) = node.flow(&work.translated) else {
        return false;
    };
    let flow = node.read(entry);
    flow.flags & FlowFlags::UPLINK_IN != 0 && flow.pod != 0 && !flow::is_stale(node, &flow)
}

/// Chooses the masquerade address: the network's own egress address, else the uplink's.
#[inline(always)]
pub(crate) fn choose_source<E: Node>(node: &mut E, work: &mut Work) -> Decision<()> {
    let fixed = egress(node, work);
    if !fixed.is_any() {
        if !node.is_local(&fixed) {
            return Err(DropReason::NoEgressAddress);
        }
        work.source = fixed;
        return Ok(());
    }
    let next_hop = match work.headers.family() {
        Family::V4 => {
            let from = node.pod(work.endpoint.pod).map_or(0, |pod| pod.network);
            node.next_hop(from, work.interface, &work.headers.tuple)
        }
        // For IPv6 the kernel compares with the destination, not with the next hop (RFC 6724, rule
        // 8).
        Family::V6 => work.headers.tuple.destination,
    };
    let uplink = node
        .uplink(work.interface)
        .ok_or(DropReason::NoSourceAddress)?;
    let source = match work.headers.family() {
        Family::V4 => source_v4(uplink, &next_hop),
        Family::V6 => source_v6(uplink, &next_hop),
    };
    work.source = source.ok_or(DropReason::NoSourceAddress)?;
    Ok(())
}

/// Returns the egress address of the pod's network, or [`Address::ANY`].
#[inline(always)]
fn egress<E: Node>(node: &E, work: &Work) -> Address {
    let network = node.pod(work.endpoint.pod).map_or(0, |pod| pod.network);
    match node.egress(network) {
        Some(egress) => egress.address(work.headers.family()),
        None => Address::ANY,
    }
}

/// Returns the first IPv4 address whose subnet contains the next hop, else the first one: the
/// kernel's MASQUERADE chooses the same.
#[inline(always)]
pub(crate) fn source_v4(uplink: &Uplink, next_hop: &Address) -> Option<Address> {
    let mut first = None;
    for source in &uplink.sources {
        if !source.address.is_v4() {
            continue;
        }
        if same_subnet(next_hop, &source.address, source.prefix_len) {
            return Some(source.address);
        }
        if first.is_none() {
            first = Some(source.address);
        }
    }
    first
}

/// Returns the IPv6 address that has most leading bits in common with the destination, counted
/// within its own prefix.
#[inline(always)]
pub(crate) fn source_v6(uplink: &Uplink, destination: &Address) -> Option<Address> {
    let mut best = None;
    let mut most = 0;
    for source in &uplink.sources {
        let address = &source.address;
        if address.is_v4() || address.is_any() || is_link_local(address) {
            continue;
        }
        let common = common_prefix(destination, address);
        let common = if common > source.prefix_len {
            source.prefix_len
        } else {
            common
        };
        if best.is_none() || common > most {
            best = Some(*address);
            most = common;
        }
    }
    best
}

/// Prepares a flow of the node itself for another source port: its own address, and no pod.
#[inline(always)]
pub(crate) fn keep_node_address(work: &mut Work) {
    work.source = work.headers.tuple.source;
    work.endpoint = abi::Endpoint::default();
}

/// Tries one port: `Ok(true)` when the flow is inserted, `Ok(false)` when another port may succeed.
#[inline(always)]
pub(crate) fn try_port<E: Node>(node: &mut E, work: &mut Work, attempt: u32) -> Decision<bool> {
    if attempt > 0 && !may_move(work.headers.transport) {
        return Err(DropReason::NatClash);
    }
    let port = next_port(node, work, attempt)?;
    work.translated = work.headers.tuple;
    work.translated.source = work.source;
    work.translated.source_port = port;
    let own = if work.endpoint.pod == 0 {
        FlowFlags::NODE
    } else {
        0
    };
    let terms = Terms {
        hook: Hook::UplinkOut,
        flags: FlowFlags::SNAT | own,
        uplink: work.interface,
        account: work.endpoint.pod,
        pod: work.endpoint.pod,
        generation: work.endpoint.generation,
        now: work.now,
    };
    work.pair
        .fill(&work.headers.tuple, &work.translated, &terms);
    if is_port_taken(node, &work.pair.reply.key) {
        return Ok(false);
    }
    flow::insert(node, work)
}

/// Returns whether the source port may be changed. SCTP's CRC covers ports: MASQUERADE keeps both
/// port and CRC.
#[inline(always)]
const fn may_move(transport: Transport) -> bool {
    match transport {
        Transport::Tcp | Transport::Udp | Transport::EchoRequest => true,
        Transport::None
        | Transport::Sctp
        | Transport::EchoReply
        | Transport::IcmpError
        | Transport::IcmpOther
        | Transport::Portless => false,
    }
}

/// Returns the source port to try next for the packet's flow.
#[inline(always)]
pub(crate) fn next_port<E: Node>(node: &mut E, work: &mut Work, attempt: u32) -> Decision<Port> {
    if attempt <= RANDOM_TRIES {
        work.random = node.random();
    }
    let settings = node.settings().ok_or(DropReason::NoPort)?;
    let original = work.headers.tuple.source_port;
    port_candidate(attempt, original, work.random, settings).ok_or(DropReason::NoPort)
}

/// Returns the port of an attempt: first the packet's own, then random ones, then those behind the
/// last random one. `None` when the whole range was tried.
#[inline(always)]
pub(crate) fn port_candidate(
    attempt: u32,
    original: Port,
    random: u32,
    settings: &Settings,
) -> Option<Port> {
    if attempt == 0 {
        return Some(original);
    }
    let (low, high) = if settings.port_low == 0 || settings.port_high < settings.port_low {
        (DEFAULT_LOW, DEFAULT_HIGH)
    } else {
        (settings.port_low, settings.port_high)
    };
    let span = u32::from(high) - u32::from(low) + 1;
    let behind = attempt.saturating_sub(RANDOM_TRIES);
    if behind >= span {
        return None;
    }
    // Scaled into the range by a multiplication: a remainder would need a proof that the range is
    // not empty.
    let drawn = ((u64::from(random) * u64::from(span)) >> 32) as u32;
    let offset = drawn + behind;
    let offset = if offset >= span {
        offset - span
    } else {
        offset
    };
    Some(Port::new(((u32::from(low) + offset) & 0xffff) as u16))
}

/// Returns whether packets with the tuple `incoming` belong to a hostport or to a socket of the
/// node.
#[inline(always)]
pub(crate) fn is_port_taken<E: Node>(node: &mut E, incoming: &Tuple) -> bool {
    if incoming.protocol != protocol::TCP && incoming.protocol != protocol::UDP {
        return false;
    }
    let own = HostportKey::new(
        incoming.destination,
        incoming.destination_port,
        incoming.protocol,
    );
    if node.hostport(&own).is_some() {
        return true;
    }
    let any = HostportKey::wildcard(
        incoming.destination.family(),
        incoming.destination_port,
        incoming.protocol,
    );
    node.hostport(&any).is_some() || node.socket(incoming) != Socket::None
}

#[cfg(test)]
mod tests;
