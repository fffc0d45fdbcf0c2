//! The offload: packets of connections that other software's netfilter rules have accepted bypass
//! the stack (decision 118).
//!
//! Packets that have passed netfilter's last hook are evidence: they are reported to the agent,
//! which looks up the connection in conntrack and writes its decision into the offload table. A
//! decision is about one direction, and void when any rule changes, when a route changes, with its
//! time, or when the agent no longer reports changes. It holds the tuple that netfilter has
//! translated the packet to, if it has: the datapath then does the same.

use abi::{EndpointFlags, Offloaded, Seen, SettingsFlags};

use crate::flow_cache::{FlowCache, MAX_AGE};
use crate::node::Node;
use crate::packet::Packet;
use crate::row_cache;
use crate::work::{Fragment, Headers, Sampling, Transport, Work};

/// One of so many packets to a pod, and of those that leave without a flow, is considered, a power
/// of two: most short connections end unreported.
const SAMPLED: u32 = 16;
/// Reports of a CPU in a jiffy about packets from sources of one account. The rest of its packets
/// are considered in later ones.
const REPORTS: u8 = 64;
/// TCP flags that decide whether a packet may bypass the stack.
const STATE_FLAGS: u32 = Seen::SYN | Seen::FIN | Seen::RST | Seen::ACK;

/// Returns whether the agent offloads connections.
#[inline(always)]
pub(crate) fn is_on<E: Node>(node: &E) -> bool {
    has(node, SettingsFlags::OFFLOAD)
}

#[inline(always)]
fn has<E: Node>(node: &E, flag: u32) -> bool {
    node.settings()
        .is_some_and(|settings| settings.flags & flag != 0)
}

/// Returns whether the packet may bypass the stack by the agent's decision. [`Work::translated`] is
/// the tuple that netfilter would see; the packet must get that of [`Work::offloaded`].
#[inline(always)]
pub(crate) fn is_offloaded<E: Node + FlowCache>(env: &E, work: &mut Work) -> bool {
    // Connections are opened and closed through the stack: conntrack must see that.
    work.recorder.cacheable != 0
        && is_on(env)
        && work.rows.lifetime > MAX_AGE
        && env.read_offloaded(&work.translated, &mut work.offloaded)
        && is_accepted(env, work.offloaded.decision)
        && is_valid(env, work)
}

/// Returns whether packets bypass the stack by this decision.
#[inline(always)]
fn is_accepted<E: Node>(node: &E, decision: u32) -> bool {
    decision == Offloaded::ACCEPTED
        || (decision == Offloaded::UNREPLIED && has(node, SettingsFlags::OFFLOAD_UNREPLIED))
}

/// Returns whether [`Work::offloaded`] is in force.
#[inline(always)]
fn is_valid<E: FlowCache>(env: &E, work: &Work) -> bool {
    work.offloaded.rulesets == env.epoch_of_rulesets() && work.now < work.offloaded.expires
}

/// Returns whether netfilter would translate the packet, by the decision in [`Work::offloaded`].
#[inline(always)]
pub(crate) fn is_translated(work: &Work) -> bool {
    work.offloaded.translated != work.translated
}

/// Returns whether a packet that netfilter would translate may be redirected to the pod in
/// [`Work::endpoint`]: only where `to_pod` would not compare policies, whose result may change.
#[inline(always)]
pub(crate) fn allows_translated<E: Node>(node: &E, work: &Work) -> bool {
    const CHECKED: u32 = EndpointFlags::SAME_BRIDGE | EndpointFlags::INTERNAL;
    node.pod(work.endpoint.pod)
        .is_some_and(|pod| pod.flags & CHECKED == 0)
}

/// Reports the connection of a packet that leaves the node behind netfilter, unless the agent has
/// decided about it. Without a flow, whose packets are counted, some packets are considered.
#[inline(always)]
pub(crate) fn report_left<E: Node + FlowCache>(env: &mut E, work: &mut Work) {
    if !is_on(env) || work.recorder.is_redirected != 0 {
        return;
    }
    if !work.recorder.has_flow() {
        work.sampling.packets = work.sampling.packets.wrapping_add(1);
        if !is_sampled(work.sampling.packets) || !is_of_established(&work.headers) {
            return;
        }
    }
    report(env, work);
}

/// Returns whether a packet that a pod receives from bridge or stack is one of those that are
/// considered for a report.
#[inline(always)]
pub(crate) fn samples_delivered<E: Packet + Node + FlowCache>(
    env: &mut E,
    work: &mut Work,
) -> bool {
    if !is_on(env) {
        return false;
    }
    work.sampling.packets = work.sampling.packets.wrapping_add(1);
    if !is_sampled(work.sampling.packets) || env.is_tagged() {
        return false;
    }
    row_cache::refresh(env, work);
    true
}

/// As [`report_left`], for a packet that a pod receives from bridge or stack.
#[inline(always)]
pub(crate) fn report_delivered<E: FlowCache>(env: &mut E, work: &mut Work) {
    if is_of_established(&work.headers) {
        report(env, work);
    }
}

/// Returns whether the packet with this number is considered. The numbers are mixed: of flows that
/// send in turns, always the same ones would have multiples of [`SAMPLED`].
#[inline(always)]
const fn is_sampled(number: u32) -> bool {
    let mixed = number.wrapping_mul(0x9e37_79b1);
    let mixed = (mixed ^ mixed >> 15).wrapping_mul(0x85eb_ca77);
    (mixed >> 16).is_multiple_of(SAMPLED)
}

/// Returns whether the packet may be one of an established connection that bypasses the stack.
#[inline(always)]
fn is_of_established(headers: &Headers) -> bool {
    let is_established = match headers.transport {
        Transport::Tcp => headers.seen & STATE_FLAGS == Seen::ACK,
        Transport::Udp => true,
        Transport::None
        | Transport::Sctp
        | Transport::EchoRequest
        | Transport::EchoReply
        | Transport::IcmpError
        | Transport::IcmpOther
        | Transport::Portless => false,
    };
    is_established && headers.fragment == Fragment::Whole
}

#[inline(always)]
fn report<E: FlowCache>(env: &mut E, work: &mut Work) {
    let is_decided =
        env.read_offloaded(&work.headers.tuple, &mut work.offloaded) && is_valid(env, work);
    if !is_decided && may_report(env, work) {
        work.candidate.tuple = work.headers.tuple;
        work.candidate.rulesets = env.epoch_of_rulesets();
        env.report_candidate(&work.candidate);
    }
}

/// Returns whether the account of the packet's source has reports left in this jiffy, and takes
/// one: flows of one pod leave reports for those of others. Several sources can have the same
/// account.
#[inline(always)]
fn may_report<E: FlowCache>(env: &E, work: &mut Work) -> bool {
    let jiffies = env.jiffies();
    if work.sampling.jiffies != jiffies {
        work.sampling.jiffies = jiffies;
        work.sampling.reports = [0; Sampling::ACCOUNTS];
    }
    let [.., source] = work.headers.tuple.source.words();
    let account = source.wrapping_mul(0x9e37_79b1) >> 28;
    let Some(reports) = work.sampling.reports.get_mut(account as usize) else {
        return false;
    };
    if *reports >= REPORTS {
        return false;
    }
    *reports += 1;
    true
}

#[cfg(test)]
mod tests;
