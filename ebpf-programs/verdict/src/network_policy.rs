//! Network policies: which connections pods may open, and which they accept.
//!
//! Each end of a packet is checked for itself, where its pod's interface sees the packet: the
//! sender's rule set for connections that it opens, and the receiver's for those that it accepts.
//! An end has passed if
//!
//! * the packet answers one that the end has let pass ([`abi::maps::POLICY_FLOWS`]); or
//! * a rule allows the connection: addresses are those of the pods, behind every translation of the
//!   destination and before every translation of the source.
//!
//! Netfilter may translate what a pod sends to an address that no pod has, so such a packet is
//! checked behind it: when it leaves by an uplink, or at the receiver's interface. Packets of the
//! node itself are always accepted, a pod reaches itself, and errors of ICMP and neighbour
//! discovery pass.

use abi::{
    Address, DropReason, PolicyFlow, PolicyRule, RuleSets, SettingsFlags, Tuple, UplinkFlags,
    protocol,
};

use crate::address::{is_link_local, is_multicast};
use crate::bypass::is_translated_by_netfilter;
use crate::flow;
use crate::fragment;
use crate::fragment_store::FragmentStore;
use crate::node::Node;
use crate::outcome::Decision;
use crate::packet::Packet;
use crate::policy::is_discovery;
use crate::work::{Content, Headers, Transport, Work};

/// Seconds after which a recorded answer is recorded again.
const REFRESH: u32 = 8;

/// Scratch memory of the checks.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PolicyWork {
    /// The packet with each end by its own address and port.
    pub ends: Tuple,
    /// Slot of the pod whose end is checked.
    pub pod: u32,
    /// Tuple of the answers that are recorded.
    pub answer: Tuple,
    /// What is recorded about packets with the tuple that is checked.
    pub found: PolicyFlow,
    /// The ends that the packet has passed and whose answers are to be recorded.
    pub passed: PolicyFlow,
    /// The rule that is looked up.
    pub rule: PolicyRule,
}

/// An end of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The pod that has sent the packet.
    Sender,
    /// The pod that receives it.
    Receiver,
}

/// Returns whether network policies apply to pods of the node.
#[inline(always)]
pub fn has_policies<E: Node>(node: &E) -> bool {
    node.settings()
        .is_some_and(|settings| settings.flags & SettingsFlags::POLICIES != 0)
}

/// Checks a packet that a pod sends: its own end, unless that is checked behind netfilter, and that
/// of the pod that it is redirected to. `is_translated`: [`Work::translated`] is the tuple that it
/// will have; `is_passed`: it goes to bridge and stack.
#[inline(always)]
pub fn allow_sent<E: Packet + Node>(
    env: &mut E,
    work: &mut Work,
    is_translated: bool,
    is_passed: bool,
) -> Decision<()> {
    if is_exempt(&work.headers) {
        return Ok(());
    }
    // Flows to a published pod's own address are tracked, and have the same tuple at both ends.
    let is_translated = (is_translated || is_translated_by_netfilter(work))
        && work.translated != work.headers.tuple;
    let ends = &mut work.policy.ends;
    *ends = work.headers.tuple;
    if is_translated {
        ends.destination = work.translated.destination;
        ends.destination_port = work.translated.destination_port;
    }
    let receiver = match env.endpoint(&work.policy.ends.destination) {
        Some(endpoint) => endpoint.pod,
        None => 0,
    };
    // A pod reaches itself.
    if receiver == work.pod {
        return Ok(());
    }
    let sets = rule_sets(env, work.pod);
    start(work);
    if let Some(sets) = sets {
        let (pod, tuple) = (work.pod, work.headers.tuple);
        find(env, work, &tuple);
        let is_later = is_passed && sets.egress != 0 && is_checked_later(env, work);
        pass(env, work, (pod, sets), End::Sender, !is_later)?;
    }
    let is_accepted_here = !is_passed && receiver != 0;
    if is_translated || !is_accepted_here {
        let tuple = work.headers.tuple;
        record(env, work, &tuple);
    }
    if is_translated {
        let ends = work.policy.ends;
        record(env, work, &ends);
        start(work);
    }
    if !is_accepted_here {
        return Ok(());
    }
    let delivered = if is_translated {
        work.translated
    } else {
        work.headers.tuple
    };
    if let Some(accepts) = rule_sets(env, receiver) {
        if is_translated || sets.is_none() {
            find(env, work, &delivered);
        }
        pass(env, work, (receiver, accepts), End::Receiver, true)?;
    }
    record(env, work, &delivered);
    Ok(())
}

