//! The ingress policy of the CNI firewall plugin (`ingressPolicy`): whether one pod may reach
//! another by any address but the node's.
//!
//! A packet is dropped only where both pods have the policy, as with the chains of that plugin. So
//! no state is needed, and replies are treated like requests. Traffic of published ports, and its
//! replies, has a flow (or opens one) and is not checked.
//!
//! The ports decide, not the addresses. `from_pod` checks what is addressed to a pod: such packets
//! may go past the bridge. `to_pod` checks all that arrives by bridge and stack, whatever its
//! destination: the kernel knows the port that a frame came in by, and of a packet that was routed,
//! the source is a pod's, which `from_pod` has checked.

use abi::{Address, DropReason, EndpointFlags, FlowFlags};

use crate::address::is_link_local;
use crate::discovery::{NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION};
use crate::flow;
use crate::fragment;
use crate::fragment_store::FragmentStore;
use crate::node::Node;
use crate::outcome::Decision;
use crate::packet::Packet;
use crate::sender::{ETHERNET, has_link_local, has_v4, has_v6};
use crate::work::{Content, Fragment, Headers, Transport, Work};

/// Offset of the target protocol address in an ARP packet (RFC 826).
const ARP_TARGET: u32 = ETHERNET + 24;

/// Drops packets of a pod to another one where the policies of both forbid them.
#[inline(always)]
pub(crate) fn check<E: Node>(node: &E, work: &Work) -> Decision<()> {
    let Some(pod) = node.pod(work.pod) else {
        return Ok(());
    };
    if pod.flags & EndpointFlags::SAME_BRIDGE == 0 {
        return Ok(());
    }
    let Some(endpoint) = node.endpoint(&work.headers.tuple.destination) else {
        return Ok(());
    };
    let receiver = endpoint.pod;
    if !flow::is_current(node, receiver, endpoint.generation)
        || !forbids(node, work.pod, receiver)
        || is_discovery(&work.headers)
    {
        return Ok(());
    }
    Err(DropReason::IngressPolicy)
}

/// Returns whether the packet is a neighbour solicitation or advertisement (RFC 4861). It never
/// goes past the bridge, so `to_pod` decides about it.
#[inline(always)]
pub(crate) fn is_discovery(headers: &Headers) -> bool {
    let is_type = matches!(
        headers.icmp_type,
        NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT
    );
    is_type
        && headers.version == 6
        && headers.fragment == Fragment::Whole
        && headers.transport == Transport::IcmpOther
}

/// Returns whether the policies of two pods forbid packets between them.
#[inline(always)]
fn forbids<E: Node>(node: &E, one: u32, other: u32) -> bool {
    let (Some(one), Some(other)) = (node.pod(one).filter(|_| one != other), node.pod(other)) else {
        return false;
    };
    let forbidding = if one.network == other.network {
        EndpointFlags::INGRESS_ISOLATED
    } else {
        EndpointFlags::SAME_BRIDGE
    };
    one.flags & other.flags & forbidding != 0
}

/// Returns whether a packet that a pod receives by bridge or stack may be one that
/// [`check_received`] drops: the port that it came in by is of no pod, or of one that the policies
/// keep apart from the receiver. The receiver has a policy.
#[inline(always)]
pub(crate) fn may_be_forbidden<E: Packet + Node>(env: &E, work: &Work) -> bool {
    sender_by_port(env).is_none_or(|sender| forbids(env, sender, work.pod))
}

/// Returns the pod of the port that the packet came in by.
#[inline(always)]
fn sender_by_port<E: Packet + Node>(env: &E) -> Option<u32> {
    env.interface(env.ingress_interface()).map(|port| port.pod)
}

