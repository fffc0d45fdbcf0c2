//! Finding, taking and keeping shortcuts.

use abi::{Direction, DropReason, EndpointFlags};

use super::handed::{Label, take_off, teach};
use super::sight::{Glance, look_v4, look_v6};
use super::{Change, Desk, Found, GOOD_FOR, Shortcut, Shortcuts, Steps, Taken, shard};
use crate::bypass::{self, age};
use crate::node::Node;
use crate::outcome::{Code as _, Verdict};
use crate::packet::Packet;
use crate::parse::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use crate::sender::ETHERNET;
use crate::shape::Shaper;
use crate::work::{Way, Work};

/// Looks for the shortcut of a packet, notes the packet in its flow, and takes the shortcut unless another one is to learn
/// from it before.
#[inline(always)]
pub(crate) fn find<E: Packet + Node + Shaper + Shortcuts>(
    env: &mut E,
    desk: &mut impl Desk,
    interface: u32,
    way: Way,
) -> Found {
    let label = match way {
        Way::Pod | Way::Out => take_off(env),
        Way::In => Label::NONE,
    };
    if way == Way::Out && label == Label::DONE {
        return Found::End(Verdict::Pass.code());
    }
    let lesson = way == Way::Out && label == Label::LESSON;
    match env.ethertype() {
        // On uplinks, the programs have nothing to do with such frames.
        _ if way == Way::Pod && env.is_tagged() => stray(desk),
        ETHERTYPE_IPV4 => {
            let glance = look_v4(env, interface, way);
            find_seen(env, desk, glance, lesson)
        }
        ETHERTYPE_IPV6 => {
            let glance = look_v6(env, interface, way);
            find_seen(env, desk, glance, lesson)
        }
        _ => stray(desk),
    }
}

/// The search for what was seen: once for each family, since a packet of IPv4 says much less.
#[inline(always)]
fn find_seen<E: Packet + Node + Shaper + Shortcuts>(
    env: &mut E,
    desk: &mut impl Desk,
    glance: Option<Glance>,
    lesson: bool,
) -> Found {
    let Some(glance) = glance else {
        return stray(desk);
    };
    let found = search(env, desk, &glance, lesson);
    if found == Found::Nothing
        && let Some(work) = desk.work()
    {
        set_out(env, work, &glance, lesson);
    }
    found
}

/// A packet from which nothing follows for others.
#[inline(always)]
fn stray(desk: &mut impl Desk) -> Found {
    if let Some(work) = desk.work() {
        work.limited = 0;
        work.trail.close();
    }
    Found::Nothing
}

/// Ends what a pod sends as the packet before it that looked the same, unless that one went on to the stack. Makes no
/// shortcut, and decides nothing: whatever finds none here is to be shown to [`crate::hooks::from_pod`].
#[inline(always)]
pub(crate) fn straight<E: Packet + Node + Shaper + Shortcuts>(
    env: &mut E,
    desk: &mut impl Desk,
    interface: u32,
) -> Option<Verdict> {
    take_off(env);
    if env.is_tagged() {
        return None;
    }
    match env.ethertype() {
        ETHERTYPE_IPV4 => {
            let glance = look_v4(env, interface, Way::Pod)?;
            go_straight(env, desk, &glance)
        }
        ETHERTYPE_IPV6 => {
            let glance = look_v6(env, interface, Way::Pod)?;
            go_straight(env, desk, &glance)
        }
        _ => None,
    }
}

#[inline(always)]
fn go_straight<E: Packet + Node + Shaper + Shortcuts>(
    env: &mut E,
    desk: &mut impl Desk,
    glance: &Glance,
) -> Option<Verdict> {
    let past = |good: &Good<E::Kept>| good.1.verdict != Verdict::Pass.code();
    let good = good(env, glance).filter(past)?;
    let pod = good.1.pod;
    let Found::End(number) = enter(env, desk, good, glance, false) else {
        return None;
    };
    let verdict = Verdict::from_code(number);
    if let Verdict::Drop(reason) = verdict {
        env.count_dropped(reason, pod, Direction::Egress, glance.bytes);
    }
    Some(verdict)
}

#[inline(always)]
fn search<E: Packet + Node + Shaper + Shortcuts>(
    env: &mut E,
    desk: &mut impl Desk,
    glance: &Glance,
    lesson: bool,
) -> Found {
    match good(env, glance) {
        Some(good) => enter(env, desk, good, glance, lesson),
        None => Found::Nothing,
    }
}

/// A shortcut that is good, and its index.
type Good<K> = (u32, K);

