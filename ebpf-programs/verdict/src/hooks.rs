//! The order of decisions at each hook. Decides and changes nothing itself: the stages do.

mod eviction;
mod fragments;

use abi::{Direction, DropReason, EndpointFlags};

pub use self::eviction::{advance_clock_hand, evict};
use self::fragments::{order_fragment, track_fragment};
use crate::flow_cache::CacheLookup;
use crate::hook_stages::HookStages;
use crate::masquerade::{FREE_TRIES, TRIES};
use crate::outcome::{Code as _, Decision, Verdict};
use crate::work::{Content, Fit, Hook, HostportMatch, Lack, Origin};

/// Applies the cached verdict of the packet, if there is one.
#[inline(always)]
fn cached_verdict(stages: &mut impl HookStages, hook: Hook) -> Option<Verdict> {
    let verdict = match stages.lookup_cache(hook) {
        CacheLookup::Miss => return None,
        CacheLookup::Propagate(hit) => {
            stages.propagate(hit.index);
            stages.apply_cache_hit(hit)
        }
        CacheLookup::Done(number) => Verdict::from_cached_code(number),
    };
    count_drop(stages, hook.direction(), verdict);
    Some(verdict)
}

/// Ingress of a pod's veth: packets that the pod sends.
#[inline(always)]
pub fn from_pod(stages: &mut impl HookStages) -> Verdict {
    if let Some(verdict) = cached_verdict(stages, Hook::FromPod) {
        return verdict;
    }
    // A redirected packet passes no hook of its receiver: charge it here, before it is counted and
    // cached with the final verdict.
    let sent = process_from_pod(stages);
    let verdict = charge_redirected(stages, sent);
    stages.count_and_cache(verdict.code());
    verdict
}

/// Charges and counts a packet at the receiving pod if it is redirected there: it passes no other
/// hook.
#[inline(always)]
fn charge_redirected(stages: &mut impl HookStages, outcome: Decision<Verdict>) -> Verdict {
    match outcome {
        Ok(verdict @ Verdict::RedirectPeer(_)) => match stages.charge_receiver() {
            Ok(()) => verdict,
            Err(reason) => Verdict::Drop(reason),
        },
        Ok(verdict) => verdict,
        Err(reason) => Verdict::Drop(reason),
    }
}

#[inline(always)]
fn process_from_pod(stages: &mut impl HookStages) -> Decision<Verdict> {
    let parsed = stages.parse_pod()?;
    // Spoofed packets are dropped before they change the state of a datagram, and before they are
    // charged to the pod's limit.
    let is_limited = stages.check_sender(parsed)?;
    let is_tagged = stages.is_tagged();
    let is_fragment = parsed == Content::Fragment && !is_tagged;
    let content = if is_fragment {
        match order_fragment(stages, Hook::FromPod)? {
            Some(content) => content,
            // Charged when it arrives again.
            None => return Ok(Verdict::Consume),
        }
    } else {
        parsed
    };
    if is_limited {
        stages.charge(Direction::Egress)?;
    }
    // Frames of a VLAN are charged like others, but have no flow and no bypass.
    if is_tagged {
        return pass_tagged(stages, content);
    }
    match content {
        // Without ports there is no flow to look up: the node's own reassembly decides.
        Content::LostFragment
        | Content::Fragment
        | Content::EarlyFragment
        | Content::AwaitedFragment => return pass_after_policy(stages),
        Content::Foreign | Content::Arp => return Ok(Verdict::Pass),
        Content::IcmpError => {
            if !stages.find_quoted_flow(Hook::FromPod) {
                return pass_after_policy(stages);
            }
            stages.translate_quote()?;
            stages.translate_error(Hook::FromPod)?;
            return Ok(stages.redirect_to_pod());
        }
        Content::Ip | Content::FlowFound => {}
    }
    // Established flows are found before the policy is applied: published ports and their replies
    // are exempt from it.
    if !stages.find_flow(Hook::FromPod) {
        match stages.find_hostport_from_pod()? {
            HostportMatch::None | HostportMatch::Direct => return bypass_or_pass(stages),
            HostportMatch::Socket => {
                allow_sent(stages, false, true)?;
                return Ok(Verdict::Pass);
            }
            HostportMatch::Pod => open(stages, HookStages::try_port_from_pod)?,
        }
    }
    allow_sent(stages, true, false)?;
    send_translated(stages, is_fragment)
}

