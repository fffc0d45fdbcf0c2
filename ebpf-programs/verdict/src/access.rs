//! Closed networks: which packets may leave a network, and enter it, besides those of its published
//! ports.
//!
//! Packets of a flow are not checked: published ports, and connections that a pod of the network
//! was allowed to open. Packets between pods, and of pods, are checked at the sender's veth; those
//! from outside at the uplink. What the stack delivers after a translation by other software is
//! checked at the veth of a receiver in an internal network.
//!
//! A network is a bridge here: pods on the same bridge reach each other without any router.

use abi::{Address, DropReason, EndpointFlags, Family, FlowFlags, HostportKey, TrustedLinkKey};

use crate::address::{is_broadcast, is_link_local, is_multicast};
use crate::flow;
use crate::fragment_store::FragmentStore;
use crate::hostport::{self, is_pod_address};
use crate::icmp;
use crate::node::{Node, Socket};
use crate::outcome::Decision;
use crate::packet::Packet;
use crate::policy;
use crate::sender::{SOURCE_MAC, has_mac};
use crate::tunnel;
use crate::work::{Content, Fragment, Hook, HostportMatch, Transport, Work};

/// Offset of the destination MAC address in a frame.
const DESTINATION_MAC: u32 = 0;

/// Drops packets between pods where the policies of both forbid them, and those that would enter or
/// leave a closed network.
#[inline(always)]
pub fn check_policy<E: Packet + Node + FragmentStore>(
    env: &mut E,
    work: &mut Work,
) -> Decision<()> {
    policy::check(env, work)?;
    tunnel::check_sent(env, work)?;
    check_unmatched(env, work)
}

/// Returns the reason for which a packet to a pod with these [`EndpointFlags`] is dropped.
#[inline(always)]
const fn refusal(flags: u32) -> DropReason {
    if flags & EndpointFlags::INTERNAL != 0 {
        DropReason::InternalNetwork
    } else {
        DropReason::DirectAccess
    }
}

/// Drops a packet from outside that is for the own address of the pod in [`Work::endpoint`], where
/// the pod's network is closed: unless the address is routed and the packet may reach it, or the
/// network trusts the uplink by which the packet came.
#[inline(always)]
pub(crate) fn check_outsider<E: Node>(node: &E, work: &Work) -> Decision<()> {
    let (flags, network) =
        (node.pod(work.endpoint.pod)).map_or((0, 0), |pod| (pod.flags, pod.network));
    if flags & EndpointFlags::PUBLISHED_ONLY == 0
        || is_open_address(node, work, flags)
        || came_by_trusted_link(node, work, network)
    {
        Ok(())
    } else {
        Err(refusal(flags))
    }
}

/// Returns whether the destination is a routed address ([`EndpointFlags::ROUTED_V4`]) that the
/// packet may reach: as an echo request, or by a port that is published at the address itself.
#[inline(always)]
fn is_open_address<E: Node>(node: &E, work: &Work, flags: u32) -> bool {
    let routed = match work.headers.family() {
        Family::V4 => EndpointFlags::ROUTED_V4,
        Family::V6 => EndpointFlags::ROUTED_V6,
    };
    if flags & routed == 0 {
        return false;
    }
    if work.headers.transport == Transport::EchoRequest {
        return true;
    }
    let to = &work.headers.tuple;
    let key = HostportKey::new(to.destination, to.destination_port, to.protocol);
    work.headers.transport.has_ports()
        && node
            .hostport(&key)
            .is_some_and(|own| own.pod == work.endpoint.pod && hostport::is_alive(node, own))
}

/// Returns whether the network with this bridge trusts the link by which the packet came.
#[inline(always)]
fn came_by_trusted_link<E: Node>(node: &E, work: &Work, network: u32) -> bool {
    let key = TrustedLinkKey {
        network,
        interface: work.interface,
    };
    node.trusted_link(&key).is_some()
}

/// As `check_outsider`, for a packet without ports, by its destination: an ICMP error that quotes
/// no flow, or a fragment without its first one. An address that the node has as well is the
/// node's.
#[inline(always)]
pub fn check_entering<E: Node>(node: &mut E, work: &mut Work) -> Decision<()> {
    tunnel::check_portless(node, work)?;
    let destination = work.headers.tuple.destination;
    let Some(endpoint) = node.endpoint(&destination) else {
        return Ok(());
    };
    if node.is_local(&destination) {
        return Ok(());
    }
    work.endpoint = *endpoint;
    check_outsider(node, work)
}

