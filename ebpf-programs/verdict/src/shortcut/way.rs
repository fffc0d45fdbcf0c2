//! Finding, taking and keeping shortcuts.

use abi::{Direction, DropReason, EndpointFlags, Tuple, protocol};

use super::sight::{Glance, look};
use super::{Found, GOOD_FOR, Shortcut, Shortcuts, Steps, shard};
use crate::bypass::{self, age};
use crate::checksum::Difference;
use crate::node::Node;
use crate::outcome::{Code as _, Decision, Verdict};
use crate::packet::Packet;
use crate::parse::{IPV4_HEADER, IPV6_HEADER};
use crate::rewrite::{
    TCP_CHECKSUM, UDP_CHECKSUM, V4_TIME_TO_LIVE, V6_SOURCE, header_word, kind, word,
};
use crate::sender::ETHERNET;
use crate::shape::Shaper;
use crate::work::{Way, Work};

/// Looks for the shortcut of a packet, notes the packet in its flow, and takes the shortcut unless there is something to
/// be written.
#[inline(always)]
pub(crate) fn find<E: Packet + Node + Shaper + Shortcuts>(
    env: &mut E,
    work: &mut Work,
    interface: u32,
    way: Way,
) -> Found {
    work.trail.close();
    work.limited = 0;
    match look(env, interface, way) {
        Some(glance) => search(env, work, &glance),
        None => Found::Nothing,
    }
}

#[inline(always)]
fn search<E: Packet + Node + Shortcuts>(env: &mut E, work: &mut Work, glance: &Glance) -> Found {
    let index = glance.sight.index();
    let taken = env.ticks();
    let found = match env.shortcut(index) {
        Some(shortcut) if is_good(env, shortcut, glance, taken) => {
            let (steps, ticket, pod) = (shortcut.steps, shortcut.ticket, shortcut.pod);
            work.trail.index = index;
            work.headers.length = glance.bytes;
            work.pod = pod;
            if steps & Steps::FLOW != 0 && !env.note(index, ticket, glance.bytes) {
                Found::Nothing
            } else if steps & (Steps::TRANSLATED | Steps::STATIONS) != 0 {
                Found::Flow
            } else {
                end(env, work, index, glance)
            }
        }
        _ => Found::Nothing,
    };
    if found == Found::Nothing {
        work.trail.open = 1;
        work.trail.steps = 0;
        work.trail.sight = glance.sight;
        work.trail.index = index;
        work.trail.length = glance.length;
        work.trail.taken = taken;
        work.trail.shard = shard(&glance.sight.tuple());
        work.trail.epoch = env.epoch(work.trail.shard);
    }
    found
}

#[inline(always)]
fn is_good<E: Shortcuts>(env: &E, shortcut: &Shortcut, glance: &Glance, now: u64) -> bool {
    glance.sight.is(&shortcut.sight)
        && shortcut.epoch == env.epoch(shortcut.shard)
        && now.wrapping_sub(shortcut.taken) < GOOD_FOR
        && glance.length <= shortcut.fits
}

/// Ends a packet that says what it is to say as the one before it, and counts it.
#[inline(always)]
fn end<E: Packet + Node + Shortcuts>(
    env: &mut E,
    work: &mut Work,
    index: u32,
    glance: &Glance,
) -> Found {
    let Some(shortcut) = env.shortcut(index) else {
        return Found::Nothing;
    };
    let (verdict, from, to) = (shortcut.verdict, shortcut.from, shortcut.to);
    if shortcut.steps & Steps::AGED != 0 {
        work.hop = shortcut.hop;
        let version = if glance.sight.is_v6() { 6 } else { 4 };
        if age(env, version, ETHERNET) != Ok(true) {
            return Found::Nothing;
        }
    }
    env.count_passed(from, Direction::Egress, glance.bytes);
    env.count_passed(to, Direction::Ingress, glance.bytes);
    Found::End(Verdict::from_code(verdict))
}

/// Ends a packet that something is to be written into as the one before it, and counts it unless it is dropped.
#[inline(always)]
pub(crate) fn take<E: Packet + Node + Shortcuts>(env: &mut E, work: &mut Work) -> Verdict {
    let Some(shortcut) = env.shortcut(work.trail.index) else {
        return Verdict::Drop(DropReason::RewriteFailed);
    };
    let (verdict, from, to) = (shortcut.verdict, shortcut.from, shortcut.to);
    let (steps, stations) = (shortcut.steps, shortcut.stations);
    let (tuple, translated) = (shortcut.tuple, shortcut.translated);
    if steps & Steps::AGED != 0 {
        work.hop = shortcut.hop;
    }
    if let Err(reason) = alter(env, &tuple, &translated, steps, stations) {
        return Verdict::Drop(reason);
    }
    env.count_passed(from, Direction::Egress, work.headers.length);
    env.count_passed(to, Direction::Ingress, work.headers.length);
    Verdict::from_code(verdict)
}

