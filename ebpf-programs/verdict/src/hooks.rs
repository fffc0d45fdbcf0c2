//! The order of decisions at each hook. Nothing is decided here, and nothing is done: stages do both.

use abi::{Direction, DropReason};

use crate::local;
use crate::masquerade::TRIES;
use crate::outcome::{Code as _, Decision, Verdict};
use crate::shortcut::{Found, Taken};
use crate::work::{Content, HostportMatch, Origin, Way};

/// The stages, for one packet at one hook. See [`crate::stages`] for what each of them does.
pub trait Hook {
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
    /// [`crate::stages::arrive`].
    fn arrive(&mut self) -> Decision<()>;
    /// [`crate::stages::check_policy`].
    fn check_policy(&mut self) -> Decision<()>;
    /// [`crate::stages::find_flow`].
    fn find_flow(&mut self, way: Way) -> bool;
    /// [`crate::stages::find_quoted_flow`].
    fn find_quoted_flow(&mut self, way: Way) -> bool;
    /// [`crate::stages::origin`].
    fn origin(&mut self) -> Decision<Origin>;
    /// [`crate::stages::choose_source`].
    fn choose_source(&mut self) -> Decision<()>;
    /// [`crate::stages::keep_source`].
    fn keep_source(&mut self);
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
    /// [`crate::stages::find_dialled`].
    fn find_dialled(&mut self) -> Decision<HostportMatch>;
    /// [`crate::stages::try_dialled`].
    fn try_dialled(&mut self, attempt: u32) -> Decision<bool>;
    /// [`crate::stages::deliver`].
    fn deliver(&mut self) -> Verdict;
    /// [`crate::stages::bypass_from_pod`].
    fn bypass_from_pod(&mut self) -> Verdict;
    /// [`crate::stages::find_leaving`].
    fn find_leaving(&mut self, uplink: u32) -> bool;
    /// [`crate::stages::check_exit`].
    fn check_exit(&mut self) -> Decision<()>;
    /// [`crate::stages::turn`].
    fn turn(&mut self);
    /// [`crate::stages::make_room`].
    fn make_room(&mut self) -> bool;
    /// [`crate::stages::enter_pod`].
    fn enter_pod(&mut self) -> Verdict;
    /// [`crate::stages::translate`].
    fn translate(&mut self) -> Decision<()>;
    /// [`crate::stages::translate_quoted`].
    fn translate_quoted(&mut self, way: Way) -> Decision<()>;
    /// [`crate::stages::find_shortcut`].
    fn find_shortcut(&mut self, way: Way) -> Found;
    /// [`crate::stages::take_shortcut`].
    fn take_shortcut(&mut self, taken: Taken) -> Verdict;
    /// [`crate::stages::keep_shortcut`].
    fn keep_shortcut(&mut self, way: Way, verdict: Verdict);
    /// [`crate::stages::sum_up`].
    fn sum_up(&mut self, verdict: Verdict);
    /// [`crate::stages::teach`].
    fn teach(&mut self, index: u32);
    /// [`crate::stages::count`].
    fn count(&mut self, direction: Direction, verdict: Verdict);
}

/// Ends the packet as the one before it that looked the same, if there was one.
#[inline(always)]
fn shortcut(hook: &mut impl Hook, way: Way) -> Option<Verdict> {
    let verdict = match hook.find_shortcut(way) {
        Found::Nothing => return None,
        Found::Lesson(taken) => {
            hook.teach(taken.index);
            hook.take_shortcut(taken)
        }
        Found::End(number) => Verdict::from_code(number),
    };
    count_drop(hook, way.direction(), verdict);
    Some(verdict)
}

/// What a pod sends.
#[inline(always)]
pub fn from_pod(hook: &mut impl Hook) -> Verdict {
    if let Some(verdict) = shortcut(hook, Way::Pod) {
        return verdict;
    }
    let sent = send(hook);
    let verdict = delivered(hook, sent);
    hook.sum_up(verdict);
    verdict
}

