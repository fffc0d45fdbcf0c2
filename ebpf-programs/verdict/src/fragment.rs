//! Fragments of IP datagrams: ports for the later ones, order, overlaps, identification.
//!
//! The first fragment stores its ports for the later ones. A later one that arrives earlier is held
//! until the first one arrives; both then enter the hook again, in order. See decision 92 for the
//! order and the shares of the tables, decision 93 for the identification.

use abi::{
    Datagram, DatagramFlags, Direction, DropReason, FragmentKey, FragmentRange, HeldHeader,
    HeldKey, Port, RING, Share, Tuple, maps, protocol,
};

use crate::fragment_store::FragmentStore;
use crate::node::Node;
use crate::outcome::Decision;
use crate::packet::Packet;
use crate::parse::{SCTP_HEADER, TCP_HEADER};
use crate::rewrite;
use crate::work::{Content, Fragment, Headers, Hook, Transport, Work};

/// Seconds for which a datagram and its identification are kept: the kernel's reassembly waits as
/// long (`net.ipv4.ipfrag_time`).
const LIFE: u32 = 30;
/// Identifications that are tried for a datagram.
const TRIES: u32 = 8;
/// Length of a datagram's payload in units of 8 bytes that an IP header can express.
const MOST_UNITS: u32 = 8_192;
/// Length in bytes from the IP header on that every link with IPv6 takes (RFC 8200, 5).
const ALWAYS_FITS: u32 = 1280;
/// Bytes of an IPv6 fragment header.
const FRAGMENT_HEADER: u32 = 8;

/// What the stages of a fragment pass to each other.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct FragmentWork {
    /// The state of the fragment's datagram.
    pub datagram: Datagram,
    /// The datagram's key; share 0 where the datagram has no state.
    pub key: FragmentKey,
    /// The key that the ring of the share has lost.
    pub replaced: FragmentKey,
    /// The held fragment.
    pub held: HeldHeader,
    /// Its place.
    pub place: HeldKey,
}

/// Updates the state of a fragment's datagram, and fills in the ports of a later fragment. Returns
/// [`Content::EarlyFragment`] where the fragment must wait for the first one, and
/// [`Content::AwaitedFragment`] where it is the first one, and others wait for it.
///
/// Comes after the sender check: a packet that is dropped there changes no state.
#[inline(always)]
pub(crate) fn track<E: Node + FragmentStore>(
    env: &mut E,
    work: &mut Work,
    hook: Hook,
) -> Decision<Content> {
    let range = range(&work.headers)?;
    set_key(env, work, hook);
    let is_first = work.headers.fragment == Fragment::First;
    if work.fragment.key.share == 0 {
        let has_ports = is_first || work.headers.transport == Transport::Portless;
        return Ok(if has_ports { Content::Ip } else { lost(work) });
    }
    let known = env.datagram(&work.fragment.key);
    let is_alive = read(env, work, known);
    if !is_alive {
        restart(&mut work.fragment.datagram, work.now);
    }
    let outcome = update(
        &mut work.fragment.datagram,
        &work.headers,
        // The ingress hooks have checked the fragment, and the node's own stack may have fragmented
        // it again.
        (hook != Hook::UplinkOut).then_some(range),
        work.now,
    );
    let waiting = update_store(env, work, known, is_alive);
    outcome?;
    if is_first {
        work.fragment.datagram.held = waiting;
        return Ok(if waiting == 0 {
            Content::Ip
        } else {
            Content::AwaitedFragment
        });
    }
    if work.headers.transport == Transport::Portless {
        return Ok(Content::Ip);
    }
    if work.fragment.datagram.flags & DatagramFlags::PORTS == 0 {
        return Ok(if is_held(env, work, hook) {
            Content::EarlyFragment
        } else {
            lost(work)
        });
    }
    fill_ports(&work.fragment.datagram, &mut work.headers);
    Ok(Content::Ip)
}

/// Returns the content of a fragment without ports. Unknown whether it belongs to a request or a
/// reply: treated as a packet without ports.
#[inline(always)]
fn lost(work: &mut Work) -> Content {
    work.headers.transport = Transport::Portless;
    Content::LostFragment
}

