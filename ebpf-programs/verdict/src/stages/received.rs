//! Stages of a packet that a pod receives from bridge or stack.

use abi::EndpointFlags;

use super::start;
use crate::flow_cache::FlowCache;
use crate::fragment_store::FragmentStore;
use crate::node::Node;
use crate::outcome::Decision;
use crate::packet::Packet;
use crate::sender::ETHERNET;
use crate::work::{Content, Fragment, Hook, Work};
use crate::{duplicate, icmp, offload, parse, policy, rewrite, row_cache};

/// Finds the pod of a frame on its veth, without parsing the frame. Returns those of its
/// [`EndpointFlags`] that concern what it receives: `LIMITED` and `SAME_BRIDGE`.
#[inline(always)]
pub fn identify_pod<E: Packet + Node>(env: &mut E, work: &mut Work) -> u32 {
    let interface = env.hook_interface();
    let of = env.interface(interface).copied().unwrap_or_default();
    start(env, work, interface, of.pod);
    work.headers.length = env.len().saturating_sub(ETHERNET);
    let of_pod = env.pod(of.pod).map_or(0, |pod| pod.flags);
    (of.flags & EndpointFlags::LIMITED)
        | (of_pod & (EndpointFlags::SAME_BRIDGE | EndpointFlags::INTERNAL))
}

/// Parses a packet that a pod receives from bridge or stack.
#[inline(always)]
pub fn parse_received<E: Packet>(env: &mut E, work: &mut Work) -> Decision<Content> {
    parse::frame(env, ETHERNET, &mut work.headers)
}

/// Returns whether a packet from bridge or stack may be one that [`check_received_policy`] drops.
#[inline(always)]
pub fn may_be_forbidden<E: Packet + Node>(env: &mut E, work: &mut Work) -> bool {
    policy::may_be_forbidden(env, work)
}

/// Drops a packet from another pod, by bridge or stack, if the policies of both forbid it.
/// `content` is the outcome of [`parse_received`].
#[inline(always)]
pub fn check_received_policy<E: Packet + Node + FragmentStore>(
    env: &mut E,
    work: &mut Work,
    content: Decision<Content>,
) -> Decision<()> {
    policy::check_received(env, work, content)
}

/// Returns whether a packet from bridge or stack may need a translation: an ICMP error of the node,
/// or a fragment.
#[inline(always)]
pub fn may_be_translated<E: Packet + Node + FlowCache>(env: &mut E, work: &mut Work) -> bool {
    if env.is_tagged() || !parse::may_be_error_or_fragment(env, ETHERNET) {
        return false;
    }
    row_cache::refresh(env, work);
    true
}

/// Returns the content of a packet that [`may_be_translated`], by the outcome of
/// [`parse_received`]: an error of the node, a fragment as [`Content::Ip`], or else
/// [`Content::Foreign`]. Errors of another pod have been translated at its veth.
#[inline(always)]
pub fn translatable<E: Node>(node: &mut E, work: &mut Work, content: Decision<Content>) -> Content {
    match content {
        Ok(Content::Ip) if work.headers.fragment == Fragment::Whole => Content::Foreign,
        Ok(Content::IcmpError) if !node.is_local(&work.headers.tuple.source) => Content::Foreign,
        Ok(content) => content,
        // The stack has accepted the packet.
        Err(_) => Content::Foreign,
    }
}

/// Drops the second copy of a packet that the pod has received already.
#[inline(always)]
pub fn check_duplicate<E: Packet + Node>(env: &mut E, work: &mut Work) -> Decision<()> {
    duplicate::check(env, work)
}

/// Returns whether a packet that a pod receives from bridge or stack is considered for a report.
#[inline(always)]
pub fn samples_delivered<E: Packet + Node + FlowCache>(env: &mut E, work: &mut Work) -> bool {
    offload::samples_delivered(env, work)
}

/// Reports the connection of a packet that a pod receives from bridge or stack to the agent, if it
/// may be offloaded.
#[inline(always)]
pub fn report_delivered<E: FlowCache>(env: &mut E, work: &mut Work) {
    offload::report_delivered(env, work);
}

/// As [`translate`], where no other stage and no error refers to the packet.
#[inline(always)]
pub fn translate_received<P: Packet>(packet: &mut P, work: &mut Work) -> Decision<()> {
    rewrite::packet(packet, &work.headers, &work.translated)
}

/// As [`translate_quote`], at the receiving pod's veth.
#[inline(always)]
pub fn translate_received_quote<P: Packet>(packet: &mut P, work: &mut Work) -> Decision<()> {
    icmp::translate_quote(packet, work)
}

/// As [`translate_error`] with [`Hook::FromPod`], at the receiving pod's veth.
#[inline(always)]
pub fn translate_received_error<P: Packet>(packet: &mut P, work: &mut Work) -> Decision<()> {
    icmp::translate_error(packet, work, Hook::FromPod)
}
