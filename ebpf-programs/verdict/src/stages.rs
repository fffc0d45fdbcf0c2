//! The stages of the hooks, one function each: the implementation of [`crate::HookStages`].
//!
//! Each takes the packet and the node as one value, the packet's scratch memory, and numbers. It
//! returns a value that can be encoded as a number: nothing else fits between two separately
//! verified functions.

mod eviction;
mod fragments;
mod received;

use abi::{Direction, DropReason, EndpointFlags};

use crate::flow_cache::{self, CacheHit, CacheLookup, FlowCache, ScratchProvider};
use crate::fragment_store::FragmentStore;
use crate::node::{Node, pod_of};
use crate::outcome::{Code as _, Decision, Verdict};
use crate::packet::Packet;
use crate::sender::ETHERNET;
use crate::shape::{self, Shaper};
use crate::work::{Content, Fit, Fragment, Hook, HostportMatch, Origin, QuotaUsage, Work};
use crate::{
    access, admission, bypass, exit, flow, fragment, hostport, hostport_from_pod, icmp, masquerade,
    parse, policy, rewrite, row_cache, sender, tunnel,
};

pub use self::eviction::{
    finish_advance, finish_eviction, inspect_flow, start_advance, start_eviction, take_port,
};
pub use self::fragments::{
    find_datagram, hold_fragment, identify_fragment, release_fragment, update_datagram,
    write_datagram,
};
pub use self::received::{
    check_duplicate, check_received_policy, identify_pod, may_be_forbidden, may_be_translated,
    parse_received, report_delivered, samples_delivered, translatable, translate_received,
    translate_received_error, translate_received_quote,
};
pub use crate::access::{check_entering, check_policy, check_received, needs_flow_to_enter};
pub use crate::icmp::check_quoted_hostport;
pub use crate::network_policy::{allow_left, allow_received, allow_redirected, allow_sent};

/// Looks up the packet's cache entry and applies it, unless the pod-side entry must be updated
/// first.
#[inline(always)]
pub fn lookup_cache<E: Packet + Node + Shaper + FlowCache>(
    env: &mut E,
    scratch: &mut impl ScratchProvider,
    interface: u32,
    hook: Hook,
) -> CacheLookup {
    flow_cache::find(env, scratch, interface, hook)
}

/// Applies the cached verdict of a pod's packet, if it is a redirect. See decision 75.
#[inline(always)]
pub fn find_cached_redirect<E: Packet + Node + Shaper + FlowCache>(
    env: &mut E,
    scratch: &mut impl ScratchProvider,
    interface: u32,
) -> Option<Verdict> {
    flow_cache::find_redirect(env, scratch, interface)
}

/// Applies the cached verdict and rewrite of `hit`, after the pod-side entry has been updated from
/// it.
#[inline(always)]
pub fn apply_cache_hit<E: Packet + Node + FlowCache>(
    env: &mut E,
    scratch: &mut impl ScratchProvider,
    hit: CacheHit,
) -> Verdict {
    flow_cache::apply_hit(env, scratch, hit)
}

/// Writes the cache entry of a packet with this verdict, given as its code.
#[inline(always)]
pub fn cache_verdict<E: Node + FlowCache>(env: &mut E, work: &mut Work, hook: Hook, number: u64) {
    // First: what the call needs would otherwise be kept on the stack while the entry is written.
    env.log_verdict(hook, number);
    flow_cache::record(env, work, hook, number);
}

/// Adds the outcome in the cache entry of this index to the pod-side entry of the same packet.
#[inline(always)]
pub fn propagate<E: Node + FlowCache>(env: &mut E, work: &mut Work, index: u32) {
    flow_cache::propagate(env, work, index);
}