/// Fills in the ports of a later fragment, which may be quoted in an ICMP error; returns false
/// where they are unknown. Looks for the datagram as its sender's hook has seen it, and as it is
/// after translation ([`store_translated`]).
#[inline(always)]
pub(crate) fn find_ports<E: Node + FragmentStore>(
    env: &E,
    fragment: &mut FragmentWork,
    headers: &mut Headers,
) -> bool {
    if headers.fragment != Fragment::Later || headers.transport == Transport::Portless {
        return true;
    }
    let translated = translated_share(&headers.tuple);
    fill_key(
        &mut fragment.key,
        headers,
        sender_share(env, &headers.tuple),
    );
    if fragment.key.share != 0
        && let Some(datagram) = env.datagram(&fragment.key)
    {
        env.read_datagram(datagram, &mut fragment.datagram);
        if fragment.datagram.flags & DatagramFlags::PORTS != 0 {
            fill_ports(&fragment.datagram, headers);
            return true;
        }
    }
    fragment.key.share = translated;
    let Some(datagram) = env.datagram(&fragment.key) else {
        return false;
    };
    env.read_datagram(datagram, &mut fragment.datagram);
    fill_ports(&fragment.datagram, headers);
    true
}

/// Stores the ports of a first fragment a second time, as they are after translation: an ICMP error
/// about a later one quotes that with its translated addresses. Only where an error is possible:
/// links with IPv6 take fragments of [`ALWAYS_FITS`] bytes.
#[inline(always)]
pub(crate) fn store_translated<E: FragmentStore>(env: &mut E, work: &mut Work) {
    if work.headers.fragment != Fragment::First || work.headers.length <= ALWAYS_FITS {
        return;
    }
    let (headers, fragment) = (&work.headers, &mut work.fragment);
    let identification =
        if fragment.key.share != 0 && fragment.datagram.flags & DatagramFlags::IDENTIFIED != 0 {
            fragment.datagram.identification
        } else {
            headers.identification
        };
    fill_key(
        &mut fragment.key,
        headers,
        translated_share(&work.translated),
    );
    fragment.key.source = work.translated.source;
    fragment.key.destination = work.translated.destination;
    fragment.key.identification = identification;
    restart(&mut fragment.datagram, work.now);
    fragment.datagram.source_port = work.translated.source_port;
    fragment.datagram.destination_port = work.translated.destination_port;
    overwrite(env, fragment);
}

/// Stores the ports of a first fragment that the node's own stack has made.
#[inline(always)]
pub(crate) fn store<E: Node + FragmentStore>(env: &mut E, work: &mut Work) {
    let share = sender_share(env, &work.headers.tuple);
    let (headers, fragment) = (&work.headers, &mut work.fragment);
    fill_key(&mut fragment.key, headers, share);
    if share == 0 {
        return;
    }
    restart(&mut fragment.datagram, work.now);
    fragment.datagram.source_port = headers.tuple.source_port;
    fragment.datagram.destination_port = headers.tuple.destination_port;
    overwrite(env, fragment);
}

/// Writes the state of a datagram whose ports are known, in place of any other.
#[inline(always)]
fn overwrite<E: FragmentStore>(env: &mut E, fragment: &mut FragmentWork) {
    fragment.datagram.flags = DatagramFlags::PORTS;
    match env.datagram(&fragment.key) {
        Some(known) => env.write_datagram(known, &fragment.datagram),
        None => insert(env, fragment),
    }
}

/// Inserts the state of a datagram, and removes that of the oldest one of the share. Where another
/// CPU has inserted the datagram meanwhile, or the table is full, the fragment is translated, but
/// not remembered.
#[inline(always)]
fn insert<E: FragmentStore>(env: &mut E, fragment: &mut FragmentWork) {
    let FragmentWork {
        datagram,
        key,
        replaced,
        ..
    } = fragment;
    if env.insert_datagram(key, datagram)
        && env.push_datagram(key, replaced)
        && replaced.share != 0
        && replaced != key
    {
        env.remove_datagram(replaced);
    }
}

/// Fills in the ports of a datagram. ICMP has no type in a later fragment: a request has its
/// identifier as the source port, a reply as the destination port.
#[inline(always)]
fn fill_ports(datagram: &Datagram, headers: &mut Headers) {
    headers.tuple.source_port = datagram.source_port;
    headers.tuple.destination_port = datagram.destination_port;
    headers.transport = match headers.tuple.protocol {
        protocol::ICMP | protocol::ICMPV6 if headers.tuple.destination_port == Port::NONE => {
            Transport::EchoRequest
        }
        protocol::ICMP | protocol::ICMPV6 => Transport::EchoReply,
        _ => headers.transport,
    };
}