/// What is handed to a pod meets no other hook: it is charged and counted there now.
#[inline(always)]
fn delivered(hook: &mut impl Hook, outcome: Decision<Verdict>) -> Verdict {
    match outcome {
        Ok(verdict @ Verdict::Deliver(_)) => match hook.arrive() {
            Ok(()) => verdict,
            Err(reason) => Verdict::Drop(reason),
        },
        Ok(verdict) => verdict,
        Err(reason) => Verdict::Drop(reason),
    }
}

#[inline(always)]
fn send(hook: &mut impl Hook) -> Decision<Verdict> {
    let content = hook.parse_pod()?;
    if hook.check_sender(content)? {
        hook.charge(Direction::Egress)?;
    }
    if hook.is_tagged() {
        return pass_tagged(hook, content);
    }
    match content {
        // A fragment without ports is nobody's yet: the node's own reassembly has the last word.
        Content::LostFragment => return pass_by_policy(hook),
        Content::Foreign | Content::Arp => return Ok(Verdict::Pass),
        Content::IcmpError => {
            if !hook.find_quoted_flow(Way::Pod) {
                return pass_by_policy(hook);
            }
            hook.translate_quoted(Way::Pod)?;
            return Ok(hook.deliver());
        }
        Content::Ip | Content::Known => {}
    }
    if !hook.find_flow(Way::Pod) {
        match hook.find_dialled()? {
            HostportMatch::None => return pass(hook),
            HostportMatch::Socket => return Ok(Verdict::Pass),
            HostportMatch::Pod => open_dialled(hook)?,
        }
    }
    hook.translate()?;
    match hook.deliver() {
        // A flow that is only noted: nobody has dialled a hostport.
        Verdict::Pass => pass(hook),
        verdict @ (Verdict::Drop(_)
        | Verdict::Deliver(_)
        | Verdict::Leave(_)
        | Verdict::Depart(_)) => Ok(verdict),
    }
}

/// A frame of some VLAN, whatever is in it, is for the bridge to pass on or to drop: past it, the tag would go along.
#[inline(always)]
fn pass_tagged(hook: &mut impl Hook, content: Content) -> Decision<Verdict> {
    match content {
        Content::Foreign | Content::Arp => {}
        Content::Ip | Content::Known | Content::LostFragment | Content::IcmpError => {
            hook.check_policy()?;
            hook.check_exit()?;
        }
    }
    Ok(Verdict::Pass)
}

#[inline(always)]
fn pass_by_policy(hook: &mut impl Hook) -> Decision<Verdict> {
    hook.check_policy()?;
    pass(hook)
}

/// What none of our own has claimed: past bridge and stack, or through both.
#[inline(always)]
fn pass(hook: &mut impl Hook) -> Decision<Verdict> {
    match hook.bypass_from_pod() {
        Verdict::Pass => {
            hook.check_exit()?;
            Ok(Verdict::Pass)
        }
        verdict @ Verdict::Leave(uplink) => {
            if hook.find_leaving(uplink) {
                hook.translate()?;
            }
            Ok(verdict)
        }
        verdict @ (Verdict::Drop(_) | Verdict::Deliver(_) | Verdict::Depart(_)) => Ok(verdict),
    }
}

#[inline(always)]
fn open_dialled(hook: &mut impl Hook) -> Decision<()> {
    for attempt in 0..local::TRIES {
        if with_room(hook, |hook| hook.try_dialled(attempt))? {
            hook.turn();
            return Ok(());
        }
    }
    Err(DropReason::NoPort)
}

/// What a pod receives.
#[inline(always)]
pub fn to_pod(hook: &mut impl Hook) -> Verdict {
    let is_limited = hook.identify_pod();
    let verdict = Verdict::from(receive(hook, is_limited));
    hook.count(Direction::Ingress, verdict);
    verdict
}

#[inline(always)]
fn receive(hook: &mut impl Hook, is_limited: bool) -> Decision<()> {
    hook.check_duplicate()?;
    if is_limited {
        hook.charge(Direction::Ingress)?;
    }
    Ok(())
}