/// Drops a packet that [`may_be_forbidden`] if it is from another pod, and the policies of both
/// forbid it.
///
/// Address resolution for the receiver passes between ports of one bridge: a pod that answers a
/// client of its published port resolves the client's MAC address.
#[inline(always)]
pub(crate) fn check_received<E: Packet + Node + FragmentStore>(
    env: &mut E,
    work: &mut Work,
    content: Decision<Content>,
) -> Decision<()> {
    let by_port = sender_by_port(env);
    let is_forbidden = match content {
        Ok(Content::Arp) => by_port.is_some() && !is_arp_for_receiver(env, work),
        // Without addresses, only the port is known.
        Ok(Content::Foreign) | Err(_) => by_port.is_some(),
        Ok(
            Content::Ip
            | Content::FlowFound
            | Content::Fragment
            | Content::LostFragment
            | Content::EarlyFragment
            | Content::AwaitedFragment
            | Content::IcmpError,
        ) => {
            let is_between_pods = match by_port {
                Some(_) => !is_discovery_for_receiver(env, work),
                None => is_routed_from_forbidden(env, work),
            };
            is_between_pods && !has_hostport_flow(env, work)
        }
    };
    if is_forbidden {
        Err(DropReason::IngressPolicy)
    } else {
        Ok(())
    }
}

/// Returns whether a packet that came by no pod's port is from a pod that may not reach the
/// receiver. The node's own packets may have any of its addresses.
#[inline(always)]
fn is_routed_from_forbidden<E: Node>(node: &E, work: &Work) -> bool {
    let source = &work.headers.tuple.source;
    let Some(endpoint) = node.endpoint(source) else {
        return false;
    };
    let (sender, generation) = (endpoint.pod, endpoint.generation);
    flow::is_current(node, sender, generation)
        && forbids(node, sender, work.pod)
        && !node.is_local(source)
}

/// Returns whether an ARP packet requests an address of the receiver, or answers it.
#[inline(always)]
fn is_arp_for_receiver<E: Packet + Node>(env: &E, work: &Work) -> bool {
    let (Some(receiver), Some(words)) = (env.pod(work.pod), env.words::<1>(ARP_TARGET)) else {
        return false;
    };
    has_v4(env, work.pod, receiver, &Address::from_v4_word(words[0]))
}

/// Returns whether the packet is a neighbour solicitation for an address of the receiver, or an
/// advertisement to it alone (RFC 4861).
#[inline(always)]
fn is_discovery_for_receiver<E: Packet + Node>(env: &E, work: &Work) -> bool {
    let headers = &work.headers;
    let Some(receiver) = env.pod(work.pod).filter(|_| is_discovery(headers)) else {
        return false;
    };
    let address = match headers.icmp_type {
        NEIGHBOUR_ADVERTISEMENT => headers.tuple.destination,
        NEIGHBOUR_SOLICITATION => match env.words::<4>(headers.l4 + 8) {
            Some(words) => Address::from_words(words),
            None => return false,
        },
        _ => return false,
    };
    if is_link_local(&address) {
        has_link_local(env, work.pod, receiver, &address)
    } else {
        has_v6(env, work.pod, receiver, &address)
    }
}

/// Returns whether the packet belongs to a flow between the pods by a published port, in one of its
/// forms on the way through the stack: a translated request, or a reply that is not translated yet.
#[inline(always)]
fn has_hostport_flow<E: Node + FragmentStore>(node: &E, work: &mut Work) -> bool {
    let Work {
        fragment, headers, ..
    } = work;
    if !fragment::find_ports(node, fragment, headers) {
        return false;
    }
    work.pair.reply.key = work.headers.tuple;
    if is_hostport_flow(node, work) {
        return true;
    }
    work.pair.reply.key = work.headers.tuple.reverse();
    is_hostport_flow(node, work)
}

/// Returns whether the key of [`Work::pair`]'s reply has an entry of a flow between pods by a
/// published port.
#[inline(always)]
fn is_hostport_flow<E: Node>(node: &E, work: &Work) -> bool {
    const BETWEEN_PODS: u32 = FlowFlags::FROM_POD | FlowFlags::DNAT;
    let Some(entry) = node.flow(&work.pair.reply.key) else {
        return false;
    };
    let flow = node.read(entry);
    flow.flags & BETWEEN_PODS == BETWEEN_PODS && !flow::is_stale(node, &flow)
}

#[cfg(test)]
mod tests;