/// Sets the key of the fragment's datagram.
#[inline(always)]
fn set_key<E: Node>(env: &E, work: &mut Work, hook: Hook) {
    let share = share(env, work, hook);
    fill_key(&mut work.fragment.key, &work.headers, share);
}

/// Sets all fields of a datagram's key.
#[inline(always)]
fn fill_key(key: &mut FragmentKey, headers: &Headers, share: u32) {
    key.source = headers.tuple.source;
    key.destination = headers.tuple.destination;
    key.identification = headers.identification;
    key.protocol = headers.tuple.protocol;
    key.reserved = [0; 3];
    key.share = share;
}

/// Returns the share that a fragment's datagram takes; 0 where nothing is translated: packets that
/// the node forwards for others.
#[inline(always)]
fn share<E: Node>(env: &E, work: &Work, hook: Hook) -> u32 {
    let tuple = &work.headers.tuple;
    match hook {
        Hook::FromPod => work.pod,
        Hook::UplinkIn => {
            if env.is_local(&tuple.destination) || env.endpoint(&tuple.destination).is_some() {
                let sender = mixed(0, tuple.source.words());
                Share::OUTSIDE | sender & (Share::OUTSIDE_DATAGRAMS - 1)
            } else {
                0
            }
        }
        Hook::UplinkOut => sender_share(env, tuple),
    }
}

/// Returns the share of a datagram that leaves a hook with this tuple untranslated: its pod's, or
/// that of the node; 0 for others.
#[inline(always)]
fn sender_share<E: Node>(env: &E, tuple: &Tuple) -> u32 {
    if let Some(endpoint) = env.endpoint(&tuple.source) {
        return endpoint.pod;
    }
    if env.is_local(&tuple.source) {
        let receiver = mixed(0, tuple.destination.words());
        Share::NODE | receiver & (Share::NODE_DATAGRAMS - 1)
    } else {
        0
    }
}

/// Returns the share of translated datagrams with these addresses.
#[inline(always)]
fn translated_share(tuple: &Tuple) -> u32 {
    let hash = mixed(mixed(0, tuple.source.words()), tuple.destination.words());
    Share::TRANSLATED | hash & (Share::TRANSLATED_DATAGRAMS - 1)
}

/// Returns whether a fragment that is ahead of the first one is held at this hook. The node
/// translates nothing that is for a pod's own address, and at the uplink's egress the order is that
/// of the ingress hooks.
#[inline(always)]
fn is_held<E: Node>(env: &E, work: &Work, hook: Hook) -> bool {
    match hook {
        Hook::FromPod => true,
        Hook::UplinkIn => env.is_local(&work.headers.tuple.destination),
        Hook::UplinkOut => false,
    }
}

/// Copies the state of the datagram; returns whether there is one that has not expired.
#[inline(always)]
fn read<E: FragmentStore>(env: &mut E, work: &mut Work, known: Option<E::DatagramRef>) -> bool {
    let Some(known) = known else {
        return false;
    };
    env.read_datagram(known, &mut work.fragment.datagram);
    !is_over(work.fragment.datagram.seen, work.now)
}

/// Returns whether a time is [`LIFE`] ago.
#[inline(always)]
const fn is_over(seen: u32, now: u32) -> bool {
    now.wrapping_sub(seen) > LIFE
}

/// Starts the state of another datagram.
#[inline(always)]
fn restart(datagram: &mut Datagram, now: u32) {
    *datagram = Datagram::default();
    datagram.seen = now;
}

/// Writes the state of the datagram. For a first fragment, returns the fragments that wait for it.
#[inline(always)]
fn update_store<E: FragmentStore>(
    env: &mut E,
    work: &mut Work,
    known: Option<E::DatagramRef>,
    is_alive: bool,
) -> u64 {
    let is_first = work.headers.fragment == Fragment::First;
    let Some(known) = known else {
        insert(env, &mut work.fragment);
        return 0;
    };
    env.write_datagram(known, &work.fragment.datagram);
    if !is_alive {
        // Their datagram has expired.
        env.take_held(known, u64::MAX);
        return 0;
    }
    // After the ports are written: see `hold`.
    if is_first && work.fragment.datagram.flags & DatagramFlags::REFUSED == 0 {
        env.take_held(known, u64::MAX)
    } else {
        0
    }
}