/// Returns whether the sender's end of a packet for the stack is checked when it has passed
/// netfilter: it leaves by an uplink with our programs, or is for a pod. Not if it has an address
/// that is not the sender's.
#[inline(always)]
fn is_checked_later<E: Node>(env: &mut E, work: &mut Work) -> bool {
    let is_own = match env.endpoint(&work.headers.tuple.source) {
        Some(endpoint) => endpoint.pod == work.pod,
        None => false,
    };
    if !is_own || env.is_local(&work.headers.tuple.destination) {
        return false;
    }
    if env.endpoint(&work.headers.tuple.destination).is_some() {
        return true;
    }
    // A cache entry would hide a route that changes.
    work.recorder.mark_uncacheable();
    let bridge = env.pod(work.pod).map_or(0, |pod| pod.network);
    let link = env.egress_route(bridge, &work.headers.tuple, &mut work.hop, &mut 0);
    env.uplink(link)
        .is_some_and(|uplink| uplink.flags & UplinkFlags::OPEN != 0)
}

/// Checks the sender's end of a packet that leaves by an uplink, before it is translated.
#[inline(always)]
pub fn allow_left<E: Node>(env: &mut E, work: &mut Work) -> Decision<()> {
    if is_exempt(&work.headers) {
        return Ok(());
    }
    work.policy.ends = work.headers.tuple;
    let sender = sender(env, &work.headers.tuple.source);
    let Some(sets) = rule_sets(env, sender) else {
        return Ok(());
    };
    let tuple = work.headers.tuple;
    start(work);
    find(env, work, &tuple);
    pass(env, work, (sender, sets), End::Sender, true)?;
    record(env, work, &tuple);
    Ok(())
}

/// Checks the receiver's end of a packet from outside that is redirected to a pod.
/// [`Work::translated`] is the tuple that it will have.
#[inline(always)]
pub fn allow_redirected<E: Node>(env: &mut E, work: &mut Work) -> Decision<()> {
    if is_exempt(&work.headers) {
        return Ok(());
    }
    let ends = &mut work.policy.ends;
    *ends = work.translated;
    ends.source = work.headers.tuple.source;
    ends.source_port = work.headers.tuple.source_port;
    let (receiver, delivered) = (work.endpoint.pod, work.translated);
    let Some(sets) = rule_sets(env, receiver) else {
        return Ok(());
    };
    start(work);
    find(env, work, &delivered);
    pass(env, work, (receiver, sets), End::Receiver, true)?;
    record(env, work, &delivered);
    Ok(())
}

/// Checks both ends of a packet that a pod receives from bridge or stack. `content` is the outcome
/// of parsing it.
#[inline(always)]
pub fn allow_received<E: Packet + Node + FragmentStore>(
    env: &mut E,
    work: &mut Work,
    content: Decision<Content>,
) -> Decision<()> {
    match content {
        Ok(Content::Foreign | Content::Arp) => return Ok(()),
        Ok(_) if is_exempt(&work.headers) => return Ok(()),
        Ok(_) => {}
        Err(_) => {
            return if rule_sets(env, work.pod).is_some() {
                Err(DropReason::NetworkPolicy)
            } else {
                Ok(())
            };
        }
    }
    let Work {
        fragment, headers, ..
    } = work;
    // Without the first fragment, which is checked, no stack accepts the others.
    if !fragment::find_ports(env, fragment, headers) {
        return Ok(());
    }
    work.policy.ends = work.headers.tuple;
    let (receiver, tuple) = (work.pod, work.headers.tuple);
    let is_of_node = env.ingress_interface() == 0;
    let sender = if is_of_node {
        0
    } else {
        sender(env, &tuple.source)
    };
    // A pod reaches itself.
    if sender == receiver {
        return Ok(());
    }
    let (sends, accepts) = (rule_sets(env, sender), rule_sets(env, receiver));
    if sends.is_none() && accepts.is_none() {
        return Ok(());
    }
    start(work);
    find(env, work, &tuple);
    if let Some(sets) = sends {
        pass(env, work, (sender, sets), End::Sender, true)?;
    }
    // Every pod accepts packets of the node itself.
    if let Some(sets) = accepts {
        pass(env, work, (receiver, sets), End::Receiver, !is_of_node)?;
    }
    record(env, work, &tuple);
    Ok(())
}

/// Returns the pod of the node that has sent a packet with this source address; 0 where it is no
/// pod's.
#[inline(always)]
fn sender<E: Node>(env: &E, source: &Address) -> u32 {
    let (sender, generation) = match env.endpoint(source) {
        Some(endpoint) => (endpoint.pod, endpoint.generation),
        None => return 0,
    };
    if flow::is_current(env, sender, generation) && !env.is_local(source) {
        sender
    } else {
        0
    }
}

/// Forgets the ends that an earlier packet has passed.
#[inline(always)]
const fn start(work: &mut Work) {
    work.policy.passed = PolicyFlow::NONE;
}