/// Returns whether the sending pod can receive replies from the pod in [`Work::endpoint`] only if
/// they belong to a flow: the two are in different networks, and the sender's is closed.
#[inline(always)]
pub(crate) fn needs_flow<E: Node>(node: &E, work: &Work) -> bool {
    let Some((flags, network)) = node.pod(work.pod).map(|pod| (pod.flags, pod.network)) else {
        return false;
    };
    flags & EndpointFlags::PUBLISHED_ONLY != 0
        && work.headers.may_open()
        && node
            .pod(work.endpoint.pod)
            .is_some_and(|other| other.network != network)
}

/// Returns whether the pod in [`Work::endpoint`] has no route to the sending pod: its network is
/// internal, and the sender is in another one.
#[inline(always)]
pub(crate) fn hides_client<E: Node>(node: &E, work: &Work) -> bool {
    let (Some(client), Some(server)) = (node.pod(work.pod), node.pod(work.endpoint.pod)) else {
        return false;
    };
    server.flags & EndpointFlags::INTERNAL != 0 && client.network != server.network
}

/// Drops packets of a pod that would enter a closed network, or leave an internal one.
/// [`Work::endpoint`] is the receiving pod, with slot 0 where none is known.
#[inline(always)]
pub(crate) fn check_sent<E: Packet + Node>(
    env: &mut E,
    work: &mut Work,
    found: HostportMatch,
) -> Decision<()> {
    let Some((flags, network)) = env.pod(work.pod).map(|pod| (pod.flags, pod.network)) else {
        return Ok(());
    };
    if work.endpoint.pod == 0 {
        return if flags & EndpointFlags::INTERNAL == 0 || stays_inside(env, work, network) {
            Ok(())
        } else {
            Err(DropReason::InternalNetwork)
        };
    }
    let Some(receiver) = env.pod(work.endpoint.pod) else {
        return Ok(());
    };
    if receiver.network == network {
        Ok(())
    } else if flags & EndpointFlags::INTERNAL != 0 {
        Err(DropReason::InternalNetwork)
    } else if found == HostportMatch::Pod && is_redirected(work) {
        Ok(())
    } else {
        check_outsider(env, work)
    }
}

/// Returns whether the packet is redirected to the pod of a hostport, not addressed to the pod
/// itself.
#[inline(always)]
fn is_redirected(work: &Work) -> bool {
    work.endpoint.interface != 0
}

/// As [`check_sent`], for packets that have no hostport: those without ports, and frames of a VLAN.
#[inline(always)]
fn check_unmatched<E: Packet + Node + FragmentStore>(env: &mut E, work: &mut Work) -> Decision<()> {
    work.endpoint.pod = 0;
    if let Some(endpoint) = env.endpoint(&work.headers.tuple.destination) {
        work.endpoint = *endpoint;
    } else if work.headers.transport == Transport::IcmpError && quotes_published(env, work) {
        return Ok(());
    }
    check_sent(env, work, HostportMatch::None)
}

/// Returns whether an ICMP error of an internal network's pod is for a client that has sent the
/// quoted packet to a published port.
#[inline(always)]
fn quotes_published<E: Packet + Node + FragmentStore>(env: &mut E, work: &mut Work) -> bool {
    let pod = work.pod;
    let is_internal = env
        .pod(pod)
        .is_some_and(|pod| pod.flags & EndpointFlags::INTERNAL != 0);
    let is_found = is_internal
        && icmp::find(env, work, Hook::UplinkOut)
        && work.pod == pod
        && work.embedded.tuple.source == work.headers.tuple.destination;
    work.pod = pod;
    is_found
}

/// Returns whether a packet of a pod in an internal network, to an address that no pod has, stays
/// on the bridge or is for the node by its address on the bridge; or belongs to a published port,
/// or to a connection that the node has opened.
#[inline(always)]
fn stays_inside<E: Packet + Node>(env: &mut E, work: &mut Work, network: u32) -> bool {
    let to = work.headers.tuple.destination;
    // No router forwards these. Multicast routing would lead to an uplink, where such packets have
    // no flow.
    if is_multicast(&to) || is_broadcast(&to) || (!to.is_v4() && is_link_local(&to)) {
        return true;
    }
    if env.is_local(&to) {
        return is_on_bridge(env, work, network, &to) || is_of_node_socket(env, work);
    }
    if !is_for_node(env, network) {
        return true;
    }
    is_reply_of_published(env, work)
}

