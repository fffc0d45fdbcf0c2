//! Whether a packet with the tuple of a flow is no longer the flow's: uplinks, addresses of the
//! node and ports of its sockets change hands.

use abi::{Address, Flow, FlowFlags, Seen};

use crate::node::{Node, Socket};
use crate::work::{Hook, Transport, Work};

/// Returns whether a masqueraded flow now leaves by another uplink: its address is not that
/// uplink's.
#[inline(always)]
pub(super) fn has_moved(flow: &Flow, hook: Hook, interface: u32) -> bool {
    hook == Hook::UplinkOut && is_masqueraded(flow) && flow.uplink != interface
}

/// Returns whether a masqueraded flow's address is no longer the node's: replies would be lost, or
/// reach another host. Checked for the first packet of each second, so that the others do not pay
/// for it.
#[inline(always)]
pub(super) fn has_lost_address<E: Node>(
    node: &E,
    flow: &Flow,
    source: &Address,
    hook: Hook,
    now: u32,
) -> bool {
    hook == Hook::UplinkOut
        && is_masqueraded(flow)
        && flow.last_seen != now
        && !node.is_local(source)
}

/// Returns whether a reply of a hostport's pod is for a socket of the node: the flow has the
/// gateway's address and the client's port, and after its end a connection of the node may get the
/// same port. Checked where such a connection is answered, and for other packets once a second.
#[inline(always)]
pub(super) fn is_for_node<E: Node>(node: &mut E, work: &Work, flow: &Flow, hook: Hook) -> bool {
    const ANSWER: u32 = Seen::SYN | Seen::ACK;
    const REPLY_TO_GATEWAY: u32 = FlowFlags::FROM_POD | FlowFlags::SNAT;
    if hook != Hook::FromPod
        || flow.flags & (REPLY_TO_GATEWAY | FlowFlags::ORIGINAL) != REPLY_TO_GATEWAY
    {
        return false;
    }
    let is_checked = if work.headers.transport == Transport::Tcp {
        work.headers.seen & ANSWER == ANSWER
    } else {
        work.headers.transport == Transport::Udp && flow.last_seen != work.now
    };
    is_checked && node.socket(&work.headers.tuple) == Socket::Connected
}

/// Returns whether this is the outgoing direction of a pod's masqueraded flow.
#[inline(always)]
fn is_masqueraded(flow: &Flow) -> bool {
    const MASQUERADED: u32 = FlowFlags::ORIGINAL | FlowFlags::SNAT;
    flow.flags & (MASQUERADED | FlowFlags::NODE) == MASQUERADED
}