/// Parses a frame on a pod's veth, and finds its pod. Drops frames of an interface that no pod has:
/// nothing is known that they could be checked for.
#[inline(always)]
pub fn parse_pod<E: Packet + Node + FlowCache>(env: &mut E, work: &mut Work) -> Decision<Content> {
    let interface = env.hook_interface();
    row_cache::refresh(env, work);
    let Some(of) = row_cache::interface(env, work, interface) else {
        start(env, work, interface, 0);
        return Err(DropReason::UnknownPod);
    };
    start(env, work, interface, of.pod);
    work.limited = of.flags & EndpointFlags::LIMITED;
    // The pod is set before parsing: drops of malformed frames are counted for it.
    let content = parse::received(env, ETHERNET, &mut work.headers)?;
    Ok(fragment_or(work, content))
}

/// Returns [`Content::Fragment`] for a fragment of an IP packet, and the content itself otherwise.
#[inline(always)]
fn fragment_or(work: &Work, content: Content) -> Content {
    if content == Content::Ip && work.headers.fragment != Fragment::Whole {
        Content::Fragment
    } else {
        content
    }
}

/// Parses a packet on an uplink.
#[inline(always)]
pub fn parse_uplink<E: Packet + Node + FlowCache>(
    env: &mut E,
    work: &mut Work,
) -> Decision<Content> {
    let interface = env.hook_interface();
    row_cache::refresh(env, work);
    start(env, work, interface, 0);
    let Some(uplink) = row_cache::uplink(env, work, interface) else {
        return Ok(Content::Foreign);
    };
    let content = parse::frame(env, uplink.l2_len, &mut work.headers)?;
    Ok(fragment_or(work, content))
}

/// As [`parse_uplink`], at ingress, and looks up the packet's flow. Packets for other hosts are
/// left to the stack, which drops them.
#[inline(always)]
pub fn parse_entering<E: Packet + Node + FlowCache>(
    env: &mut E,
    work: &mut Work,
) -> Decision<Content> {
    let interface = env.hook_interface();
    row_cache::refresh(env, work);
    start(env, work, interface, 0);
    let Some(uplink) = row_cache::uplink(env, work, interface) else {
        return Ok(Content::Foreign);
    };
    if uplink.l2_len != 0 && env.is_for_other_host() {
        return if uplink.is_tunnel() {
            Err(DropReason::TunnelDestination)
        } else {
            Ok(Content::Foreign)
        };
    }
    let content = parse::received(env, uplink.l2_len, &mut work.headers)?;
    if content == Content::Foreign && uplink.l2_len != 0 {
        admission::check_outsider(env)?;
    }
    if uplink.is_tunnel() {
        tunnel::check_frame(env, work, content)?;
    }
    let content = fragment_or(work, content);
    if content == Content::Ip && flow::find(env, work, Hook::UplinkIn) {
        return Ok(Content::FlowFound);
    }
    Ok(content)
}

/// Sets interface, pod and length: drops of frames that fail to parse are counted by them. The
/// addresses are unknown until then.
#[inline(always)]
fn start<E: Packet + Node>(env: &mut E, work: &mut Work, interface: u32, pod: u32) {
    work.headers.version = 0;
    work.interface = interface;
    work.pod = pod;
    work.quota_usage = QuotaUsage::LOW;
    work.headers.length = env.len();
}

/// Drops spoofed packets and martians. Returns whether the pod has a limit.
#[inline(always)]
pub fn check_sender<E: Packet + Node>(
    env: &mut E,
    work: &mut Work,
    content: Content,
) -> Decision<bool> {
    sender::check(env, work, content)?;
    Ok(work.limited != 0)
}

/// Charges the packet to the pod whose veth it is on, or drops it.
#[inline(always)]
pub fn charge<E: Packet + Shaper>(
    env: &mut E,
    work: &mut Work,
    direction: Direction,
) -> Decision<()> {
    let pod = work.pod;
    shape::charge(env, work, pod, direction)
}

/// Charges the packet to the receiving pod and counts it there, or drops it.
#[inline(always)]
pub fn charge_receiver<E: Packet + Node + Shaper>(env: &mut E, work: &mut Work) -> Decision<()> {
    let pod = work.endpoint.pod;
    if work.endpoint.flags & EndpointFlags::LIMITED != 0 {
        shape::charge(env, work, pod, Direction::Ingress)?;
    }
    env.count_passed(pod, Direction::Ingress, work.headers.length);
    Ok(())
}

