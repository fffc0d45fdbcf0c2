//! The stages of the hooks, one function each: what [`crate::HookStages`] is made of.
//!
//! Each takes the packet and the node as one value, the notes about the packet, and numbers, and returns a value that
//! survives as a number. That is all that fits between two separately verified functions.

use abi::{Direction, EndpointFlags};

use crate::node::Node;
use crate::outcome::{Code as _, Decision, Verdict};
use crate::packet::Packet;
use crate::eviction::ClockHand;
use crate::sender::ETHERNET;
use crate::shape::{self, Shaper};
use crate::flow_cache::{self, ScratchProvider, CacheLookup, FlowCache, CacheHit};
use crate::work::{Content, HostportMatch, Origin, Hook, Work};
use crate::{
    bypass, duplicate, eviction, exit, flow, fragment, hostport, hostport_from_pod, icmp,
    masquerade, parse, policy, rewrite, row_cache, sender,
};

/// Ends the packet as one before it that looked the same, unless another shortcut is to learn from that.
#[inline(always)]
pub fn lookup_cache<E: Packet + Node + Shaper + FlowCache>(
    env: &mut E,
    scratch: &mut impl ScratchProvider,
    interface: u32,
    hook: Hook,
) -> CacheLookup {
    flow_cache::find(env, scratch, interface, hook)
}

/// Ends what a pod sends as one before it that looked the same, unless that went on to the stack.
#[inline(always)]
pub fn find_cached_redirect<E: Packet + Node + Shaper + FlowCache>(
    env: &mut E,
    scratch: &mut impl ScratchProvider,
    interface: u32,
) -> Option<Verdict> {
    flow_cache::find_redirect(env, scratch, interface)
}

/// Ends the packet as the one that was found, when another shortcut has learnt from it, and writes what was written then.
#[inline(always)]
pub fn apply_cache_hit<E: Packet + Node + FlowCache>(
    env: &mut E,
    scratch: &mut impl ScratchProvider,
    hit: CacheHit,
) -> Verdict {
    flow_cache::apply_hit(env, scratch, hit)
}

/// Remembers how the packet has ended, by its verdict's number, for those behind it.
#[inline(always)]
pub fn cache_verdict<E: Node + FlowCache>(env: &mut E, work: &mut Work, hook: Hook, number: u64) {
    flow_cache::record(env, work, hook, number);
}

/// Adds how the packet has ended, by the shortcut of this index, to what the pod's hook remembers of it.
#[inline(always)]
pub fn propagate<E: Node + FlowCache>(env: &mut E, work: &mut Work, index: u32) {
    flow_cache::propagate(env, work, index);
}

/// Reads a frame on a pod's veth and finds out whose it is.
#[inline(always)]
pub fn parse_pod<E: Packet + Node + FlowCache>(
    env: &mut E,
    work: &mut Work,
    interface: u32,
) -> Decision<Content> {
    row_cache::refresh(env, work);
    let Some(of) = row_cache::interface(env, work, interface) else {
        work.pod = 0;
        return Ok(Content::Foreign);
    };
    start(env, work, interface, of.pod);
    work.limited = of.flags & EndpointFlags::LIMITED;
    let content = parse::frame(env, ETHERNET, &mut work.headers)?;
    Ok(fragment::complete(env, work, content))
}

/// Finds out whose a frame on a pod's veth is, without reading it, and whether traffic of that pod is limited.
#[inline(always)]
pub fn identify_pod<E: Packet + Node>(env: &mut E, work: &mut Work, interface: u32) -> bool {
    let of = env.interface(interface).copied().unwrap_or_default();
    start(env, work, interface, of.pod);
    work.headers.length = env.len().saturating_sub(ETHERNET);
    of.flags & EndpointFlags::LIMITED != 0
}

/// Refuses what the pod has got already.
#[inline(always)]
pub fn check_duplicate<E: Packet + Node>(env: &mut E, work: &mut Work) -> Decision<()> {
    duplicate::check(env, work)
}

/// Reads a packet on an uplink.
#[inline(always)]
pub fn parse_uplink<E: Packet + Node + FlowCache>(
    env: &mut E,
    work: &mut Work,
    interface: u32,
) -> Decision<Content> {
    row_cache::refresh(env, work);
    start(env, work, interface, 0);
    let Some(uplink) = row_cache::uplink(env, work, interface) else {
        return Ok(Content::Foreign);
    };
    let content = parse::frame(env, uplink.l2_len, &mut work.headers)?;
    Ok(fragment::complete(env, work, content))
}

