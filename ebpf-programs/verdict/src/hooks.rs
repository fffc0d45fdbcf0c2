//! The order of decisions at each hook. Nothing is decided here, and nothing is done: stages do both.

use abi::{Direction, DropReason};

use crate::hostport_from_pod;
use crate::masquerade::TRIES;
use crate::outcome::{Code as _, Decision, Verdict};
use crate::flow_cache::{CacheLookup, CacheHit};
use crate::work::{Content, HostportMatch, Origin, Hook};

/// The stages, for one packet at one hook. See [`crate::stages`] for what each of them does.
pub trait HookStages {
    /// [`crate::stages::parse_pod`].
    fn parse_pod(&mut self) -> Decision<Content>;
    /// [`crate::stages::identify_pod`].
    fn identify_pod(&mut self) -> bool;
    /// [`crate::stages::check_duplicate`].
    fn check_duplicate(&mut self) -> Decision<()>;
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
    /// [`crate::stages::try_port`].
    fn try_port(&mut self, attempt: u32) -> Decision<bool>;
    /// [`crate::stages::check_outsider`].
    fn check_outsider(&mut self) -> Decision<()>;
    /// [`crate::stages::find_hostport`].
    fn find_hostport(&mut self) -> Decision<HostportMatch>;
    /// [`crate::stages::open_hostport`].
    fn open_hostport(&mut self) -> Decision<()>;
    /// [`crate::stages::open_direct`].
    fn open_direct(&mut self) -> Decision<bool>;
    /// [`crate::stages::find_hostport_from_pod`].
    fn find_hostport_from_pod(&mut self) -> Decision<HostportMatch>;
    /// [`crate::stages::try_port_from_pod`].
    fn try_port_from_pod(&mut self, attempt: u32) -> Decision<bool>;
    /// [`crate::stages::redirect_to_pod`].
    fn redirect_to_pod(&mut self) -> Verdict;
    /// [`crate::stages::bypass_from_pod`].
    fn bypass_from_pod(&mut self) -> Verdict;
    /// [`crate::stages::find_uplink_flow`].
    fn find_uplink_flow(&mut self, uplink: u32) -> bool;
    /// [`crate::stages::check_exit`].
    fn check_exit(&mut self) -> Decision<()>;
    /// [`crate::stages::turn`].
    fn advance_clock_hand(&mut self);
    /// [`crate::stages::evict`].
    fn evict(&mut self) -> bool;
    /// [`crate::stages::forward_to_pod`].
    fn forward_to_pod(&mut self) -> Verdict;
    /// [`crate::stages::translate`].
    fn translate(&mut self) -> Decision<()>;
    /// [`crate::stages::translate_quoted`].
    fn translate_quoted(&mut self, hook: Hook) -> Decision<()>;
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

/// Ends the packet as the one before it that looked the same, if there was one.
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

/// What a pod sends.
#[inline(always)]
pub fn from_pod(stages: &mut impl HookStages) -> Verdict {
    if let Some(verdict) = cached_verdict(stages, Hook::FromPod) {
        return verdict;
    }
    let sent = process_from_pod(stages);
    let verdict = charge_redirected(stages, sent);
    stages.count_and_cache(verdict);
    verdict
}

/// What is handed to a pod meets no other hook: it is charged and counted there now.
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
    if stages.check_sender(content)? {
        stages.charge(Direction::Egress)?;
    }
    if stages.is_tagged() {
        return pass_tagged(stages, content);
    }
    match content {
        // A fragment without ports is nobody's yet: the node's own reassembly has the last word.
        Content::LostFragment => return pass_after_policy(stages),
        Content::Foreign | Content::Arp => return Ok(Verdict::Pass),
        Content::IcmpError => {
            if !stages.find_quoted_flow(Hook::FromPod) {
                return pass_after_policy(stages);
            }
            stages.translate_quoted(Hook::FromPod)?;
            return Ok(stages.redirect_to_pod());
        }
        Content::Ip | Content::FlowFound => {}
    }
    if !stages.find_flow(Hook::FromPod) {
        match stages.find_hostport_from_pod()? {
            HostportMatch::None => return bypass_or_pass(stages),
            HostportMatch::Socket => return Ok(Verdict::Pass),
            HostportMatch::Pod => open_hostport_from_pod(stages)?,
        }
    }
    stages.translate()?;
    match stages.redirect_to_pod() {
        // A flow that is only noted: nobody has dialled a hostport.
        Verdict::Pass => bypass_or_pass(stages),
        verdict @ (Verdict::Drop(_)
        | Verdict::RedirectPeer(_)
        | Verdict::RedirectNeigh(_)
        | Verdict::Redirect(_)) => Ok(verdict),
    }
}

