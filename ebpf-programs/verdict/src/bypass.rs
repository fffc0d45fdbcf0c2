//! The bypass: redirects packets past bridge and stack where no other software has rules for them.
//!
//! While the agent has found no such rules ([`SettingsFlags::BYPASS`]), this holds for both
//! directions of all flows, so the two directions of a flow never take different paths. Beside
//! rules, it holds for connections that [`crate::offload`] is about. And only for packets that need
//! nothing from the stack: whole, without options, with TTL left, within the MTU, from one known
//! place to another. ARP, neighbour discovery, multicast, errors and everything unknown take the
//! stack.

use abi::{EndpointFlags, FlowFlags, SettingsFlags, Tuple};

use crate::flow;
use crate::flow_cache::{FlowCache, Steps, tag_offloaded};
use crate::hostport_from_pod::set_mac_addresses;
use crate::node::Node;
use crate::offload;
use crate::outcome::{Decision, Verdict};
use crate::packet::Packet;
use crate::parse::{IPV4_HEADER, IPV6_HEADER, TCP_FLAGS, UDP_HEADER, tcp_header};
use crate::rewrite::{V4_TIME_TO_LIVE, header_word};
use crate::row_cache;
use crate::sender::{ETHERNET, has_mac};
use crate::shape::Shaper;
use crate::work::{Fragment, Headers, Transport, Work};

/// Offset of the destination MAC address in a frame.
const DESTINATION_MAC: u32 = 0;
/// Offset of the word with the hop limit in an IPv6 header.
const V6_HOP_LIMIT: u32 = 4;

/// Decides about a pod's packet that no flow or hostport applies to.
#[inline(always)]
pub(crate) fn from_pod<E: Packet + Node + Shaper + FlowCache>(
    env: &mut E,
    work: &mut Work,
) -> Decision<Verdict> {
    let verdict = redirect_from_pod(env, work)?;
    if verdict == Verdict::Pass {
        // Netfilter translates what the stack gets.
        work.recorder.steps &= !(Steps::OFFLOADED | Steps::FOREIGN_NAT);
    }
    Ok(verdict)
}

#[inline(always)]
fn redirect_from_pod<E: Packet + Node + Shaper + FlowCache>(
    env: &mut E,
    work: &mut Work,
) -> Decision<Verdict> {
    let Some(pod) = env.pod(work.pod) else {
        return Ok(Verdict::Pass);
    };
    let network = pod.network;
    if pod.flags & EndpointFlags::BYPASS == 0 || !headers_allow_bypass(&work.headers) {
        return Ok(Verdict::Pass);
    }
    if !is_allowed(env) && !is_offloaded(env, work) {
        return Ok(Verdict::Pass);
    }
    let to = if is_translated_by_netfilter(work) {
        work.translated.destination
    } else {
        work.headers.tuple.destination
    };
    if row_cache::find_endpoint(env, work, &to) {
        to_local_pod(env, work, network)
    } else {
        to_uplink(env, work, network)
    }
}

/// Returns whether the packet may bypass the stack by the agent's decision. [`Work::translated`] is
/// the tuple that it must get then.
#[inline(always)]
fn is_offloaded<E: Node + FlowCache>(env: &E, work: &mut Work) -> bool {
    let has_flow = work.recorder.has_flow();
    if !has_flow {
        work.translated = work.headers.tuple;
    }
    // Where there is a flow, the packet has been rewritten already.
    if !offload::is_offloaded(env, work) || (has_flow && offload::is_translated(work)) {
        return false;
    }
    work.recorder.steps |= Steps::OFFLOADED;
    if offload::is_translated(work) {
        work.recorder.steps |= Steps::FOREIGN_NAT;
        work.translated = work.offloaded.translated;
    }
    true
}

/// Returns whether the packet gets the tuple [`Work::translated`] in place of netfilter's
/// translation.
#[inline(always)]
pub(crate) const fn is_translated_by_netfilter(work: &Work) -> bool {
    work.recorder.steps & Steps::FOREIGN_NAT != 0
}

/// Redirects to a pod of the node. A frame to a pod on the same bridge goes there as the bridge
/// would send it: nothing in it changes. What netfilter would translate may be routed as well.
#[inline(always)]
fn to_local_pod<E: Packet + Node + Shaper>(
    env: &mut E,
    work: &mut Work,
    network: u32,
) -> Decision<Verdict> {
    let Some(pod) = env.pod(work.endpoint.pod) else {
        return Ok(Verdict::Pass);
    };
    let direct = pod.network == network && has_mac(env, DESTINATION_MAC, pod.mac);
    let is_translated = is_translated_by_netfilter(work);
    if work.endpoint.interface == work.interface
        || (!direct && !is_translated)
        || (is_translated && !offload::allows_translated(env, work))
        || !may_redirect_to_pod(env, work)
    {
        return Ok(Verdict::Pass);
    }
    if direct || (is_routed(env, work, network) && route_to_pod(env, work)?) {
        Ok(Verdict::RedirectPeer(work.endpoint.interface))
    } else {
        Ok(Verdict::Pass)
    }
}