/// Looks up the packet's flow.
#[inline(always)]
pub fn find_flow<E: Node + FlowCache>(node: &mut E, work: &mut Work, hook: Hook) -> bool {
    flow::find(node, work, hook)
}

/// Looks up the flow of the packet that an ICMP error quotes.
#[inline(always)]
pub fn find_quoted_flow<E: Packet + Node + FragmentStore>(
    env: &mut E,
    work: &mut Work,
    hook: Hook,
) -> bool {
    icmp::find(env, work, hook)
}

/// Returns the origin of a packet that leaves without a flow.
#[inline(always)]
pub fn origin<E: Node>(node: &mut E, work: &mut Work) -> Decision<Origin> {
    masquerade::origin(node, work)
}

/// Chooses the address to masquerade a pod's flow with.
#[inline(always)]
pub fn choose_source<E: Node>(node: &mut E, work: &mut Work) -> Decision<()> {
    masquerade::choose_source(node, work)
}

/// Prepares a flow of the node itself for another source port, with the node's own address.
#[inline(always)]
pub fn keep_node_address<E>(_: &mut E, work: &mut Work) {
    masquerade::keep_node_address(work);
}

/// Inserts a flow without translation, which reserves the source port of another NAT.
#[inline(always)]
pub fn track<E: Node>(node: &mut E, work: &mut Work) -> Decision<()> {
    masquerade::track(node, work)
}

/// Tries to insert the flow with one source port.
#[inline(always)]
pub fn try_port<E: Node>(node: &mut E, work: &mut Work, attempt: u32) -> Decision<bool> {
    masquerade::try_port(node, work, attempt)
}

/// Drops packets from outside with a source address of this node's pods.
#[inline(always)]
pub fn check_outside_source<E: Node>(node: &mut E, work: &mut Work) -> Decision<()> {
    hostport::check_outside_source(node, work)
}

/// Looks up the hostport that a packet from outside is for. Drops what is not for the tunnel that
/// it came by or is addressed to.
#[inline(always)]
pub fn find_hostport<E: Node + FlowCache>(
    node: &mut E,
    work: &mut Work,
) -> Decision<HostportMatch> {
    tunnel::check_outer(node, work)?;
    let found = hostport::find(node, work)?;
    tunnel::check_inner(node, work, found)?;
    Ok(found)
}

/// Tries to insert the flow of a packet from outside with one source port.
#[inline(always)]
pub fn try_port_from_outside<E: Node>(
    node: &mut E,
    work: &mut Work,
    attempt: u32,
) -> Decision<bool> {
    hostport::try_port(node, work, attempt)
}

/// Applies the ingress policy, and looks up the hostport that a pod's packet is for.
#[inline(always)]
pub fn find_hostport_from_pod<E: Packet + Node>(
    env: &mut E,
    work: &mut Work,
) -> Decision<HostportMatch> {
    // The policy comes first: a packet to a published pod's own address must not open a flow
    // against it.
    policy::check(env, work)?;
    tunnel::check_sent(env, work)?;
    let found = hostport_from_pod::find(env, work)?;
    access::check_sent(env, work, found)?;
    Ok(found)
}

/// Tries to insert the flow of a pod to a hostport with one source port.
#[inline(always)]
pub fn try_port_from_pod<E: Node>(node: &mut E, work: &mut Work, attempt: u32) -> Decision<bool> {
    hostport_from_pod::try_port(node, work, attempt)
}

/// Returns whether a packet to a hostport, or its reply, fits the link of the receiving pod.
#[inline(always)]
pub fn check_fit<E: Packet + Node + Shaper + FlowCache>(
    env: &mut E,
    work: &mut Work,
) -> Decision<Fit> {
    hostport_from_pod::check_fit(env, work)
}