/// The shortcut of a packet, if this CPU has a good one.
#[inline(always)]
fn good<E: Shaper + Shortcuts>(env: &E, glance: &Glance) -> Option<Good<E::Kept>> {
    let ((index, tag), now) = (glance.sight.place(), env.ticks());
    if env.tag(index) != tag {
        return None;
    }
    let shortcut = env.shortcut(index)?;
    is_good(env, &shortcut, glance, now).then_some((index, shortcut))
}

/// Notes the packet in its flow, and ends it, unless another one is to learn from it before.
#[inline(always)]
fn enter<E: Packet + Node + Shortcuts>(
    env: &mut E,
    desk: &mut impl Desk,
    (index, shortcut): Good<E::Kept>,
    glance: &Glance,
    lesson: bool,
) -> Found {
    let taken = Taken {
        index,
        bytes: glance.bytes,
    };
    if shortcut.steps & Steps::FLOW != 0 && !env.note(index, shortcut.ticket, glance.bytes) {
        Found::Nothing
    } else if lesson {
        Found::Lesson(taken)
    } else if shortcut.steps & Steps::WRITTEN != 0 {
        Found::End(follow(env, desk, shortcut, glance.bytes).code())
    } else {
        end(env, desk, (index, shortcut), glance)
    }
}

#[inline(always)]
fn is_good<E: Shaper + Shortcuts>(env: &E, shortcut: &Shortcut, glance: &Glance, now: u64) -> bool {
    glance.sight.is(&shortcut.sight)
        && shortcut.epoch == env.epoch(shortcut.shard)
        && now.wrapping_sub(shortcut.taken) < GOOD_FOR
        && glance.is_within(env, shortcut.fits)
}

/// Begins to note the way of a packet that others may be spared.
#[inline(always)]
fn set_out<E: Shaper + Shortcuts>(env: &E, work: &mut Work, glance: &Glance, lesson: bool) {
    work.limited = 0;
    work.trail.open = 1;
    work.trail.steps = 0;
    work.trail.sight = glance.sight;
    work.trail.index = glance.sight.index();
    work.trail.length = glance.length(env);
    work.trail.taken = env.ticks();
    work.trail.shard = shard(&glance.sight.tuple());
    work.trail.epoch = env.epoch(work.trail.shard);
    work.trail.lesson = u32::from(lesson);
}

/// Ends a packet that says what it is to say as the one before it, and counts it.
#[inline(always)]
fn end<E: Packet + Node + Shortcuts>(
    env: &mut E,
    desk: &mut impl Desk,
    (index, shortcut): Good<E::Kept>,
    glance: &Glance,
) -> Found {
    if let Verdict::Leave(_) = Verdict::from_code(shortcut.verdict)
        && let Some(work) = desk.work()
    {
        work.hop = shortcut.hop;
        announce(env, work, index, shortcut.steps);
    }
    if shortcut.steps & Steps::AGED != 0 {
        let version = if glance.sight.is_v6() { 6 } else { 4 };
        if age(env, version, ETHERNET) != Ok(true) {
            return Found::Nothing;
        }
    }
    count(env, &shortcut, glance.bytes);
    Found::End(shortcut.verdict)
}

/// As [`follow`], of the shortcut with this index.
#[inline(always)]
pub(crate) fn take<E: Packet + Node + Shortcuts>(
    env: &mut E,
    desk: &mut impl Desk,
    taken: Taken,
) -> Verdict {
    match env.shortcut(taken.index) {
        Some(shortcut) => follow(env, desk, shortcut, taken.bytes),
        None => Verdict::Drop(DropReason::RewriteFailed),
    }
}

/// Ends a packet that something is to be written into as the one before it, and counts it unless it is dropped.
#[inline(always)]
fn follow<E: Packet + Node + Shortcuts>(
    env: &mut E,
    desk: &mut impl Desk,
    shortcut: E::Kept,
    bytes: u32,
) -> Verdict {
    let verdict = Verdict::from_code(shortcut.verdict);
    if let Verdict::Leave(_) = verdict
        && let Some(work) = desk.work()
    {
        work.hop = shortcut.hop;
    }
    if let Verdict::Depart(_) = verdict {
        env.set_label(Label::DONE);
    }
    let written = shortcut
        .change
        .make(env, shortcut.sight.kind, shortcut.steps);
    if let Err(reason) = written {
        return fail(desk, &shortcut, bytes, reason);
    }
    count(env, &shortcut, bytes);
    verdict
}