/// Returns the range of a fragment. All fragments but the last have a multiple of 8 bytes, none is
/// empty, and none ends behind the longest datagram. Drops a later fragment that begins within the
/// transport header of the first one: it could replace the fields behind the ports (RFC 1858, RFC
/// 3128).
#[inline(always)]
fn range(headers: &Headers) -> Decision<FragmentRange> {
    let data = if headers.version == 6 {
        headers.fragment_header + FRAGMENT_HEADER
    } else {
        headers.l4
    };
    let length = headers.end.saturating_sub(data);
    let end = headers.fragment_start + length.div_ceil(8);
    let is_cut = headers.fragment_is_last == 0 && length % 8 != 0;
    if length == 0 || is_cut || end > MOST_UNITS {
        return Err(DropReason::Malformed);
    }
    let header = match headers.tuple.protocol {
        protocol::TCP => TCP_HEADER,
        protocol::SCTP => SCTP_HEADER,
        _ => 0,
    };
    if headers.fragment == Fragment::Later && headers.fragment_start * 8 < header {
        return Err(DropReason::OverlappingFragment);
    }
    Ok(FragmentRange {
        start: (headers.fragment_start & 0xffff) as u16,
        end: (end & 0xffff) as u16,
    })
}

/// Updates the state of a datagram for one of its fragments. Drops fragments that overlap, unless
/// there is no range to check.
#[inline(always)]
fn update(
    datagram: &mut Datagram,
    headers: &Headers,
    range: Option<FragmentRange>,
    now: u32,
) -> Decision<()> {
    let is_first = headers.fragment == Fragment::First;
    let differs = datagram.flags & DatagramFlags::PORTS != 0
        && (datagram.source_port != headers.tuple.source_port
            || datagram.destination_port != headers.tuple.destination_port);
    // The sender uses the identification again.
    let is_next = if range.is_some() {
        datagram.flags & DatagramFlags::COMPLETE != 0
    } else {
        differs
    };
    if is_first && is_next {
        restart(datagram, now);
    } else if datagram.flags & DatagramFlags::REFUSED != 0 {
        return Err(DropReason::OverlappingFragment);
    } else if is_first && differs {
        datagram.flags |= DatagramFlags::REFUSED;
        return Err(DropReason::OverlappingFragment);
    }
    if is_first {
        datagram.source_port = headers.tuple.source_port;
        datagram.destination_port = headers.tuple.destination_port;
        datagram.flags |= DatagramFlags::PORTS;
    }
    let Some(range) = range else {
        return Ok(());
    };
    let added = add_range(datagram, range, headers.fragment_is_last != 0);
    if added.is_err() {
        datagram.flags |= DatagramFlags::REFUSED;
    }
    added
}

/// Adds a fragment's range to those that were seen. A range within one of them is a duplicate: the
/// receiver keeps the first copy, as Linux does (`inet_frag_queue_insert`). A range that overlaps
/// one of them in part is dropped (RFC 5722).
#[inline(always)]
fn add_range(datagram: &mut Datagram, range: FragmentRange, is_last: bool) -> Decision<()> {
    let FragmentRange { mut start, mut end } = range;
    if is_last && datagram.units == 0 {
        datagram.units = u32::from(end);
    }
    if datagram.units != 0
        && (u32::from(end) > datagram.units || (is_last && u32::from(end) != datagram.units))
    {
        return Err(DropReason::OverlappingFragment);
    }
    let mut index = 0;
    while let Some(range) = range_at(datagram, index) {
        if range.start <= start && end <= range.end {
            return Ok(());
        }
        if range.start < end && start < range.end {
            return Err(DropReason::OverlappingFragment);
        }
        index += 1;
    }
    // Each loop ends with the same state, whatever it has found: the verifier walks their sum, not
    // their product.
    index = 0;
    while let Some(range) = range_at(datagram, index) {
        if range.end == start {
            start = range.start;
            remove_range(datagram, index);
            break;
        }
        index += 1;
    }
    index = 0;
    while let Some(range) = range_at(datagram, index) {
        if range.start == end {
            end = range.end;
            remove_range(datagram, index);
            break;
        }
        index += 1;
    }
    if start == 0 && u32::from(end) == datagram.units {
        datagram.flags |= DatagramFlags::COMPLETE;
    }
    // With no place left, the fragment passes: the receiver checks it as well.
    let used = datagram.used as usize;
    if let Some(place) = datagram.ranges.get_mut(used) {
        *place = FragmentRange { start, end };
        datagram.used += 1;
    }
    Ok(())
}