/// Translates a packet with a flow, and redirects it to its pod where it fits.
#[inline(always)]
fn send_translated(stages: &mut impl HookStages, is_fragment: bool) -> Decision<Verdict> {
    let fit = stages.check_fit()?;
    if fit == Fit::ForwardUnchanged {
        return Ok(Verdict::Pass);
    }
    if is_fragment {
        stages.identify_fragment(true)?;
    }
    stages.translate()?;
    if fit == Fit::ForwardTranslated {
        return Ok(Verdict::Pass);
    }
    match stages.redirect_to_pod() {
        // The flow is tracked without translation: the pod is addressed directly.
        Verdict::Pass => bypass_or_pass(stages),
        verdict @ (Verdict::Drop(_)
        | Verdict::RedirectPeer(_)
        | Verdict::RedirectNeigh(_)
        | Verdict::Redirect(_)
        | Verdict::Consume) => Ok(verdict),
    }
}

/// Passes a frame with a VLAN tag to the bridge, after policy and exit check. Not redirected: the
/// tag would go along.
#[inline(always)]
fn pass_tagged(stages: &mut impl HookStages, content: Content) -> Decision<Verdict> {
    match content {
        Content::Foreign | Content::Arp => {}
        Content::Ip
        | Content::FlowFound
        | Content::Fragment
        | Content::LostFragment
        | Content::EarlyFragment
        | Content::AwaitedFragment
        | Content::IcmpError => {
            stages.check_policy()?;
            allow_sent(stages, false, true)?;
            stages.check_exit()?;
        }
    }
    Ok(Verdict::Pass)
}

/// Applies network policies to a packet of a pod. `is_translated`: by a flow; `is_passed`: it goes
/// to bridge and stack.
#[inline(always)]
fn allow_sent(stages: &mut impl HookStages, is_translated: bool, is_passed: bool) -> Decision<()> {
    if stages.has_policies() {
        stages.allow_sent(is_translated, is_passed)
    } else {
        Ok(())
    }
}

#[inline(always)]
fn pass_after_policy(stages: &mut impl HookStages) -> Decision<Verdict> {
    stages.check_policy()?;
    bypass_or_pass(stages)
}

/// Redirects a packet without a hostport past bridge and stack where that is allowed, and passes it
/// otherwise.
#[inline(always)]
fn bypass_or_pass(stages: &mut impl HookStages) -> Decision<Verdict> {
    let verdict = stages.bypass_from_pod();
    if !matches!(verdict, Verdict::Drop(_)) {
        allow_sent(stages, false, verdict == Verdict::Pass)?;
    }
    match verdict {
        Verdict::Pass => {
            // Only packets that the stack forwards need the check: a redirect leaves by an uplink
            // with both programs attached.
            stages.check_exit()?;
            Ok(Verdict::Pass)
        }
        verdict @ (Verdict::RedirectNeigh(_) | Verdict::RedirectPeer(_)) => {
            let uplink = match verdict {
                Verdict::RedirectNeigh(uplink) => uplink,
                Verdict::RedirectPeer(_)
                | Verdict::Pass
                | Verdict::Drop(_)
                | Verdict::Redirect(_)
                | Verdict::Consume => 0,
            };
            if stages.find_bypass_translation(uplink) {
                stages.translate()?;
            }
            Ok(verdict)
        }
        verdict @ (Verdict::Drop(_) | Verdict::Redirect(_) | Verdict::Consume) => Ok(verdict),
    }
}

/// Inserts a flow, trying one source port after the other. The last ports are taken from flows of
/// accounts with far more flows.
#[inline(always)]
fn open<H: HookStages>(
    stages: &mut H,
    try_port: impl Fn(&mut H, u32) -> Decision<bool>,
) -> Decision<()> {
    for attempt in 0..TRIES {
        let is_open = with_eviction(stages, |stages| try_port(stages, attempt))?
            || (attempt >= FREE_TRIES && stages.evict(Lack::Port) && try_port(stages, attempt)?);
        if is_open {
            stages.advance_clock_hand();
            return Ok(());
        }
    }
    Err(DropReason::NoPort)
}

/// Egress of a pod's veth: packets that the pod receives.
#[inline(always)]
pub fn to_pod(stages: &mut impl HookStages) -> Verdict {
    let flags = stages.identify_pod();
    let verdict = Verdict::from(process_to_pod(stages, flags));
    stages.count(Direction::Ingress, verdict);
    // Packets are parsed only where that is needed, which is rare. To the verifier, one parser for
    // all uses is less than one in each.
    if verdict == Verdict::Pass
        && stages.samples_delivered()
        && stages.parse_received() == Ok(Content::Ip)
    {
        stages.report_delivered();
    }
    verdict
}