/// Returns whether the stack would route the packet: it is addressed to the bridge, and a router
/// forwards it.
#[inline(always)]
fn is_routed<E: Packet + Node>(env: &E, work: &mut Work, network: u32) -> bool {
    work.stack_only == 0
        && row_cache::bridge_mac(env, work, network)
            .is_some_and(|mac| has_mac(env, DESTINATION_MAC, mac))
}

/// Writes TTL and MAC addresses of a packet that is routed to the pod in [`Work::endpoint`].
/// Returns false, and writes nothing, where that is not possible.
#[inline(always)]
fn route_to_pod<E: Packet + Node>(env: &mut E, work: &mut Work) -> Decision<bool> {
    let bridge = env.pod(work.endpoint.pod).map_or(0, |pod| pod.network);
    let Some(mac) = row_cache::bridge_mac(env, work, bridge) else {
        return Ok(false);
    };
    if !decrement_ttl(env, work)? {
        return Ok(false);
    }
    set_mac_addresses(env, work, mac)?;
    Ok(true)
}

/// Redirects out of the node by the kernel's route; the uplink's program masquerades.
#[inline(always)]
fn to_uplink<E: Packet + Node + Shaper + FlowCache>(
    env: &mut E,
    work: &mut Work,
    network: u32,
) -> Decision<Verdict> {
    if !is_routed(env, work, network) {
        return Ok(Verdict::Pass);
    }
    // The kernel looks up the route when netfilter has translated the destination, and translates
    // the source afterwards.
    let link = if is_translated_by_netfilter(work) {
        let tuple = &mut work.pair.reply.key;
        *tuple = work.translated;
        tuple.source = work.headers.tuple.source;
        tuple.source_port = work.headers.tuple.source_port;
        row_cache::egress_route(env, &mut work.rows.egress, network, tuple)
    } else {
        row_cache::egress_route(env, &mut work.rows.egress, network, &work.headers.tuple)
    };
    work.hop = work.rows.egress.hop;
    let Some(uplink) = row_cache::uplink(env, work, link) else {
        return Ok(Verdict::Pass);
    };
    let may = uplink.is_translating()
        && row_cache::fits(env, &mut work.rows.egress_mtu, link)
        && fits_path_mtu(env, work, uplink.mtu);
    if !may || !decrement_ttl(env, work)? {
        return Ok(Verdict::Pass);
    }
    tag_offloaded(env, work.recorder.steps);
    Ok(Verdict::RedirectNeigh(link))
}

/// Returns whether the packet, or each of its GSO segments, fits the path. The MTU of the link is
/// not enough: a route may have a smaller one, and the kernel reports that of some routes only to
/// the agent (`uplink`).
#[inline(always)]
fn fits_path_mtu<E: Packet + Shaper>(env: &E, work: &Work, uplink: u32) -> bool {
    let Some(length) = length(env, &work.headers) else {
        return false;
    };
    let mtu = work.rows.egress.mtu;
    length <= uplink && (mtu == 0 || length <= mtu)
}

/// Returns the length in bytes from the IP header on, of the packet or of each of its GSO segments.
#[inline(always)]
fn length<E: Packet + Shaper>(env: &E, headers: &Headers) -> Option<u32> {
    let size = env.segment_size();
    if size == 0 {
        return Some(headers.length);
    }
    let transport = match headers.transport {
        Transport::Tcp => {
            let [word] = env.words::<1>(headers.l4 + TCP_FLAGS)?;
            tcp_header(word)
        }
        Transport::Udp => UDP_HEADER,
        Transport::None
        | Transport::Sctp
        | Transport::EchoRequest
        | Transport::EchoReply
        | Transport::IcmpError
        | Transport::IcmpOther
        | Transport::Portless => return None,
    };
    Some(headers.l4 - headers.l3 + transport + size)
}

/// Decides about a packet of a flow from outside that is to get the tuple [`Work::translated`], and
/// is not rewritten yet. Where netfilter would translate it as well, that is the final tuple after
/// a redirect.
#[inline(always)]
pub(crate) fn to_pod<E: Packet + Node + Shaper + FlowCache>(
    env: &mut E,
    work: &mut Work,
) -> Decision<Verdict> {
    // What is for no pod by our own translation may be for one by netfilter's.
    let is_allowed = work.pod != 0 && is_allowed(env);
    if work.headers.l3 != ETHERNET
        || !env.is_for_this_host()
        || !headers_allow_bypass(&work.headers)
        || !(is_allowed || offload::is_offloaded(env, work))
        || !passes_reverse_path(env, work)
    {
        return Ok(Verdict::Pass);
    }
    let is_translated = !is_allowed && offload::is_translated(work);
    let to = if is_translated {
        work.offloaded.translated.destination
    } else {
        work.translated.destination
    };
    let may = row_cache::find_endpoint(env, work, &to)
        && (!is_translated || offload::allows_translated(env, work))
        && may_redirect_to_pod(env, work);
    if !may || !route_to_pod(env, work)? {
        return Ok(Verdict::Pass);
    }
    if is_translated {
        work.recorder.steps |= Steps::FOREIGN_NAT;
        work.translated = work.offloaded.translated;
    }
    Ok(Verdict::RedirectPeer(work.endpoint.interface))
}