/// Returns a range that was seen. The number of used ranges is no constant, so that the compiler
/// does not unroll loops over them: that would need more of the stack than there is.
#[inline(always)]
fn range_at(datagram: &Datagram, index: usize) -> Option<FragmentRange> {
    if index >= datagram.used as usize {
        return None;
    }
    datagram.ranges.get(index).copied()
}

/// Replaces a range by the last one.
#[inline(always)]
fn remove_range(datagram: &mut Datagram, index: usize) {
    let last = datagram.used.saturating_sub(1) as usize;
    let Some(moved) = datagram.ranges.get(last).copied() else {
        return;
    };
    if let Some(range) = datagram.ranges.get_mut(index) {
        *range = moved;
        datagram.used = last as u32;
    }
}

/// Holds the packet until the first fragment of its datagram arrives. Returns whether it is held,
/// or has been taken by the first fragment already.
///
/// The place of a fragment that still waits is taken over if it is the oldest of the share: that
/// fragment is counted as dropped.
#[inline(always)]
pub(crate) fn hold<E: Packet + Node + FragmentStore>(env: &mut E, work: &mut Work) -> bool {
    let share = held_share(work.fragment.key.share);
    let Some(number) = env.next_held(share) else {
        return false;
    };
    let place = (number & u64::from(RING - 1)) as u16;
    work.fragment.place = HeldKey {
        share,
        place,
        part: 0,
    };
    drop_held(env, work);
    let held = &mut work.fragment.held;
    held.datagram = work.fragment.key;
    held.length = env.len();
    held.seen = work.now;
    held.pod = work.pod;
    if !env.hold(&work.fragment.place, &work.fragment.held) {
        return false;
    }
    let Some(datagram) = env.datagram(&work.fragment.key) else {
        env.remove_held(&work.fragment.place);
        return false;
    };
    let bit = 1 << place;
    env.set_held(datagram, bit);
    // Another CPU may have processed the first fragment meanwhile. It has written the ports before
    // it took the held fragments: one of the two has this one.
    env.read_datagram(datagram, &mut work.fragment.datagram);
    if work.fragment.datagram.flags & DatagramFlags::PORTS == 0 || env.take_held(datagram, bit) == 0
    {
        return true;
    }
    env.remove_held(&work.fragment.place);
    env.reinject();
    true
}

/// Drops the fragment that is held in [`FragmentWork::place`], and counts that.
#[inline(always)]
fn drop_held<E: Node + FragmentStore>(env: &mut E, work: &mut Work) {
    let Some(held) = env.held(&work.fragment.place) else {
        return;
    };
    work.fragment.held = *held;
    env.remove_held(&work.fragment.place);
    count_lost(env, &work.fragment.held);
}

/// Counts a held fragment whose first one has not arrived.
#[inline(always)]
pub fn count_lost<E: Node>(env: &mut E, held: &HeldHeader) {
    let direction = if held.datagram.share & Share::OUTSIDE == 0 {
        Direction::Egress
    } else {
        Direction::Ingress
    };
    let reason = DropReason::FragmentWithoutFirst;
    env.count_dropped(reason, held.pod, direction, held.length);
}

/// Returns whether a held fragment has expired.
#[inline(always)]
pub const fn has_expired(held: &HeldHeader, now: u32) -> bool {
    is_over(held.seen, now)
}

/// Returns the share of held fragments that belongs to one of datagrams: there are fewer of those
/// from outside.
#[inline(always)]
const fn held_share(share: u32) -> u32 {
    if share & Share::OUTSIDE == 0 {
        share
    } else {
        share & (Share::OUTSIDE | (Share::OUTSIDE_HELD - 1))
    }
}

