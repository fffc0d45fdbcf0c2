//! Hostports, reached from a pod of the same node.
//!
//! The packet goes from the client's veth directly to the server's, past bridge and stack: neither
//! accepts replies from another address than the one that the client has connected to.
//!
//! The client keeps its address, with two exceptions, in which the server sees its network's
//! gateway as the source. A pod that connects to itself: no pod accepts packets from its own
//! address. A client on another isolated port of the server's bridge: the server cannot resolve its
//! MAC address. A client of another network, where the server's is internal: the server has no
//! route to it. The client keeps its port unless the server could not distinguish two flows then.

use abi::{DropReason, EndpointFlags, Flow, FlowFlags, Mac, SettingsFlags};

use crate::access;
use crate::flow::{self, Terms};
use crate::flow_cache::{FlowCache, Steps};
use crate::fragment;
use crate::fragment_store::FragmentStore;
use crate::hostport::{self, flag};
use crate::masquerade::{is_port_taken, next_port};
use crate::node::Node;
use crate::outcome::{Decision, Verdict};
use crate::packet::Packet;
use crate::row_cache;
use crate::shape::Shaper;
use crate::work::{Fit, Fragment, Hook, HostportMatch, Work};

/// [`Work::endpoint`]'s interface where the packet is not redirected by us.
const NOT_REDIRECTED: u32 = 0;
/// The tag ([`FlowCache::set_skb_tag`]) of replies that the stack forwards unchanged. The stack
/// keeps it when it reassembles or fragments a packet. The number is the same in all versions, and
/// none of those that the flow cache uses.
const FORWARDED: u32 = 0x5646;

/// Looks up the hostport that a pod's packet is for. On a match, [`Work::endpoint`] is the pod that
/// has it, and [`Work::source`] the address that this pod will see. Without a match,
/// [`Work::endpoint`] is the pod that has the destination address, with slot 0 where none has it.
///
/// A packet that opens a flow to a pod's own address is a match as well, without translation, where
/// the flow must be tracked: to a published pod, so that no flow to the hostport gets the same
/// tuple at the pod; and from a closed network, so that replies may enter it.
#[inline(always)]
pub(crate) fn find<E: Node>(node: &mut E, work: &mut Work) -> Decision<HostportMatch> {
    match hostport::find_owner(node, work) {
        HostportMatch::Socket => {
            // There is no notification when the socket is closed.
            work.recorder.mark_uncacheable();
            work.endpoint.pod = 0;
            Ok(HostportMatch::Socket)
        }
        HostportMatch::None if find_direct(node, work) => Ok(HostportMatch::Pod),
        HostportMatch::None | HostportMatch::Direct => Ok(HostportMatch::None),
        HostportMatch::Pod if is_source_of_sender(node, work) => {
            find_server(node, work)?;
            Ok(HostportMatch::Pod)
        }
        HostportMatch::Pod => {
            work.endpoint.pod = 0;
            Ok(HostportMatch::None)
        }
    }
}

/// Sets [`Work::endpoint`] to the hostport's pod, and [`Work::source`] to the address that it will
/// see.
#[inline(always)]
fn find_server<E: Node>(node: &E, work: &mut Work) -> Decision<()> {
    if !hostport::is_alive(node, &work.hostport) {
        return Err(DropReason::StaleGeneration);
    }
    let server = node.endpoint(&work.hostport.address);
    work.endpoint = *server.ok_or(DropReason::StaleGeneration)?;
    work.source = work.headers.tuple.source;
    if work.endpoint.interface == work.interface
        || are_isolated(node, work)
        || access::hides_client(node, work)
    {
        let family = work.headers.family();
        let network = network(node, work.endpoint.pod).ok_or(DropReason::NoSourceAddress)?;
        work.source = network.gateway(family);
        if work.source.is_any() {
            return Err(DropReason::NoSourceAddress);
        }
    }
    Ok(())
}

/// Returns whether the bridge isolates the sender and [`Work::endpoint`] from each other.
#[inline(always)]
fn are_isolated<E: Node>(node: &E, work: &Work) -> bool {
    let (Some(client), Some(server)) = (node.pod(work.pod), node.pod(work.endpoint.pod)) else {
        return false;
    };
    client.network == server.network && client.flags & server.flags & EndpointFlags::ISOLATED != 0
}

/// Returns whether the packet opens a flow to a pod's own address that must be tracked. Fills
/// [`Work::hostport`] and [`Work::endpoint`] as for a hostport.
#[inline(always)]
fn find_direct<E: Node>(node: &E, work: &mut Work) -> bool {
    let Some(endpoint) = node.endpoint(&work.headers.tuple.destination) else {
        work.endpoint.pod = 0;
        return false;
    };
    work.endpoint = *endpoint;
    work.hostport.address = work.headers.tuple.destination;
    work.hostport.port = work.headers.tuple.destination_port;
    work.hostport.pod = work.endpoint.pod;
    work.hostport.generation = work.endpoint.generation;
    work.source = work.headers.tuple.source;
    let found = (hostport::may_clash(work) || access::needs_flow(node, work))
        && !node.is_local(&work.headers.tuple.destination)
        && hostport::is_alive(node, &work.hostport)
        && is_source_of_sender(node, work);
    work.endpoint.interface = NOT_REDIRECTED;
    found
}

