//! From a pod's hook to the uplink's: which packet is under way between them, and what one learns from the other.
//!
//! A packet that leaves the node past the stack is shown to the uplink's program next, on the same CPU. It carries a label,
//! which says what is left to do; a pod's own labels are taken away from it.
//!
//! What the uplink's program did to such a packet, and how the kernel has addressed it, is a lesson: it is added to the
//! shortcut at the pod's hook, which from then on does all of that by itself, and says so. Of flows that are too young for
//! shortcuts the pod's hook finds the entry itself.

use super::way::settle;
use super::{Shortcut, Shortcuts, Steps};
use crate::flow;
use crate::node::Node;
use crate::outcome::{Code as _, Verdict};
use crate::work::{Way, Work};

/// Of [`super::Sight::kind`], all but the hook.
const FAMILY_AND_PROTOCOL: u32 = 0xffff;

/// What a packet is labelled with. The numbers are the same in all versions: programs are replaced one by one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label;

impl Label {
    /// Nothing.
    pub(super) const NONE: u32 = 0;
    /// All that there was to do for the packet is done.
    pub(super) const DONE: u32 = 0x5644;
    /// How the packet ends is to be added to the shortcut [`super::Trail::pupil`] of this CPU, if that is its own.
    pub(super) const LESSON: u32 = 0x564c;
}

/// Takes the label off the packet.
#[inline(always)]
pub(super) fn take_off<E: Shortcuts>(env: &mut E) -> u32 {
    let label = env.label();
    if label != Label::NONE {
        env.set_label(Label::NONE);
    }
    label
}

/// Looks up the flow of a packet that leaves past the stack, by this uplink, if it is too young for shortcuts. The packet is to be
/// translated then, and need not be read once more.
#[inline(always)]
pub(crate) fn find_leaving<E: Node + Shortcuts>(env: &mut E, work: &mut Work, uplink: u32) -> bool {
    if !env.hands_over() {
        return false;
    }
    let (pod, interface) = (work.pod, work.interface);
    work.interface = uplink;
    let found = flow::find_young(env, work, Way::Out);
    (work.pod, work.interface) = (pod, interface);
    if found {
        env.set_label(Label::DONE);
    }
    found
}

/// Adds the shortcut that the packet has taken here, or was taken from it, to the one at the pod's hook.
#[inline(always)]
pub(crate) fn teach<E: Node + Shortcuts>(env: &mut E, work: &mut Work, index: u32) {
    let at = work.trail.pupil;
    let (Some(pupil), Some(out)) = (env.shortcut(at), env.shortcut(index)) else {
        return;
    };
    if !are_of_one_packet(&pupil, &out) {
        return;
    }
    work.shortcut = *pupil;
    learn(&mut work.shortcut, &out);
    settle(env, at);
    let tuple = work.shortcut.sight.tuple();
    env.begin_notes(at, &tuple, work.shortcut.ticket);
    let (_, tag) = work.shortcut.sight.place();
    env.keep_shortcut(at, tag, &work.shortcut);
}

/// Whether both are from the same packet's way. If there was a change in between, the pupil is good for nothing any more,
/// whatever it learns: its epoch is another.
#[inline(always)]
fn are_of_one_packet(pupil: &Shortcut, out: &Shortcut) -> bool {
    let (from, at) = (&pupil.sight, &out.sight);
    pupil.verdict == Verdict::Leave(at.interface).code()
        && from.mark == at.mark
        && from.ports == at.ports
        && from.kind & FAMILY_AND_PROTOCOL == at.kind & FAMILY_AND_PROTOCOL
        && from.source == at.source
        && from.destination == at.destination
}

#[inline(always)]
fn learn(pupil: &mut Shortcut, out: &Shortcut) {
    pupil.verdict = Verdict::Depart(out.sight.interface).code();
    pupil.steps |= out.steps | Steps::STATIONS;
    pupil.change = out.change;
    pupil.change.stations = out.sight.stations;
    pupil.ticket = out.ticket;
    if out.taken < pupil.taken {
        pupil.taken = out.taken;
    }
}