/// Returns whether replies would leave by the link that the packet came in by. Where not, the
/// source may be forged, and the packet takes the stack, which checks it: reverse path filters (RFC
/// 3704), and that no other host uses the node's own addresses. The stack accepts all IPv6 sources.
/// The kernel is queried once a second for each flow, or less.
#[inline(always)]
fn passes_reverse_path<E: Node + FlowCache>(env: &mut E, work: &mut Work) -> bool {
    if work.headers.version == 6 || work.reverse_path_ok != 0 {
        return true;
    }
    let back = work.headers.tuple.reverse();
    let from = work.interface;
    let new = !row_cache::is_cached_route(env, &work.rows.reverse, from, &back);
    let leads_back = row_cache::egress_route(env, &mut work.rows.reverse, from, &back) == from;
    if new || !leads_back {
        record_reverse_path(env, &work.headers.tuple, leads_back);
    }
    leads_back
}

/// Stores the kernel's answer in the flow's entry.
#[inline(always)]
fn record_reverse_path<E: Node>(node: &mut E, key: &Tuple, leads_back: bool) {
    let Some(entry) = node.flow(key) else {
        return;
    };
    let flags = node.read(entry).flags;
    let new = if leads_back {
        flags | FlowFlags::REVERSE_PATH_OK
    } else {
        flags & !FlowFlags::REVERSE_PATH_OK
    };
    if new != flags {
        node.set_flags(entry, new);
    }
}

/// Returns whether the agent allows all packets to bypass bridge and stack.
#[inline(always)]
pub(crate) fn is_allowed<E: Node>(node: &E) -> bool {
    node.settings()
        .is_some_and(|settings| settings.flags & SettingsFlags::BYPASS != 0)
}

/// Returns whether the packet's own headers allow a bypass.
#[inline(always)]
fn headers_allow_bypass(headers: &Headers) -> bool {
    let has_transport = match headers.transport {
        Transport::Tcp
        | Transport::Udp
        | Transport::Sctp
        | Transport::EchoRequest
        | Transport::EchoReply => true,
        Transport::None | Transport::IcmpError | Transport::IcmpOther | Transport::Portless => {
            false
        }
    };
    let bare = if headers.version == 6 {
        IPV6_HEADER
    } else {
        IPV4_HEADER
    };
    has_transport && headers.fragment == Fragment::Whole && headers.l4 == headers.l3 + bare
}

/// Returns whether the packet may be redirected to [`Work::endpoint`]: the pod exists, only our
/// programs are attached on its path, and the packet fits its link.
#[inline(always)]
fn may_redirect_to_pod<E: Packet + Node + Shaper>(env: &E, work: &mut Work) -> bool {
    let endpoint = &work.endpoint;
    let may = env
        .pod(endpoint.pod)
        .is_some_and(|pod| pod.flags & EndpointFlags::BYPASS != 0);
    may && flow::is_current(env, endpoint.pod, endpoint.generation)
        && row_cache::fits(env, &mut work.rows.pod_mtu, endpoint.interface)
}

/// Decrements the TTL or hop limit, and records that. False where the last hop is used up.
///
/// What bypasses the stack has an Ethernet header. The verifier of Linux 6.1 does not carry the
/// bound of a variable offset over to its copy on the stack.
#[inline(always)]
fn decrement_ttl<P: Packet>(packet: &mut P, work: &mut Work) -> Decision<bool> {
    work.recorder.steps |= Steps::TTL_DECREMENTED;
    decrement_hop_limit(packet, work.headers.version, ETHERNET)
}

/// Decrements the TTL or hop limit, as every router does. Returns false where it is 1 or less: the
/// stack must send an ICMP error.
#[inline(always)]
pub(crate) fn decrement_hop_limit<P: Packet>(
    packet: &mut P,
    version: u8,
    l3: u32,
) -> Decision<bool> {
    if version == 6 {
        return decrement_hop_limit_v6(packet, l3 + V6_HOP_LIMIT);
    }
    let at = l3 + V4_TIME_TO_LIVE;
    let Some([old]) = packet.words::<1>(at) else {
        return Ok(false);
    };
    if old.to_ne_bytes()[0] <= 1 {
        return Ok(false);
    }
    packet.store(at, [header_word(old, 1, 0)])?;
    Ok(true)
}

#[inline(always)]
fn decrement_hop_limit_v6<P: Packet>(packet: &mut P, at: u32) -> Decision<bool> {
    let Some([old]) = packet.words::<1>(at) else {
        return Ok(false);
    };
    let [length, of_payload, next, limit] = old.to_ne_bytes();
    if limit <= 1 {
        return Ok(false);
    }
    let new = u32::from_ne_bytes([length, of_payload, next, limit - 1]);
    packet.store_and_update_csum(at, [new])?;
    Ok(true)
}

#[cfg(test)]
pub(crate) mod tests;