/// Sends the first fragment through the hook again, and those that have waited for it behind it.
#[inline(always)]
pub(crate) fn release<E: Packet + Node + FragmentStore>(env: &mut E, work: &mut Work) {
    env.reinject();
    let share = held_share(work.fragment.key.share);
    for place in 0..RING {
        if work.fragment.datagram.held >> place & 1 == 0 {
            continue;
        }
        work.fragment.place = HeldKey {
            share,
            place: (place & 0xffff) as u16,
            part: 0,
        };
        let Some(held) = env.held(&work.fragment.place) else {
            continue;
        };
        // The place may have been taken over.
        if held.datagram != work.fragment.key {
            continue;
        }
        work.fragment.held = *held;
        if env.restore(&work.fragment.place) {
            env.reinject();
        } else {
            count_lost(env, &work.fragment.held);
        }
        env.remove_held(&work.fragment.place);
    }
}

/// Gives a fragment that leaves with another source address, or the node's own, an identification
/// that no other datagram from there to its destination has. Its own one, if that is free.
#[inline(always)]
pub(crate) fn identify<E: Packet + Node + FragmentStore>(
    env: &mut E,
    work: &mut Work,
) -> Decision<()> {
    let share = work.fragment.key.share;
    let is_node = share & Share::NODE != 0;
    if share == 0 || (!is_node && work.translated.source == work.headers.tuple.source) {
        return Ok(());
    }
    if work.fragment.datagram.flags & DatagramFlags::IDENTIFIED == 0 {
        work.fragment.datagram.identification = reserve(env, work);
        work.fragment.datagram.flags |= DatagramFlags::IDENTIFIED;
        if let Some(datagram) = env.datagram(&work.fragment.key) {
            env.write_datagram(datagram, &work.fragment.datagram);
        }
    }
    let identification = work.fragment.datagram.identification;
    if identification == work.headers.identification {
        return Ok(());
    }
    rewrite::identification(env, &work.headers, identification)
}

/// Reserves an identification for the datagram. All CPUs try the same ones in the same order. Where
/// none is free, which takes tens of thousands of datagrams in [`LIFE`], returns the last one.
#[inline(always)]
fn reserve<E: FragmentStore>(env: &mut E, work: &Work) -> u32 {
    let owner = owner(&work.fragment.key);
    let mut identification = work.headers.identification;
    for attempt in 0..TRIES {
        if attempt > 0 {
            let other = mixed(owner, [attempt, 0, 0, 0]);
            identification = if work.headers.version == 6 {
                other
            } else {
                other & 0xffff
            };
        }
        if try_reserve(env, work, identification, owner) {
            break;
        }
    }
    identification
}

/// Reserves one identification; returns false where another datagram has it.
#[inline(always)]
fn try_reserve<E: FragmentStore>(
    env: &mut E,
    work: &Work,
    identification: u32,
    owner: u32,
) -> bool {
    let to = &work.translated;
    let outgoing = mixed(0, to.source.words());
    let outgoing = mixed(outgoing, to.destination.words());
    let protocol = u32::from(to.protocol);
    let index = mixed(outgoing, [identification, protocol, 0, 0]);
    let index = index & (maps::IDENTIFICATIONS_CAPACITY - 1);
    let old = env.identification(index);
    let (other, seen) = ((old >> 32) as u32, (old & 0xffff_ffff) as u32);
    if old != 0 && other != owner && !is_over(seen, work.now) {
        return false;
    }
    let new = u64::from(owner) << 32 | u64::from(work.now);
    old == new || env.replace_identification(index, old, new)
}

/// Returns a hash of a datagram's key.
#[inline(always)]
fn owner(key: &FragmentKey) -> u32 {
    let hash = mixed(key.share, key.source.words());
    let hash = mixed(hash, key.destination.words());
    mixed(hash, [key.identification, u32::from(key.protocol), 0, 0])
}

/// Adds four words to a hash: a multiplication and a shift for each word, as in Murmur hashes.
#[inline(always)]
const fn mixed(hash: u32, words: [u32; 4]) -> u32 {
    let [a, b, c, d] = words;
    mixed_word(mixed_word(mixed_word(mixed_word(hash, a), b), c), d)
}

#[inline(always)]
const fn mixed_word(hash: u32, word: u32) -> u32 {
    let hash = (hash ^ word).wrapping_mul(0x85eb_ca6b);
    (hash ^ hash >> 15).wrapping_mul(0xc2b2_ae35) ^ hash >> 13
}

#[cfg(test)]
mod tests;