#[inline(always)]
fn process_to_pod(stages: &mut impl HookStages, flags: u32) -> Decision<()> {
    // Duplicates and forbidden packets are dropped before they are charged to the pod's limit.
    stages.check_duplicate()?;
    if flags & EndpointFlags::SAME_BRIDGE != 0 && stages.may_be_forbidden() {
        let content = stages.parse_received();
        stages.check_received_policy(content)?;
    }
    if flags & EndpointFlags::INTERNAL != 0 && stages.needs_flow_to_enter() {
        let content = stages.parse_received();
        stages.check_received(content)?;
    }
    if stages.has_policies() {
        let content = stages.parse_received();
        stages.allow_received(content)?;
    }
    if flags & EndpointFlags::LIMITED != 0 {
        stages.charge(Direction::Ingress)?;
    }
    translate_received(stages)
}

/// Translates what the stack has forwarded or reported between a pod and a hostport's pod of
/// another network: fragments of replies, and errors about requests.
#[inline(always)]
fn translate_received(stages: &mut impl HookStages) -> Decision<()> {
    if !stages.may_be_translated() {
        return Ok(());
    }
    let content = stages.parse_received();
    match stages.translatable(content) {
        Content::IcmpError if stages.find_quoted_flow(Hook::FromPod) => {
            stages.translate_received_quote()?;
            stages.translate_received_error()
        }
        Content::Ip if stages.find_forwarded_reply() => stages.translate_received(),
        Content::Foreign
        | Content::Arp
        | Content::Ip
        | Content::Fragment
        | Content::LostFragment
        | Content::EarlyFragment
        | Content::AwaitedFragment
        | Content::IcmpError
        | Content::FlowFound => Ok(()),
    }
}

/// Egress of an uplink.
#[inline(always)]
pub fn uplink_out(stages: &mut impl HookStages) -> Verdict {
    if let Some(verdict) = cached_verdict(stages, Hook::UplinkOut) {
        return verdict;
    }
    let verdict = Verdict::from(process_uplink_out(stages));
    count_drop(stages, Direction::Egress, verdict);
    stages.cache_verdict(Hook::UplinkOut, verdict.code());
    verdict
}

#[inline(always)]
fn process_uplink_out(stages: &mut impl HookStages) -> Decision<()> {
    let parsed = stages.parse_uplink()?;
    let is_fragment = parsed == Content::Fragment;
    let content = if is_fragment {
        track_fragment(stages, Hook::UplinkOut)?
    } else {
        parsed
    };
    match content {
        Content::Foreign | Content::Arp => return Ok(()),
        Content::LostFragment
        | Content::Fragment
        | Content::EarlyFragment
        | Content::AwaitedFragment => return drop_lost_fragment(stages),
        Content::IcmpError => return process_error(stages, Hook::UplinkOut),
        Content::Ip | Content::FlowFound => {}
    }
    // Before a flow is opened. The packet has the pod's own address.
    if stages.has_policies() {
        stages.allow_left()?;
    }
    let is_translated = masquerade_packet(stages)?;
    if is_fragment {
        stages.identify_fragment(is_translated)?;
    }
    if is_translated {
        stages.translate()?;
    }
    Ok(())
}

/// Finds the flow of a packet that leaves, or inserts one. Returns whether the packet is
/// translated.
#[inline(always)]
fn masquerade_packet(stages: &mut impl HookStages) -> Decision<bool> {
    if stages.find_flow(Hook::UplinkOut) {
        return Ok(true);
    }
    match stages.origin()? {
        Origin::Elsewhere => return Ok(false),
        Origin::Pod => stages.choose_source()?,
        Origin::Collision => stages.keep_node_address(),
        Origin::Untranslated => {
            track(stages);
            return Ok(false);
        }
        Origin::Tracked => {
            with_eviction(stages, HookStages::track)?;
            stages.advance_clock_hand();
            return Ok(false);
        }
    }
    open(stages, HookStages::try_port)?;
    Ok(true)
}

/// Reserves the port of a packet that another NAT has translated. The packet passes in any case.
#[inline(always)]
fn track<H: HookStages>(stages: &mut H) {
    if with_eviction(stages, H::track).is_ok() {
        stages.advance_clock_hand();
    }
}