/// Says whose the packet was that is dropped.
#[inline(always)]
fn fail(desk: &mut impl Desk, shortcut: &Shortcut, bytes: u32, reason: DropReason) -> Verdict {
    if let Some(work) = desk.work() {
        work.pod = shortcut.pod;
        work.headers.length = bytes;
    }
    Verdict::Drop(reason)
}

/// Counts a packet for who sends and who receives it.
#[inline(always)]
fn count<E: Node>(env: &mut E, shortcut: &Shortcut, bytes: u32) {
    env.count_passed(shortcut.from, Direction::Egress, bytes);
    env.count_passed(shortcut.to, Direction::Ingress, bytes);
}

/// Asks the uplink's program how the packet ends, for a shortcut that knows no flow.
#[inline(always)]
fn announce<E: Shortcuts>(env: &mut E, work: &mut Work, index: u32, steps: u32) {
    if steps & Steps::FLOW == 0 && env.hands_over() {
        work.trail.pupil = index;
        env.set_label(Label::LESSON);
    }
}

/// Remembers how the packet has ended, where that holds for others. The verdict is given as its number, for that is kept:
/// of an enumeration, what a variant does not use would be copied as well, and no verifier lets that pass.
#[inline(always)]
pub(crate) fn keep<E: Node + Shortcuts>(env: &mut E, work: &mut Work, way: Way, number: u64) {
    let verdict = Verdict::from_code(number);
    let past = verdict != Verdict::Pass;
    // Which packets of a flow go past the stack is up to each of them.
    let known = way == Way::Out || past || !bypass::is_allowed(env);
    let flow = way == Way::Pod || work.trail.has_flow();
    let young = work.trail.has_flow() && work.trail.had < env.young();
    // Without Ethernet, what was looked at is not what it seemed to be.
    let seen = work.trail.open != 0 && work.headers.l3 == ETHERNET;
    if !seen || !known || !flow || young || matches!(verdict, Verdict::Drop(_)) {
        return;
    }
    let to = match verdict {
        Verdict::Deliver(_) => work.endpoint.pod,
        Verdict::Pass | Verdict::Drop(_) | Verdict::Leave(_) | Verdict::Depart(_) => 0,
    };
    let limited =
        work.limited != 0 || (to != 0 && work.endpoint.flags & EndpointFlags::LIMITED != 0);
    if limited {
        return;
    }
    if work.trail.has_flow() {
        work.trail.steps |= Change::steps(&work.headers.tuple, &work.translated);
        settle(env, work.trail.index);
        env.begin_notes(work.trail.index, &work.headers.tuple, work.trail.ticket);
    }
    describe(work, way, number, to);
    let (index, steps) = (work.trail.index, work.trail.steps);
    let (_, tag) = work.trail.sight.place();
    env.keep_shortcut(index, tag, &work.shortcut);
    if let Verdict::Leave(_) = verdict {
        announce(env, work, index, steps);
    }
    if work.trail.lesson != 0 {
        teach(env, work, index);
    }
}

/// Makes [`Work::shortcut`] of what is known about the packet: field by field, for all of it at once would be put together
/// on the stack.
#[inline(always)]
fn describe(work: &mut Work, way: Way, number: u64, to: u32) {
    let past = Verdict::from_code(number) != Verdict::Pass;
    let (trail, shortcut) = (&work.trail, &mut work.shortcut);
    shortcut.sight = trail.sight;
    // What goes on to the stack is measured there.
    shortcut.fits = if past { trail.length } else { u32::MAX };
    shortcut.steps = trail.steps;
    shortcut.epoch = trail.epoch;
    shortcut.taken = trail.taken;
    shortcut.verdict = number;
    shortcut.hop = work.hop;
    let says = &work.headers.tuple;
    let will_say = if trail.has_flow() {
        &work.translated
    } else {
        says
    };
    shortcut.change.fill(says, will_say, trail.stations);
    shortcut.ticket = trail.ticket;
    shortcut.shard = trail.shard;
    shortcut.pod = work.pod;
    shortcut.from = if way == Way::Pod { work.pod } else { 0 };
    shortcut.to = to;
}

/// Adds what was noted at a place to the flow's entry, if that is still there.
#[inline(always)]
pub(super) fn settle<E: Node + Shortcuts>(env: &mut E, index: u32) {
    let Some(noted) = env.noted(index) else {
        return;
    };
    let (packets, bytes, ticket) = (noted.packets, noted.bytes, noted.ticket);
    if packets == 0 {
        return;
    }
    if let Some(entry) = env.flow(&noted.key)
        && env.read(entry).ticket == ticket
    {
        env.credit(entry, packets, bytes);
    }
}