/// A frame of some VLAN, whatever is in it, is for the bridge to pass on or to drop: past it, the tag would go along.
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

/// What none of our own has claimed: past bridge and stack, or through both.
#[inline(always)]
fn bypass_or_pass(stages: &mut impl HookStages) -> Decision<Verdict> {
    match stages.bypass_from_pod() {
        Verdict::Pass => {
            stages.check_exit()?;
            Ok(Verdict::Pass)
        }
        verdict @ Verdict::RedirectNeigh(uplink) => {
            if stages.find_uplink_flow(uplink) {
                stages.translate()?;
            }
            Ok(verdict)
        }
        verdict @ (Verdict::Drop(_) | Verdict::RedirectPeer(_) | Verdict::Redirect(_)) => Ok(verdict),
    }
}

#[inline(always)]
fn open_hostport_from_pod(stages: &mut impl HookStages) -> Decision<()> {
    for attempt in 0..hostport_from_pod::TRIES {
        if with_eviction(stages, |stages| stages.try_port_from_pod(attempt))? {
            stages.advance_clock_hand();
            return Ok(());
        }
    }
    Err(DropReason::NoPort)
}

/// What a pod receives.
#[inline(always)]
pub fn to_pod(stages: &mut impl HookStages) -> Verdict {
    let is_limited = stages.identify_pod();
    let verdict = Verdict::from(process_to_pod(stages, is_limited));
    stages.count(Direction::Ingress, verdict);
    verdict
}

#[inline(always)]
fn process_to_pod(stages: &mut impl HookStages, is_limited: bool) -> Decision<()> {
    stages.check_duplicate()?;
    if is_limited {
        stages.charge(Direction::Ingress)?;
    }
    Ok(())
}

/// What leaves the node.
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
        Content::IcmpError => return translate_error(stages, Hook::UplinkOut),
        Content::Ip | Content::FlowFound => {}
    }
    if stages.find_flow(Hook::UplinkOut) {
        return stages.translate();
    }
    match stages.origin()? {
        Origin::Elsewhere => return Ok(()),
        Origin::Pod => stages.choose_source()?,
        Origin::Collision => stages.keep_node_address(),
    }
    for attempt in 0..TRIES {
        if with_eviction(stages, |stages| stages.try_port(attempt))? {
            stages.advance_clock_hand();
            return stages.translate();
        }
    }
    Err(DropReason::NoPort)
}

/// Makes a flow; where the table is full or the pod has as many as it may, makes room and tries once more.
#[inline(always)]
fn with_eviction<H: HookStages, T>(stages: &mut H, make: impl Fn(&mut H) -> Decision<T>) -> Decision<T> {
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

/// A fragment without ports must not leave with a pod's address.
#[inline(always)]
fn drop_lost_fragment(stages: &mut impl HookStages) -> Decision<()> {
    match stages.origin()? {
        Origin::Elsewhere | Origin::Collision => Ok(()),
        Origin::Pod => Err(DropReason::FragmentWithoutFirst),
    }
}

#[inline(always)]
fn translate_error(stages: &mut impl HookStages, hook: Hook) -> Decision<()> {
    if stages.find_quoted_flow(hook) {
        return stages.translate_quoted(hook);
    }
    match hook {
        Hook::UplinkIn => stages.check_outsider(),
        Hook::UplinkOut => stages.origin().map(|_| ()),
        Hook::FromPod => Ok(()),
    }
}

/// What enters the node.
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
fn process_uplink_in<H: HookStages>(stages: &mut H) -> Decision<Verdict> {
    match stages.parse_entering()? {
        Content::Foreign | Content::Arp => return Ok(Verdict::Pass),
        Content::FlowFound => return Ok(stages.forward_to_pod()),
        // Without ports nothing can be translated: the node's own reassembly has the last word.
        Content::LostFragment => return Ok(Verdict::from(stages.check_outsider())),
        Content::IcmpError => return Ok(Verdict::from(translate_error(stages, Hook::UplinkIn))),
        Content::Ip => {}
    }
    stages.check_outsider()?;
    match stages.find_hostport()? {
        HostportMatch::Pod => {
            with_eviction(stages, H::open_hostport)?;
            stages.advance_clock_hand();
            Ok(stages.forward_to_pod())
        }
        HostportMatch::Socket => Ok(Verdict::Pass),
        HostportMatch::None => {
            if with_eviction(stages, H::open_direct)? {
                stages.advance_clock_hand();
            }
            Ok(Verdict::Pass)
        }
    }
}

/// Packets that pass are counted once, at the pod's veth; drops are counted where they happen.
#[inline(always)]
fn count_drop(stages: &mut impl HookStages, direction: Direction, verdict: Verdict) {
    if let Verdict::Drop(_) = verdict {
        stages.count(direction, verdict);
    }
}