/// What leaves the node.
#[inline(always)]
pub fn uplink_out(hook: &mut impl Hook) -> Verdict {
    if let Some(verdict) = shortcut(hook, Way::Out) {
        return verdict;
    }
    let verdict = Verdict::from(leave(hook));
    count_drop(hook, Direction::Egress, verdict);
    hook.keep_shortcut(Way::Out, verdict);
    verdict
}

#[inline(always)]
fn leave(hook: &mut impl Hook) -> Decision<()> {
    match hook.parse_uplink()? {
        Content::Foreign | Content::Arp => return Ok(()),
        Content::LostFragment => return refuse_lost(hook),
        Content::IcmpError => return translate_error(hook, Way::Out),
        Content::Ip | Content::Known => {}
    }
    if hook.find_flow(Way::Out) {
        return hook.translate();
    }
    match hook.origin()? {
        Origin::Elsewhere => return Ok(()),
        Origin::Pod => hook.choose_source()?,
        Origin::Collision => hook.keep_source(),
    }
    for attempt in 0..TRIES {
        if with_room(hook, |hook| hook.try_port(attempt))? {
            hook.turn();
            return hook.translate();
        }
    }
    Err(DropReason::NoPort)
}

/// Makes a flow; where the table is full or the pod has as many as it may, makes room and tries once more.
#[inline(always)]
fn with_room<H: Hook, T>(hook: &mut H, make: impl Fn(&mut H) -> Decision<T>) -> Decision<T> {
    let outcome = make(hook);
    let again = match outcome {
        Err(DropReason::FlowTableFull) => hook.make_room(),
        Err(DropReason::FlowQuota) => {
            hook.turn();
            true
        }
        _ => false,
    };
    if again { make(hook) } else { outcome }
}

/// A fragment without ports must not leave with a pod's address.
#[inline(always)]
fn refuse_lost(hook: &mut impl Hook) -> Decision<()> {
    match hook.origin()? {
        Origin::Elsewhere | Origin::Collision => Ok(()),
        Origin::Pod => Err(DropReason::FragmentWithoutFirst),
    }
}

#[inline(always)]
fn translate_error(hook: &mut impl Hook, way: Way) -> Decision<()> {
    if hook.find_quoted_flow(way) {
        return hook.translate_quoted(way);
    }
    match way {
        Way::In => hook.check_outsider(),
        Way::Out => hook.origin().map(|_| ()),
        Way::Pod => Ok(()),
    }
}

/// What enters the node.
#[inline(always)]
pub fn uplink_in(hook: &mut impl Hook) -> Verdict {
    if let Some(verdict) = shortcut(hook, Way::In) {
        return verdict;
    }
    let verdict = enter(hook).unwrap_or_else(Verdict::Drop);
    count_drop(hook, Direction::Ingress, verdict);
    hook.keep_shortcut(Way::In, verdict);
    verdict
}

#[inline(always)]
fn enter<H: Hook>(hook: &mut H) -> Decision<Verdict> {
    match hook.parse_entering()? {
        Content::Foreign | Content::Arp => return Ok(Verdict::Pass),
        Content::Known => return Ok(hook.enter_pod()),
        // Without ports nothing can be translated: the node's own reassembly has the last word.
        Content::LostFragment => return Ok(Verdict::from(hook.check_outsider())),
        Content::IcmpError => return Ok(Verdict::from(translate_error(hook, Way::In))),
        Content::Ip => {}
    }
    hook.check_outsider()?;
    match hook.find_hostport()? {
        HostportMatch::Pod => {
            with_room(hook, H::open_hostport)?;
            hook.turn();
            Ok(hook.enter_pod())
        }
        HostportMatch::Socket => Ok(Verdict::Pass),
        HostportMatch::None => {
            if with_room(hook, H::open_direct)? {
                hook.turn();
            }
            Ok(Verdict::Pass)
        }
    }
}

/// Packets that pass are counted once, at the pod's veth; drops are counted where they happen.
#[inline(always)]
fn count_drop(hook: &mut impl Hook, direction: Direction, verdict: Verdict) {
    if let Verdict::Drop(_) = verdict {
        hook.count(direction, verdict);
    }
}
