//! Tunnels between nodes (VXLAN, RFC 7348): whose outer packets enter the node, and which inner
//! packets enter by the tunnel.
//!
//! VXLAN has no authentication, and the kernel's socket of a tunnel is open to all. So the outer
//! source must be an address of a peer, and no pod may send to that port: a masqueraded packet
//! would have the address of its node, which is a peer of all others.
//!
//! Behind decapsulation, the outer source is not known. The inner source must be in a prefix of any
//! peer, and the inner destination must be one for which peers use the tunnel: a pod, a published
//! port, or the node itself where it has sent the request.

use abi::{DropReason, Port, PrefixClass};

use crate::flow_cache::FlowCache;
use crate::node::{Node, Socket};
use crate::outcome::Decision;
use crate::packet::Packet;
use crate::row_cache;
use crate::work::{Content, HostportMatch, Transport, Work};

/// Returns whether the packet is for the UDP port of the tunnels.
#[inline(always)]
fn is_outer<E: Node>(node: &E, work: &Work) -> bool {
    let port = node.settings().map_or(Port::NONE, |it| it.tunnel_port);
    work.headers.transport == Transport::Udp
        && port != Port::NONE
        && work.headers.tuple.destination_port == port
}

/// Returns whether the node itself would receive the packet: the kernel forwards it to no link.
/// Includes broadcasts and groups, which the socket of a tunnel receives as well.
#[inline(always)]
fn is_received<E: Node>(node: &mut E, work: &mut Work, from: u32) -> bool {
    node.egress_route(from, &work.headers.tuple, &mut work.hop, &mut 0) == 0
}

/// Drops packets from outside to the tunnel's port, unless they are from a peer.
#[inline(always)]
pub(crate) fn check_outer<E: Node>(node: &mut E, work: &mut Work) -> Decision<()> {
    if !is_outer(node, work) || node.tunnel_peer(&work.headers.tuple.source).is_some() {
        return Ok(());
    }
    let from = work.interface;
    if is_received(node, work, from) {
        Err(DropReason::TunnelForeignSender)
    } else {
        Ok(())
    }
}

/// Drops packets of a pod to the tunnel's port of this node or a peer.
#[inline(always)]
pub(crate) fn check_sent<E: Node>(node: &mut E, work: &mut Work) -> Decision<()> {
    if !is_outer(node, work) {
        return Ok(());
    }
    let from = node.pod(work.pod).map_or(0, |pod| pod.network);
    if node.tunnel_peer(&work.headers.tuple.destination).is_some() || is_received(node, work, from)
    {
        Err(DropReason::TunnelForeignSender)
    } else {
        Ok(())
    }
}

/// Drops a frame from a tunnel that carries no IP packet of a peer's pod.
#[inline(always)]
pub(crate) fn check_frame<E: Packet + Node>(
    env: &E,
    work: &Work,
    content: Content,
) -> Decision<()> {
    if matches!(content, Content::Foreign | Content::Arp) || env.is_tagged() {
        return Err(DropReason::TunnelDestination);
    }
    if env.prefix_class(&work.headers.tuple.source) & PrefixClass::PEER == 0 {
        return Err(DropReason::TunnelSource);
    }
    Ok(())
}

/// Returns whether the packet is on a tunnel.
#[inline(always)]
pub(crate) fn is_on_tunnel<E: Node>(node: &E, work: &mut Work) -> bool {
    let interface = work.interface;
    row_cache::uplink(node, work, interface).is_some_and(|uplink| uplink.is_tunnel())
}

/// Drops a packet from a tunnel that is for no pod and no published port, and that no socket of the
/// node has requested. A request without a connected socket has a flow (`node_origin`), so its
/// answers do not come here.
#[inline(always)]
pub(crate) fn check_inner<E: Node + FlowCache>(
    node: &mut E,
    work: &mut Work,
    found: HostportMatch,
) -> Decision<()> {
    // `work.pod` is the pod that the packet is addressed to.
    if found == HostportMatch::Pod || work.pod != 0 || !is_on_tunnel(node, work) {
        return Ok(());
    }
    let to = work.headers.tuple.destination;
    let has_ports = matches!(work.headers.transport, Transport::Tcp | Transport::Udp);
    if has_ports && node.is_local(&to) && node.socket(&work.headers.tuple) == Socket::Connected {
        return Ok(());
    }
    Err(DropReason::TunnelDestination)
}

/// As [`check_inner`], for packets without ports: later fragments, whose first one is checked, and
/// ICMP errors.
#[inline(always)]
pub(crate) fn check_portless<E: Node>(node: &mut E, work: &mut Work) -> Decision<()> {
    let to = work.headers.tuple.destination;
    if !is_on_tunnel(node, work) || node.is_local(&to) || node.endpoint(&to).is_some() {
        return Ok(());
    }
    Err(DropReason::TunnelDestination)
}

#[cfg(test)]
mod tests;
