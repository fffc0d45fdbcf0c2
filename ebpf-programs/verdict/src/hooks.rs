//! The order of decisions at each hook. Decides and changes nothing itself: the stages do.

use abi::{Direction, DropReason};

use crate::flow_cache::{CacheHit, CacheLookup};
use crate::masquerade::TRIES;
use crate::outcome::{Code as _, Decision, Verdict};
use crate::work::{Content, Fit, Hook, HostportMatch, Origin};

/// The stages of one packet at one hook. See [`crate::stages`] for each of them.
pub trait HookStages {
    /// [`crate::stages::parse_pod`].
    fn parse_pod(&mut self) -> Decision<Content>;
    /// [`crate::stages::identify_pod`].
    fn identify_pod(&mut self) -> bool;
    /// [`crate::stages::check_duplicate`].
    fn check_duplicate(&mut self) -> Decision<()>;
    /// [`crate::stages::parse_received`].
    fn parse_received(&mut self) -> Content;
    /// [`crate::stages::parse_uplink`].
    fn parse_uplink(&mut self) -> Decision<Content>;
    /// [`crate::stages::parse_entering`].
    fn parse_entering(&mut self) -> Decision<Content>;
    /// [`crate::stages::check_sender`].
    fn check_sender(&mut self, content: Content) -> Decision<bool>;
    /// [`crate::Packet::is_tagged`].
    fn is_tagged(&self) -> bool;
    /// [`crate::stages::charge`].
    fn charge(&mut self, direction: Direction) -> Decision<()>;
    /// [`crate::stages::charge_receiver`].
    fn charge_receiver(&mut self) -> Decision<()>;
    /// [`crate::stages::check_policy`].
    fn check_policy(&mut self) -> Decision<()>;
    /// [`crate::stages::find_flow`].
    fn find_flow(&mut self, hook: Hook) -> bool;
    /// [`crate::stages::find_quoted_flow`].
    fn find_quoted_flow(&mut self, hook: Hook) -> bool;
    /// [`crate::stages::origin`].
    fn origin(&mut self) -> Decision<Origin>;
    /// [`crate::stages::choose_source`].
    fn choose_source(&mut self) -> Decision<()>;
    /// [`crate::stages::keep_node_address`].
    fn keep_node_address(&mut self);
    /// [`crate::stages::track`].
    fn track(&mut self) -> Decision<()>;
    /// [`crate::stages::try_port`].
    fn try_port(&mut self, attempt: u32) -> Decision<bool>;
    /// [`crate::stages::check_outside_source`].
    fn check_outside_source(&mut self) -> Decision<()>;
    /// [`crate::stages::find_hostport`].
    fn find_hostport(&mut self) -> Decision<HostportMatch>;
    /// [`crate::stages::try_port_from_outside`].
    fn try_port_from_outside(&mut self, attempt: u32) -> Decision<bool>;
    /// [`crate::stages::find_hostport_from_pod`].
    fn find_hostport_from_pod(&mut self) -> Decision<HostportMatch>;
    /// [`crate::stages::try_port_from_pod`].
    fn try_port_from_pod(&mut self, attempt: u32) -> Decision<bool>;
    /// [`crate::stages::check_fit`].
    fn check_fit(&mut self) -> Decision<Fit>;
    /// [`crate::stages::find_forwarded_reply`].
    fn find_forwarded_reply(&mut self) -> bool;
    /// [`crate::stages::redirect_to_pod`].
    fn redirect_to_pod(&mut self) -> Verdict;
    /// [`crate::stages::bypass_from_pod`].
    fn bypass_from_pod(&mut self) -> Verdict;
    /// [`crate::stages::find_uplink_flow`].
    fn find_uplink_flow(&mut self, uplink: u32) -> bool;
    /// [`crate::stages::check_exit`].
    fn check_exit(&mut self) -> Decision<()>;
    /// [`crate::stages::advance_clock_hand`].
    fn advance_clock_hand(&mut self);
    /// [`crate::stages::evict`].
    fn evict(&mut self) -> bool;
    /// [`crate::stages::forward_to_pod`].
    fn forward_to_pod(&mut self) -> Verdict;
    /// [`crate::stages::translate`].
    fn translate(&mut self) -> Decision<()>;
    /// [`crate::stages::translate_quote`].
    fn translate_quote(&mut self) -> Decision<()>;
    /// [`crate::stages::translate_error`].
    fn translate_error(&mut self, hook: Hook) -> Decision<()>;
    /// [`crate::stages::translate_received`].
    fn translate_received(&mut self) -> Decision<()>;
    /// [`crate::stages::translate_quote`], at the receiving pod's veth.
    fn translate_received_quote(&mut self) -> Decision<()>;
    /// [`crate::stages::translate_error`] with [`Hook::FromPod`], at the receiving pod's veth.
    fn translate_received_error(&mut self) -> Decision<()>;
    /// [`crate::stages::lookup_cache`].
    fn lookup_cache(&mut self, hook: Hook) -> CacheLookup;
    /// [`crate::stages::apply_cache_hit`].
    fn apply_cache_hit(&mut self, hit: CacheHit) -> Verdict;
    /// [`crate::stages::cache_verdict`].
    fn cache_verdict(&mut self, hook: Hook, verdict: Verdict);
    /// [`crate::stages::count_and_cache`].
    fn count_and_cache(&mut self, verdict: Verdict);
    /// [`crate::stages::propagate`].
    fn propagate(&mut self, index: u32);
    /// [`crate::stages::count`].
    fn count(&mut self, direction: Direction, verdict: Verdict);
}