/// Looks up what is recorded about packets with this tuple, which is that of the packet at the end
/// that is checked next. An opening segment answers nothing.
#[inline(always)]
fn find<E: Node>(env: &E, work: &mut Work, tuple: &Tuple) {
    work.policy.found = PolicyFlow::NONE;
    if !flow::opens_tcp(work)
        && let Some(found) = env.policy_flow(tuple)
        && is_valid(env, work, found.recorded)
    {
        work.policy.found = found;
    }
}

/// Returns whether a record of this age still lets answers pass.
#[inline(always)]
fn is_valid<E: Node>(env: &E, work: &Work, recorded: u32) -> bool {
    let Some(settings) = env.settings() else {
        return false;
    };
    let timeout = if work.headers.tuple.protocol == protocol::TCP {
        settings.timeouts.tcp_established
    } else {
        settings.timeouts.udp_stream
    };
    env.now().wrapping_sub(recorded) < timeout
}

/// Checks the end of a pod with these rule sets, behind [`find`]. Adds it to
/// [`PolicyWork::passed`] where the pod's other rule set would refuse the answers.
#[inline(always)]
fn pass<E: Node>(
    env: &E,
    work: &mut Work,
    (pod, sets): (u32, RuleSets),
    end: End,
    is_enforced: bool,
) -> Decision<()> {
    let (of_answer, rules, of_answers) = match end {
        End::Sender => (work.policy.found.acceptor, sets.egress, sets.ingress),
        End::Receiver => (work.policy.found.opener, sets.ingress, sets.egress),
    };
    work.policy.pod = pod;
    if of_answer == pod {
        return Ok(());
    }
    if is_enforced && rules != 0 && !is_allowed(env, work, rules, end) {
        return Err(DropReason::NetworkPolicy);
    }
    if of_answers != 0 {
        let passed = &mut work.policy.passed;
        match end {
            End::Sender => passed.opener = pod,
            End::Receiver => passed.acceptor = pod,
        }
    }
    Ok(())
}

/// Records the answers of a packet that has this tuple at the ends in [`PolicyWork::passed`],
/// unless that was done a moment ago. Both ends have one record where no translation is between
/// them.
#[inline(always)]
fn record<E: Node>(env: &mut E, work: &mut Work, tuple: &Tuple) {
    if work.policy.passed == PolicyFlow::NONE {
        return;
    }
    work.policy.answer = tuple.reverse();
    let mut new = work.policy.passed;
    new.recorded = env.now();
    if let Some(old) = env.policy_flow(&work.policy.answer) {
        let is_recorded = (new.opener == 0 || new.opener == old.opener)
            && (new.acceptor == 0 || new.acceptor == old.acceptor);
        if is_recorded && new.recorded.wrapping_sub(old.recorded) < REFRESH {
            return;
        }
        if is_valid(env, work, old.recorded) {
            new = new.or(old);
        }
    }
    env.record_policy_flow(&work.policy.answer, &new);
}

/// Returns whether a rule set allows the connection of [`PolicyWork::ends`].
#[inline(always)]
fn is_allowed<E: Node>(env: &E, work: &mut Work, rules: u32, end: End) -> bool {
    let PolicyWork { ends, rule, .. } = &mut work.policy;
    let peer: &Address = match end {
        End::Sender => &ends.destination,
        End::Receiver => &ends.source,
    };
    *rule = PolicyRule {
        rules,
        identity: env.identity(peer),
        protocol: ends.protocol,
        reserved: 0,
        port: ends.destination_port,
    };
    if env.policy_rule(rule) {
        return true;
    }
    rule.identity = 0;
    env.policy_rule(rule)
}

/// Returns the rule sets of a pod, if it has any.
#[inline(always)]
fn rule_sets<E: Node>(env: &E, slot: u32) -> Option<RuleSets> {
    let sets = env.rule_sets(slot)?;
    flow::is_current(env, slot, sets.generation).then_some(*sets)
}

/// Returns whether no policy applies to the packet: errors of ICMP, without which paths of another
/// MTU do not work, and what keeps neighbours and multicast groups.
#[inline(always)]
fn is_exempt(headers: &Headers) -> bool {
    let to = &headers.tuple.destination;
    if headers.version == 0 {
        return true;
    }
    match headers.transport {
        Transport::IcmpError => true,
        Transport::IcmpOther => {
            is_discovery(headers) || (!to.is_v4() && (is_multicast(to) || is_link_local(to)))
        }
        Transport::None
        | Transport::Tcp
        | Transport::Udp
        | Transport::Sctp
        | Transport::EchoRequest
        | Transport::EchoReply
        | Transport::Portless => false,
    }
}

#[cfg(test)]
mod tests;