/// As [`parse_uplink`], of a packet that enters the node, and looks its flow up.
#[inline(always)]
pub fn parse_entering<E: Packet + Node + FlowCache>(
    env: &mut E,
    work: &mut Work,
    interface: u32,
) -> Decision<Content> {
    let content = parse_uplink(env, work, interface)?;
    if content == Content::Ip && flow::find(env, work, Hook::UplinkIn) {
        return Ok(Content::FlowFound);
    }
    Ok(content)
}

#[inline(always)]
fn start<E: Packet + Node>(env: &mut E, work: &mut Work, interface: u32, pod: u32) {
    work.interface = interface;
    work.pod = pod;
    work.headers.length = env.len();
}

/// Refuses what a pod may not send, and says of the rest whether it is limited.
#[inline(always)]
pub fn check_sender<E: Packet + Node>(
    env: &mut E,
    work: &mut Work,
    content: Content,
) -> Decision<bool> {
    sender::check(env, work, content)?;
    Ok(work.limited != 0)
}

/// Charges the packet to the pod whose veth it is on, or refuses it.
#[inline(always)]
pub fn charge<E: Packet + Shaper>(
    env: &mut E,
    work: &mut Work,
    direction: Direction,
) -> Decision<()> {
    let pod = work.pod;
    shape::charge(env, work, pod, direction)
}

/// Charges the packet to the pod that it is handed to, and counts it there, or refuses it.
#[inline(always)]
pub fn charge_receiver<E: Packet + Node + Shaper>(env: &mut E, work: &mut Work) -> Decision<()> {
    let pod = work.endpoint.pod;
    if work.endpoint.flags & EndpointFlags::LIMITED != 0 {
        shape::charge(env, work, pod, Direction::Ingress)?;
    }
    env.count_passed(pod, Direction::Ingress, work.headers.length);
    Ok(())
}

/// Refuses what one pod sends to another against the policy of both.
#[inline(always)]
pub fn check_policy<E: Node>(node: &mut E, work: &mut Work) -> Decision<()> {
    policy::check(node, work)
}

/// Looks the packet's flow up.
#[inline(always)]
pub fn find_flow<E: Node>(node: &mut E, work: &mut Work, hook: Hook) -> bool {
    flow::find(node, work, hook)
}

/// Looks up the flow of the packet that an ICMP error quotes.
#[inline(always)]
pub fn find_quoted_flow<E: Packet + Node>(env: &mut E, work: &mut Work, hook: Hook) -> bool {
    icmp::find(env, work, hook)
}

/// Says whose a leaving packet without a flow is.
#[inline(always)]
pub fn origin<E: Node>(node: &mut E, work: &mut Work) -> Decision<Origin> {
    masquerade::origin(node, work)
}

/// Chooses the address to masquerade a pod's flow with.
#[inline(always)]
pub fn choose_source<E: Node>(node: &mut E, work: &mut Work) -> Decision<()> {
    masquerade::choose_source(node, work)
}

/// Prepares to move the node's own flow to another port.
#[inline(always)]
pub fn keep_node_address(work: &mut Work) {
    masquerade::keep_node_address(work);
}

/// Tries to make the flow with one port.
#[inline(always)]
pub fn try_port<E: Node>(node: &mut E, work: &mut Work, attempt: u32) -> Decision<bool> {
    masquerade::try_port(node, work, attempt)
}

/// Refuses packets from outside with a pod's address.
#[inline(always)]
pub fn check_outsider<E: Node>(node: &mut E, work: &mut Work) -> Decision<()> {
    hostport::check_outsider(node, work)
}

/// Looks for the hostport that an entering packet is for.
#[inline(always)]
pub fn find_hostport<E: Node>(node: &mut E, work: &mut Work) -> Decision<HostportMatch> {
    hostport::find(node, work)
}

/// Makes the flow of a hostport.
#[inline(always)]
pub fn open_hostport<E: Node>(node: &mut E, work: &mut Work) -> Decision<()> {
    hostport::open(node, work)
}

/// Refuses what one pod sends to another against the policy of both, and looks for the hostport that the rest is for.
#[inline(always)]
pub fn find_hostport_from_pod<E: Node>(node: &mut E, work: &mut Work) -> Decision<HostportMatch> {
    policy::check(node, work)?;
    hostport_from_pod::find(node, work)
}