/// Returns whether the source address is the sending pod's. Pods without spoof checks may send from
/// any address.
#[inline(always)]
fn is_source_of_sender<E: Node>(node: &E, work: &Work) -> bool {
    match node.endpoint(&work.headers.tuple.source) {
        Some(endpoint) => endpoint.interface == work.interface,
        None => false,
    }
}

/// Returns the network of a pod.
#[inline(always)]
fn network<E: Node>(node: &E, slot: u32) -> Option<&abi::Network> {
    let bridge = node.pod(slot)?.network;
    node.network(bridge)
}

/// Tries one source port: `Ok(true)` when the flow is inserted, `Ok(false)` when another port may
/// succeed.
#[inline(always)]
pub(crate) fn try_port<E: Node>(node: &mut E, work: &mut Work, attempt: u32) -> Decision<bool> {
    let port = next_port(node, work, attempt)?;
    let to = &mut work.translated;
    *to = work.headers.tuple;
    to.source = work.source;
    to.source_port = port;
    to.destination = work.hostport.address;
    to.destination_port = work.hostport.port;
    let hairpin = work.source != work.headers.tuple.source;
    let snat = hairpin || attempt > 0;
    let dnat = work.endpoint.interface != NOT_REDIRECTED;
    let terms = Terms {
        hook: Hook::FromPod,
        flags: flag(snat, FlowFlags::SNAT) | flag(dnat, FlowFlags::DNAT),
        uplink: work.interface,
        account: work.pod,
        pod: work.hostport.pod,
        generation: work.hostport.generation,
        now: work.now,
    };
    work.pair
        .fill(&work.headers.tuple, &work.translated, &terms);
    // The gateway address is the node's: a socket of the node may use the port.
    if hairpin && is_port_taken(node, &work.pair.reply.key) {
        return Ok(false);
    }
    match flow::insert(node, work) {
        // A flow to the pod's own address works without an entry, too.
        Err(DropReason::FlowTableFull | DropReason::FlowQuota)
            if !dnat && hostport::is_reply_free(node, work) && !access::needs_flow(node, work) =>
        {
            work.translated = work.headers.tuple;
            Ok(true)
        }
        made => made,
    }
}

/// Returns whether both pods of a flow are still those that it was created for. [`Work::endpoint`]
/// is then the receiving pod; the packet will have the tuple [`Work::translated`].
///
/// The flow has the server's generation. The client is identified by its interface index, which the
/// kernel does not reuse.
#[inline(always)]
pub(crate) fn has_current_pods<E: Node>(node: &E, work: &mut Work, flow: &Flow) -> bool {
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
        work.endpoint.interface = NOT_REDIRECTED;
    }
    client == flow.uplink
}

/// Returns whether the packet, or each of its GSO segments, fits the link of [`Work::endpoint`],
/// which may have another MTU than the sender's. Where it does not, the stack reports the MTU to
/// the sender, or fragments the packet; a redirect would deliver it as it is.
///
/// The stack forwards no packet from an address of the node, which a translated reply has. So
/// replies are forwarded unchanged: errors about them need no translation then, and fragments are
/// translated at the client's veth ([`find_forwarded_reply`]). Requests keep the client's address.
#[inline(always)]
pub(crate) fn check_fit<E: Packet + Node + Shaper + FlowCache>(
    env: &mut E,
    work: &mut Work,
) -> Decision<Fit> {
    let to = work.endpoint.interface;
    if to == NOT_REDIRECTED || fits(env, work, to) || !is_reported_by_stack(env, work, to) {
        return Ok(Fit::Fits);
    }
    // Shorter packets of the flow are redirected.
    work.recorder.mark_uncacheable();
    if work.translated.source == work.headers.tuple.source {
        return Ok(Fit::ForwardTranslated);
    }
    address_to_bridge(env, work)?;
    env.set_skb_tag(FORWARDED);
    Ok(Fit::ForwardUnchanged)
}

/// Returns whether the stack would forward the packet by a route whose MTU the packet exceeds as
/// well. With a larger one, the bridge would discard the packet: such packets are delivered
/// whatever their length.
#[inline(always)]
fn is_reported_by_stack<E: Packet + Node>(env: &mut E, work: &mut Work, to: u32) -> bool {
    let (own, translated) = (&work.headers.tuple, &work.translated);
    // Both addresses change where the server sees its gateway as the client.
    if own.source != translated.source && own.destination != translated.destination {
        return false;
    }
    let from = env.pod(work.pod).map_or(0, |pod| pod.network);
    let shared = env
        .pod(work.endpoint.pod)
        .is_some_and(|pod| pod.network == from);
    let routed_is_duplicate = shared
        && env
            .settings()
            .is_some_and(|settings| settings.flags & SettingsFlags::DUPLICATES != 0);
    let tuple = &mut work.pair.reply.key;
    *tuple = work.headers.tuple;
    tuple.destination = work.translated.destination;
    tuple.destination_port = work.translated.destination_port;
    let mut mtu = 0;
    let link = env.egress_route(from, tuple, &mut work.hop, &mut mtu);
    if link == 0 || env.uplink(link).is_some() || routed_is_duplicate {
        return false;
    }
    let least = env.mtu(to);
    env.mtu(link) <= least || (mtu != 0 && mtu <= least)
}