/// Inserts a flow. Where the table is full or the quota of its account is used up, evicts another
/// flow and tries once more.
#[inline(always)]
fn with_eviction<H: HookStages, T>(
    stages: &mut H,
    make: impl Fn(&mut H) -> Decision<T>,
) -> Decision<T> {
    let outcome = make(stages);
    let again = match outcome {
        Err(DropReason::FlowTableFull | DropReason::FlowQuota) => {
            stages.evict(Lack::Place) || stages.evict(Lack::Place)
        }
        _ => false,
    };
    if again { make(stages) } else { outcome }
}

/// Drops a fragment without ports if it would leave with a pod's address.
#[inline(always)]
fn drop_lost_fragment(stages: &mut impl HookStages) -> Decision<()> {
    match stages.origin()? {
        Origin::Elsewhere | Origin::Collision | Origin::Untranslated | Origin::Tracked => Ok(()),
        Origin::Pod => Err(DropReason::FragmentWithoutFirst),
    }
}

#[inline(always)]
fn process_error(stages: &mut impl HookStages, hook: Hook) -> Decision<()> {
    // Errors of routers on the path come from any address but those of pods.
    if hook == Hook::UplinkIn {
        stages.check_outside_source()?;
    }
    if stages.find_quoted_flow(hook) {
        stages.translate_quote()?;
        return stages.translate_error(hook);
    }
    match hook {
        Hook::UplinkOut => stages.origin().map(|_| ()),
        Hook::UplinkIn => {
            stages.check_quoted_hostport()?;
            stages.check_entering()
        }
        Hook::FromPod => Ok(()),
    }
}

/// Ingress of an uplink.
#[inline(always)]
pub fn uplink_in(stages: &mut impl HookStages) -> Verdict {
    if let Some(verdict) = cached_verdict(stages, Hook::UplinkIn) {
        return verdict;
    }
    let verdict = process_uplink_in(stages).unwrap_or_else(Verdict::Drop);
    count_drop(stages, Direction::Ingress, verdict);
    stages.cache_verdict(Hook::UplinkIn, verdict.code());
    verdict
}

#[inline(always)]
fn process_uplink_in(stages: &mut impl HookStages) -> Decision<Verdict> {
    match stages.parse_entering()? {
        Content::Foreign | Content::Arp => return Ok(Verdict::Pass),
        Content::FlowFound => return Ok(stages.forward_to_pod()),
        Content::IcmpError => {
            return Ok(Verdict::from(process_error(stages, Hook::UplinkIn)));
        }
        Content::Fragment
        | Content::LostFragment
        | Content::EarlyFragment
        | Content::AwaitedFragment => {
            // A forged source must not change the state of a datagram.
            stages.check_outside_source()?;
            match order_fragment(stages, Hook::UplinkIn)? {
                None => return Ok(Verdict::Consume),
                Some(Content::Ip) => {}
                // Without ports nothing can be translated: the node's own reassembly decides.
                Some(_) => return stages.check_entering().map(|()| Verdict::Pass),
            }
            if stages.find_flow(Hook::UplinkIn) {
                return Ok(stages.forward_to_pod());
            }
        }
        // Packets of established flows have returned above: only new ones pay for the source check.
        Content::Ip => stages.check_outside_source()?,
    }
    match stages.find_hostport()? {
        HostportMatch::Pod => {
            open(stages, HookStages::try_port_from_outside)?;
            Ok(stages.forward_to_pod())
        }
        HostportMatch::Direct => Ok(stages.forward_to_pod()),
        HostportMatch::Socket | HostportMatch::None => Ok(Verdict::Pass),
    }
}

/// Translates a packet from outside, and redirects it to its pod where it may bypass stack and
/// bridge. A redirected packet is charged and counted.
#[inline(always)]
pub fn forward_to_pod(stages: &mut impl HookStages) -> Verdict {
    // The bypass comes first: it may replace netfilter's translation, too.
    let verdict = stages.bypass_to_pod();
    if let Verdict::Drop(_) = verdict {
        return verdict;
    }
    if let Verdict::RedirectPeer(_) = verdict
        && stages.has_policies()
        && let Err(reason) = stages.allow_redirected()
    {
        return Verdict::Drop(reason);
    }
    match stages.translate() {
        Ok(()) => charge_redirected(stages, Ok(verdict)),
        Err(reason) => Verdict::Drop(reason),
    }
}

/// Counts dropped packets. Packets that pass are counted once, at the pod's veth.
#[inline(always)]
fn count_drop(stages: &mut impl HookStages, direction: Direction, verdict: Verdict) {
    if let Verdict::Drop(_) = verdict {
        stages.count(direction, verdict);
    }
}