/// Tries to make the flow of a pod to a hostport with one port.
#[inline(always)]
pub fn try_port_from_pod<E: Node>(node: &mut E, work: &mut Work, attempt: u32) -> Decision<bool> {
    hostport_from_pod::try_port(node, work, attempt)
}

/// Addresses a frame to the pod that the packet is for now.
#[inline(always)]
pub fn redirect_to_pod<E: Packet + Node>(env: &mut E, work: &mut Work) -> Verdict {
    hostport_from_pod::redirect_to_pod(env, work)
}

/// Says whether what a pod sends goes past bridge and stack.
#[inline(always)]
pub fn bypass_from_pod<E: Packet + Node + Shaper + FlowCache>(
    env: &mut E,
    work: &mut Work,
) -> Verdict {
    bypass::from_pod(env, work).unwrap_or_else(Verdict::Drop)
}

/// Looks up the young flow of a packet that leaves past the stack, by this uplink, and tells its program that all is done.
#[inline(always)]
pub fn find_uplink_flow<E: Node + FlowCache>(env: &mut E, work: &mut Work, uplink: u32) -> bool {
    flow_cache::find_uplink_flow(env, work, uplink)
}

/// Writes [`Work::translated`] into what came in for a pod, and says whether it goes past stack and bridge; if so, it is
/// charged and counted.
#[inline(always)]
pub fn forward_to_pod<E: Packet + Node + Shaper + FlowCache>(env: &mut E, work: &mut Work) -> Verdict {
    enter(env, work).unwrap_or_else(Verdict::Drop)
}

#[inline(always)]
fn enter<E: Packet + Node + Shaper + FlowCache>(env: &mut E, work: &mut Work) -> Decision<Verdict> {
    rewrite::packet(env, &work.headers, &work.translated)?;
    let to = work.translated.destination;
    let verdict = bypass::to_pod(env, work, &to)?;
    if let Verdict::RedirectPeer(_) = verdict {
        charge_receiver(env, work)?;
    }
    Ok(verdict)
}

/// Refuses what would leave by a link on which nothing is translated.
#[inline(always)]
pub fn check_exit<E: Packet + Node>(env: &mut E, work: &mut Work) -> Decision<()> {
    exit::check(env, work)
}

/// Makes the flow of a packet to a pod's own address; tells whether one was made.
#[inline(always)]
pub fn open_direct<E: Node>(node: &mut E, work: &mut Work) -> Decision<bool> {
    hostport::open_direct(node, work)
}

/// Turns the clock hand: what every new flow does for the table.
#[inline(always)]
pub fn advance_clock_hand<E: Node>(node: &mut E, work: &mut Work, hand: &mut ClockHand) {
    eviction::advance(node, hand, work.now, work.near_quota != 0);
}

/// Makes room in a full table for [`Work::pair`].
#[inline(always)]
pub fn evict<E: Node>(node: &mut E, work: &mut Work, hand: &mut ClockHand) -> bool {
    eviction::evict(node, hand, work.pair.original.flow.pod, work.now)
}

/// Writes [`Work::translated`] into the packet.
#[inline(always)]
pub fn translate<P: Packet>(packet: &mut P, work: &mut Work) -> Decision<()> {
    rewrite::packet(packet, &work.headers, &work.translated)
}

/// Writes [`Work::translated`] into the packet that an ICMP error quotes.
#[inline(always)]
pub fn translate_quoted<P: Packet>(packet: &mut P, work: &mut Work, hook: Hook) -> Decision<()> {
    icmp::translate(packet, work, hook)
}

/// Counts how a pod's packet ended, by its verdict's number, and remembers it for those behind it.
#[inline(always)]
pub fn count_and_cache<E: Node + FlowCache>(env: &mut E, work: &mut Work, number: u64) {
    count(env, work, Direction::Egress, Verdict::from_code(number));
    flow_cache::record(env, work, Hook::FromPod, number);
}

/// Counts how a packet ended.
#[inline(always)]
pub fn count<E: Node>(node: &mut E, work: &mut Work, direction: Direction, verdict: Verdict) {
    let bytes = work.headers.length;
    match verdict {
        Verdict::Pass | Verdict::RedirectPeer(_) | Verdict::RedirectNeigh(_) | Verdict::Redirect(_) => {
            node.count_passed(work.pod, direction, bytes);
        }
        Verdict::Drop(reason) => node.count_dropped(reason, work.pod, direction, bytes),
    }
}