/// Looks up the flow of a fragment that the stack has forwarded from a hostport's pod.
#[inline(always)]
pub fn find_forwarded_reply<E: Node + FragmentStore + FlowCache>(
    node: &mut E,
    work: &mut Work,
) -> bool {
    hostport_from_pod::find_forwarded_reply(node, work)
}

/// Writes the MAC addresses of a translated packet, and redirects it to its pod.
#[inline(always)]
pub fn redirect_to_pod<E: Packet + Node>(env: &mut E, work: &mut Work) -> Verdict {
    hostport_from_pod::redirect_to_pod(env, work)
}

/// Decides whether a pod's packet bypasses bridge and stack.
#[inline(always)]
pub fn bypass_from_pod<E: Packet + Node + Shaper + FlowCache>(
    env: &mut E,
    work: &mut Work,
) -> Verdict {
    bypass::from_pod(env, work).unwrap_or_else(Verdict::Drop)
}

/// Looks up the translation of a pod's packet that bypasses the stack: that of netfilter; or, where
/// it leaves by this uplink, that of its flow, if the flow is too new for cache entries. In that
/// case tags the packet as finished for the uplink's program. `uplink` is 0 for a packet to a pod.
#[inline(always)]
pub fn find_bypass_translation<E: Node + FlowCache>(
    env: &mut E,
    work: &mut Work,
    uplink: u32,
) -> bool {
    bypass::is_translated_by_netfilter(work)
        || (uplink != 0 && flow_cache::find_uplink_flow(env, work, uplink))
}

/// Decides whether a packet from outside that is to get [`Work::translated`] bypasses stack and
/// bridge.
#[inline(always)]
pub fn bypass_to_pod<E: Packet + Node + Shaper + FlowCache>(
    env: &mut E,
    work: &mut Work,
) -> Verdict {
    bypass::to_pod(env, work).unwrap_or_else(Verdict::Drop)
}

/// Drops packets that would leave by a link without translation.
#[inline(always)]
pub fn check_exit<E: Packet + Node + Shaper>(env: &mut E, work: &mut Work) -> Decision<()> {
    exit::check(env, work)
}

/// Writes [`Work::translated`] into the packet.
#[inline(always)]
pub fn translate<E: Packet + Node + FragmentStore>(env: &mut E, work: &mut Work) -> Decision<()> {
    rewrite::packet(env, &work.headers, &work.translated)?;
    fragment::store_translated(env, work);
    Ok(())
}

/// Writes [`Work::translated`] into the packet that an ICMP error quotes.
#[inline(always)]
pub fn translate_quote<P: Packet>(packet: &mut P, work: &mut Work) -> Decision<()> {
    icmp::translate_quote(packet, work)
}

/// Writes addresses and checksum of an ICMP error, after its quote has been translated.
#[inline(always)]
pub fn translate_error<P: Packet>(packet: &mut P, work: &mut Work, hook: Hook) -> Decision<()> {
    icmp::translate_error(packet, work, hook)
}

/// Counts a pod's packet by its verdict, given as its code, and writes its cache entry.
#[inline(always)]
pub fn count_and_cache<E: Node + FlowCache>(env: &mut E, work: &mut Work, number: u64) {
    env.log_verdict(Hook::FromPod, number);
    count(env, work, Direction::Egress, Verdict::from_code(number));
    flow_cache::record(env, work, Hook::FromPod, number);
}

/// Counts a packet by its verdict.
#[inline(always)]
pub fn count<E: Node>(node: &mut E, work: &mut Work, direction: Direction, verdict: Verdict) {
    let bytes = work.headers.length;
    match verdict {
        Verdict::Pass
        | Verdict::RedirectPeer(_)
        | Verdict::RedirectNeigh(_)
        | Verdict::Redirect(_) => {
            node.count_passed(work.pod, direction, bytes);
        }
        Verdict::Drop(reason) => {
            if work.pod == 0 {
                work.pod = pod_of(node, &work.headers, direction);
            }
            node.count_dropped(reason, work.pod, direction, bytes);
        }
        // Counted when it arrives at the hook again.
        Verdict::Consume => {}
    }
}