/// Applies the cached verdict of the packet, if there is one.
#[inline(always)]
fn cached_verdict(stages: &mut impl HookStages, hook: Hook) -> Option<Verdict> {
    let verdict = match stages.lookup_cache(hook) {
        CacheLookup::Miss => return None,
        CacheLookup::Propagate(hit) => {
            stages.propagate(hit.index);
            stages.apply_cache_hit(hit)
        }
        CacheLookup::Done(number) => Verdict::from_code(number),
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
    stages.count_and_cache(verdict);
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
    let content = stages.parse_pod()?;
    // Spoofed packets are dropped before they are charged to the pod's limit.
    if stages.check_sender(content)? {
        stages.charge(Direction::Egress)?;
    }
    // Frames of a VLAN are charged like others, but have no flow and no bypass.
    if stages.is_tagged() {
        return pass_tagged(stages, content);
    }
    match content {
        // Without ports there is no flow to look up: the node's own reassembly decides.
        Content::LostFragment => return pass_after_policy(stages),
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
            HostportMatch::None => return bypass_or_pass(stages),
            HostportMatch::Socket => return Ok(Verdict::Pass),
            HostportMatch::Pod => open_hostport_from_pod(stages)?,
        }
    }
    match stages.check_fit()? {
        Fit::Fits => stages.translate()?,
        Fit::ForwardTranslated => {
            stages.translate()?;
            return Ok(Verdict::Pass);
        }
        Fit::ForwardUnchanged => return Ok(Verdict::Pass),
    }
    match stages.redirect_to_pod() {
        // The flow is tracked without translation: the pod is addressed directly.
        Verdict::Pass => bypass_or_pass(stages),
        verdict @ (Verdict::Drop(_)
        | Verdict::RedirectPeer(_)
        | Verdict::RedirectNeigh(_)
        | Verdict::Redirect(_)) => Ok(verdict),
    }
}

/// Passes a frame with a VLAN tag to the bridge, after policy and exit check. Not redirected: the
/// tag would go along.
#[inline(always)]
fn pass_tagged(stages: &mut impl HookStages, content: Content) -> Decision<Verdict> {
    match content {
        Content::Foreign | Content::Arp => {}
        Content::Ip | Content::FlowFound | Content::LostFragment | Content::IcmpError => {
            stages.check_policy()?;
            stages.check_exit()?;
        }
    }
    Ok(Verdict::Pass)
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
    match stages.bypass_from_pod() {
        Verdict::Pass => {
            // Only packets that the stack forwards need the check: a redirect leaves by an uplink
            // with both programs attached.
            stages.check_exit()?;
            Ok(Verdict::Pass)
        }
        verdict @ Verdict::RedirectNeigh(uplink) => {
            // The lookup has tagged the packet as finished, so `uplink_out` will not translate it.
            if stages.find_uplink_flow(uplink) {
                stages.translate()?;
            }
            Ok(verdict)
        }
        verdict @ (Verdict::Drop(_) | Verdict::RedirectPeer(_) | Verdict::Redirect(_)) => {
            Ok(verdict)
        }
    }
}

#[inline(always)]
fn open_hostport_from_pod(stages: &mut impl HookStages) -> Decision<()> {
    for attempt in 0..TRIES {
        if with_eviction(stages, |stages| stages.try_port_from_pod(attempt))? {
            stages.advance_clock_hand();
            return Ok(());
        }
    }
    Err(DropReason::NoPort)
}

#[inline(always)]
fn open_hostport_from_outside(stages: &mut impl HookStages) -> Decision<()> {
    for attempt in 0..TRIES {
        if with_eviction(stages, |stages| stages.try_port_from_outside(attempt))? {
            stages.advance_clock_hand();
            return Ok(());
        }
    }
    Err(DropReason::NoPort)
}