/// Writes the bridge's MAC address as the destination: the pod may have sent the frame to a pod of
/// its own subnet.
#[inline(always)]
pub(crate) fn address_to_bridge<E: Packet + Node>(env: &mut E, work: &Work) -> Decision<()> {
    let Some(mac) = network(env, work.pod).map(|network| network.mac) else {
        return Ok(());
    };
    let Some([_, second]) = env.words::<2>(0) else {
        return Err(DropReason::RewriteFailed);
    };
    let (to, [_, _, third, fourth]) = (mac.bytes(), second.to_ne_bytes());
    let words = [[to[0], to[1], to[2], to[3]], [to[4], to[5], third, fourth]];
    env.store(0, words.map(u32::from_ne_bytes))
}

/// Returns whether a packet fits the link `to` of the receiving pod, of which the sender's may have
/// another MTU. All fragments of a packet take the same path, whatever their length: connection
/// tracking reassembles them on the way through the stack.
#[inline(always)]
pub(crate) fn fits<E: Packet + Node + Shaper>(env: &E, work: &mut Work, to: u32) -> bool {
    (work.headers.fragment == Fragment::Whole || env.mtu(work.interface) <= env.mtu(to))
        && row_cache::fits(env, &mut work.rows.pod_mtu, to)
}

/// Looks up the flow of a fragment that the stack has forwarded to a pod: of a reply that did not
/// fit ([`check_fit`]). On a hit, [`Work::translated`] is the tuple to write. The packet has been
/// counted at its sender's veth.
///
/// Of two flows between the same ports of two pods, one to a hostport and one to the pod's own
/// address, one has another source port at the server. A reply of that flow has, after translation,
/// the tuple of the other flow's replies before it. Where both exist, the tag decides (decision
/// 115).
#[inline(always)]
pub(crate) fn find_forwarded_reply<E: Node + FragmentStore + FlowCache>(
    node: &mut E,
    work: &mut Work,
) -> bool {
    const REPLY: u32 = FlowFlags::FROM_POD | FlowFlags::DNAT;
    let Work {
        fragment, headers, ..
    } = work;
    if !fragment::find_ports(node, fragment, headers) {
        return false;
    }
    let Some(entry) = node.flow(&work.headers.tuple) else {
        return false;
    };
    let flow = node.read(entry);
    if flow.flags & (REPLY | FlowFlags::ORIGINAL) != REPLY || flow::is_stale(node, &flow) {
        return false;
    }
    work.translated = work.headers.tuple.reverse();
    if node.skb_tag() != FORWARDED && node.flow(&work.translated).is_some() {
        return false;
    }
    work.translated = flow.translated;
    let receiver = node.endpoint(&work.translated.destination);
    let is_received = receiver.is_some_and(|receiver| receiver.interface == work.interface);
    if is_received && work.headers.fragment == Fragment::First {
        fragment::store(node, work);
    }
    is_received
}

/// Writes the MAC addresses that a frame from the bridge to [`Work::endpoint`] has, and redirects
/// it there. Passes packets to a pod's own address.
#[inline(always)]
pub(crate) fn redirect_to_pod<E: Packet + Node>(env: &mut E, work: &mut Work) -> Verdict {
    if work.endpoint.interface == NOT_REDIRECTED {
        return Verdict::Pass;
    }
    let bridge = match network(env, work.endpoint.pod) {
        Some(network) => network.mac,
        None => Mac::default(),
    };
    match set_mac_addresses(env, work, bridge) {
        Ok(()) => Verdict::RedirectPeer(work.endpoint.interface),
        Err(reason) => Verdict::Drop(reason),
    }
}

/// Writes the MAC addresses of a frame from `bridge` to [`Work::endpoint`], and records them.
#[inline(always)]
pub(crate) fn set_mac_addresses<P: Packet>(
    packet: &mut P,
    work: &mut Work,
    bridge: Mac,
) -> Decision<()> {
    work.recorder.mac_addresses = mac_words(work.endpoint.mac, bridge);
    work.recorder.steps |= Steps::MAC_ADDRESSES;
    packet.store(0, work.recorder.mac_addresses)
}

/// Returns both addresses of an Ethernet header as words of packet memory.
#[inline(always)]
fn mac_words(to: Mac, from: Mac) -> [u32; 3] {
    let (to, from) = (to.bytes(), from.bytes());
    [
        [to[0], to[1], to[2], to[3]],
        [to[4], to[5], from[0], from[1]],
        [from[2], from[3], from[4], from[5]],
    ]
    .map(u32::from_ne_bytes)
}