/// Does to the packet what was done to the one before it.
#[inline(always)]
fn alter<P: Packet>(
    packet: &mut P,
    from: &Tuple,
    to: &Tuple,
    steps: u32,
    stations: [u32; 3],
) -> Decision<()> {
    let difference = mend(packet, from, to)?;
    if from.source.is_v4() {
        write_v4(packet, to, difference, steps)?;
    } else {
        write_v6(packet, to, steps)?;
    }
    if steps & Steps::STATIONS != 0 {
        packet.store(0, stations)?;
    }
    Ok(())
}

/// Corrects the transport's checksum, and says how the addresses differ.
#[inline(always)]
fn mend<P: Packet>(packet: &mut P, from: &Tuple, to: &Tuple) -> Decision<Difference> {
    let (v4, udp) = (from.source.is_v4(), from.protocol == protocol::UDP);
    let header = if v4 { IPV4_HEADER } else { IPV6_HEADER };
    let at = ETHERNET + header + if udp { UDP_CHECKSUM } else { TCP_CHECKSUM };
    let addresses = Difference::NONE
        .and_words(from.source.words(), to.source.words())
        .and_words(from.destination.words(), to.destination.words());
    if from.source != to.source || from.destination != to.destination {
        packet.fix_checksum(at, addresses, kind(udp, !v4, true))?;
    }
    let (old, new) = (ports(from), ports(to));
    if old != new {
        packet.fix_checksum(at, Difference::NONE.and(old, new), kind(udp, !v4, false))?;
    }
    Ok(addresses)
}

/// Both ports, as they lie in a packet.
#[inline(always)]
fn ports(tuple: &Tuple) -> u32 {
    word(tuple.source_port.raw(), tuple.destination_port.raw())
}

/// Writes all that changes of an IPv4 packet, from its time to live to its ports: it lies side by side.
#[inline(always)]
fn write_v4<P: Packet>(
    packet: &mut P,
    to: &Tuple,
    addresses: Difference,
    steps: u32,
) -> Decision<()> {
    let at = ETHERNET + V4_TIME_TO_LIVE;
    let [old] = packet.words::<1>(at).ok_or(DropReason::RewriteFailed)?;
    // One that has no hop left has no shortcut.
    let first = header_word(old, u8::from(steps & Steps::AGED != 0), addresses);
    let (source, destination) = (to.source.words()[3], to.destination.words()[3]);
    packet.store(at, [first, source, destination, ports(to)])
}

/// Writes addresses and ports of an IPv6 packet, and its age, for which no checksum makes up.
#[inline(always)]
fn write_v6<P: Packet>(packet: &mut P, to: &Tuple, steps: u32) -> Decision<()> {
    let mut words = [ports(to); 9];
    words[..4].copy_from_slice(&to.source.words());
    words[4..8].copy_from_slice(&to.destination.words());
    packet.store(ETHERNET + V6_SOURCE, words)?;
    if steps & Steps::AGED != 0 {
        age(packet, 6, ETHERNET)?;
    }
    Ok(())
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
    // Without Ethernet, what was looked at is not what it seemed to be.
    let seen = work.trail.open != 0 && work.headers.l3 == ETHERNET;
    if !seen || !known || !flow || matches!(verdict, Verdict::Drop(_)) {
        return;
    }
    let to = match verdict {
        Verdict::Deliver(_) => work.endpoint.pod,
        Verdict::Pass | Verdict::Drop(_) | Verdict::Leave(_) => 0,
    };
    let limited =
        work.limited != 0 || (to != 0 && work.endpoint.flags & EndpointFlags::LIMITED != 0);
    if limited {
        return;
    }
    if work.trail.has_flow() {
        if work.translated != work.headers.tuple {
            work.trail.steps |= Steps::TRANSLATED;
        }
        settle(env, work.trail.index);
        env.begin_notes(work.trail.index, &work.headers.tuple, work.trail.ticket);
    }
    let shortcut = Shortcut {
        sight: work.trail.sight,
        // What goes on to the stack is measured there.
        fits: if past { work.trail.length } else { u32::MAX },
        steps: work.trail.steps,
        epoch: work.trail.epoch,
        taken: work.trail.taken,
        verdict: number,
        hop: work.hop,
        tuple: work.headers.tuple,
        translated: work.translated,
        stations: work.trail.stations,
        ticket: work.trail.ticket,
        shard: work.trail.shard,
        pod: work.pod,
        from: if way == Way::Pod { work.pod } else { 0 },
        to,
    };
    env.keep_shortcut(work.trail.index, &shortcut);
}

/// Adds what was noted at a place to the flow's entry, if that is still there.
#[inline(always)]
fn settle<E: Node + Shortcuts>(env: &mut E, index: u32) {
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