/// Returns whether an address of the node is on the bridge: the gateway, or one in a pod subnet.
#[inline(always)]
fn is_on_bridge<E: Node>(node: &E, work: &Work, network: u32, to: &Address) -> bool {
    let family = work.headers.family();
    node.network(network)
        .is_some_and(|network| network.gateway(family) == *to)
        || is_pod_address(node, to)
}

/// Returns whether the packet belongs to a connection of a socket of the node that has another
/// address than the bridge's.
#[inline(always)]
fn is_of_node_socket<E: Node>(node: &mut E, work: &mut Work) -> bool {
    // There is no notification when the socket is closed.
    work.recorder.mark_uncacheable();
    node.socket(&work.headers.tuple) == Socket::Connected
}

/// Returns whether the frame is addressed to the node: to the bridge, or to the host's end of the
/// veth, whose frames the bridge delivers to the node as well. Of a bridge without an entry, all
/// frames count as such.
#[inline(always)]
fn is_for_node<E: Packet + Node>(env: &E, network: u32) -> bool {
    let Some(mac) = env.network(network).map(|network| network.mac) else {
        return true;
    };
    env.is_for_this_host() || has_mac(env, DESTINATION_MAC, mac)
}

/// Returns whether the packet is a reply of a published port to a client outside of the node.
#[inline(always)]
fn is_reply_of_published<E: Node>(node: &E, work: &Work) -> bool {
    let Some(entry) = node.flow(&work.headers.tuple) else {
        return false;
    };
    let flow = node.read(entry);
    flow.flags & (FlowFlags::UPLINK_OUT | FlowFlags::ORIGINAL) == FlowFlags::UPLINK_OUT
        && flow.pod == work.pod
        && !flow::is_stale(node, &flow)
}

/// Returns whether a packet that a pod of an internal network receives needs a flow
/// ([`check_received`]).
#[inline(always)]
pub fn needs_flow_to_enter<E: Packet + Node>(env: &mut E, work: &mut Work) -> bool {
    let Some((flags, network)) = env.pod(work.pod).map(|pod| (pod.flags, pod.network)) else {
        return false;
    };
    flags & EndpointFlags::INTERNAL != 0 && !is_from_network(env, network)
}

/// Drops what the stack delivers to a pod of an internal network without a flow: packets of
/// containers of other software, and those that other software has translated.
#[inline(always)]
pub fn check_received<E: Packet + Node + FragmentStore>(
    env: &mut E,
    work: &mut Work,
    content: Decision<Content>,
) -> Decision<()> {
    let from = env.ingress_interface();
    match content {
        Ok(Content::Foreign | Content::Arp) => return Ok(()),
        // The uplink's program has checked the error, and dropped the first fragment.
        Ok(Content::IcmpError) if env.uplink(from).is_some() => return Ok(()),
        Ok(_) if work.headers.fragment == Fragment::Later => return Ok(()),
        Ok(_) => {}
        Err(_) => return Err(DropReason::InternalNetwork),
    }
    // The entry of the replies has the tuple that the pod sends with.
    work.translated = work.headers.tuple.reverse();
    let Some(entry) = env.flow(&work.translated) else {
        return Err(DropReason::InternalNetwork);
    };
    let flow = env.read(entry);
    if flow::is_stale(env, &flow) {
        Err(DropReason::InternalNetwork)
    } else {
        Ok(())
    }
}

/// Returns whether a packet that a pod receives comes from its own network or from the node itself.
#[inline(always)]
fn is_from_network<E: Packet + Node>(env: &E, network: u32) -> bool {
    let from = env.ingress_interface();
    if from == 0 || from == network {
        return true;
    }
    if let Some(slot) = env.interface(from).map(|interface| interface.pod)
        && env.pod(slot).is_some_and(|pod| pod.network == network)
    {
        return true;
    }
    // A routed packet has the bridge's own MAC address; all others were bridged.
    env.network(network)
        .is_some_and(|network| !has_mac(env, SOURCE_MAC, network.mac))
}

#[cfg(test)]
mod tests;