/// Egress of a pod's veth: packets that the pod receives.
#[inline(always)]
pub fn to_pod(stages: &mut impl HookStages) -> Verdict {
    let is_limited = stages.identify_pod();
    let verdict = Verdict::from(process_to_pod(stages, is_limited));
    stages.count(Direction::Ingress, verdict);
    verdict
}

#[inline(always)]
fn process_to_pod(stages: &mut impl HookStages, is_limited: bool) -> Decision<()> {
    // Duplicates are dropped before they are charged to the pod's limit.
    stages.check_duplicate()?;
    if is_limited {
        stages.charge(Direction::Ingress)?;
    }
    translate_received(stages)
}

/// Translates what the stack has forwarded or reported between a pod and a hostport's pod of
/// another network: fragments of replies, and errors about requests.
#[inline(always)]
fn translate_received(stages: &mut impl HookStages) -> Decision<()> {
    match stages.parse_received() {
        Content::IcmpError if stages.find_quoted_flow(Hook::FromPod) => {
            stages.translate_received_quote()?;
            stages.translate_received_error()
        }
        Content::Ip if stages.find_forwarded_reply() => stages.translate_received(),
        Content::Foreign
        | Content::Arp
        | Content::Ip
        | Content::LostFragment
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
    stages.cache_verdict(Hook::UplinkOut, verdict);
    verdict
}

#[inline(always)]
fn process_uplink_out(stages: &mut impl HookStages) -> Decision<()> {
    match stages.parse_uplink()? {
        Content::Foreign | Content::Arp => return Ok(()),
        Content::LostFragment => return drop_lost_fragment(stages),
        Content::IcmpError => return process_error(stages, Hook::UplinkOut),
        Content::Ip | Content::FlowFound => {}
    }
    if stages.find_flow(Hook::UplinkOut) {
        return stages.translate();
    }
    match stages.origin()? {
        Origin::Elsewhere => return Ok(()),
        Origin::Pod => stages.choose_source()?,
        Origin::Collision => stages.keep_node_address(),
        Origin::Untranslated => {
            track(stages);
            return Ok(());
        }
    }
    for attempt in 0..TRIES {
        if with_eviction(stages, |stages| stages.try_port(attempt))? {
            stages.advance_clock_hand();
            return stages.translate();
        }
    }
    Err(DropReason::NoPort)
}

/// Reserves the port of a packet that another NAT has translated. The packet passes in any case.
#[inline(always)]
fn track<H: HookStages>(stages: &mut H) {
    if with_eviction(stages, H::track).is_ok() {
        stages.advance_clock_hand();
    }
}

/// Inserts a flow. Where the table is full or the pod's quota is used up, removes other flows and
/// tries once more.
#[inline(always)]
fn with_eviction<H: HookStages, T>(
    stages: &mut H,
    make: impl Fn(&mut H) -> Decision<T>,
) -> Decision<T> {
    let outcome = make(stages);
    let again = match outcome {
        Err(DropReason::FlowTableFull) => stages.evict(),
        Err(DropReason::FlowQuota) => {
            stages.advance_clock_hand();
            true
        }
        _ => false,
    };
    if again { make(stages) } else { outcome }
}

/// Drops a fragment without ports if it would leave with a pod's address.
#[inline(always)]
fn drop_lost_fragment(stages: &mut impl HookStages) -> Decision<()> {
    match stages.origin()? {
        Origin::Elsewhere | Origin::Collision | Origin::Untranslated => Ok(()),
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
        Hook::UplinkIn | Hook::FromPod => Ok(()),
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
    stages.cache_verdict(Hook::UplinkIn, verdict);
    verdict
}

#[inline(always)]
fn process_uplink_in(stages: &mut impl HookStages) -> Decision<Verdict> {
    match stages.parse_entering()? {
        Content::Foreign | Content::Arp => return Ok(Verdict::Pass),
        Content::FlowFound => return Ok(stages.forward_to_pod()),
        // Without ports nothing can be translated: the node's own reassembly decides.
        Content::LostFragment => return Ok(Verdict::from(stages.check_outside_source())),
        Content::IcmpError => {
            return Ok(Verdict::from(process_error(stages, Hook::UplinkIn)));
        }
        Content::Ip => {}
    }
    // Packets of established flows have returned above: only new ones pay for the source check.
    stages.check_outside_source()?;
    match stages.find_hostport()? {
        HostportMatch::Pod => {
            open_hostport_from_outside(stages)?;
            Ok(stages.forward_to_pod())
        }
        HostportMatch::Socket | HostportMatch::None => Ok(Verdict::Pass),
    }
}

/// Counts dropped packets. Packets that pass are counted once, at the pod's veth.
#[inline(always)]
fn count_drop(stages: &mut impl HookStages, direction: Direction, verdict: Verdict) {
    if let Verdict::Drop(_) = verdict {
        stages.count(direction, verdict);
    }
}
