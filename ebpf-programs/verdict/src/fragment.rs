//! Fragments of IP datagrams: ports for the later ones, order, overlaps, identification.
//!
//! The first fragment stores its ports for the later ones. A later one that arrives earlier is held
//! until the first one arrives; both then enter the hook again, in order. See decision 92 for the
//! order and the shares of the tables, decision 93 for the identification.

mod hold;
mod identification;
mod ports;
mod range;
mod share;

use abi::{Datagram, DatagramFlags, DropReason, FragmentKey, FragmentRange, HeldHeader, HeldKey};

use crate::fragment_store::FragmentStore;
use crate::node::Node;
use crate::outcome::Decision;
use crate::work::{Content, Fragment, Hook, Transport, Work};

pub use hold::{count_lost, has_expired};
pub(crate) use hold::{hold, release};
pub(crate) use identification::identify;
pub(crate) use ports::{find_ports, store, store_translated};

/// Seconds for which a datagram and its identification are kept: the kernel's reassembly waits as
/// long (`net.ipv4.ipfrag_time`).
const LIFE: u32 = 30;

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
    /// The fragment's range.
    pub range: FragmentRange,
    /// Whether the datagram has state that has not expired; 0 or 1.
    pub is_alive: u32,
    /// Whether the state is that of a complete datagram, and the fragment of the next one; 0 or 1.
    pub is_ahead: u32,
    /// The held fragment.
    pub held: HeldHeader,
    /// Its place.
    pub place: HeldKey,
}

/// Looks up the state of a fragment's datagram, or starts one. Returns [`Content::Fragment`], or
/// another content where the datagram has no state.
///
/// Comes after the sender check: a packet that is dropped there changes no state. The stages
/// [`update`] and [`finish`] follow; the verifier walks the sum of their paths, not the product.
#[inline(always)]
pub(crate) fn find<E: Node + FragmentStore>(
    env: &mut E,
    work: &mut Work,
    hook: Hook,
) -> Decision<Content> {
    work.fragment.range = range::range(&work.headers)?;
    share::set_key(env, work, hook);
    if work.fragment.key.share == 0 {
        let has_ports = work.headers.fragment == Fragment::First
            || work.headers.transport == Transport::Portless;
        return Ok(if has_ports { Content::Ip } else { lost(work) });
    }
    let known = env.datagram(&work.fragment.key);
    work.fragment.is_ahead = 0;
    work.fragment.is_alive = u32::from(read(env, work, known));
    if work.fragment.is_alive == 0 {
        restart(&mut work.fragment.datagram, work.now);
    }
    Ok(Content::Fragment)
}

/// Writes the state of a fragment's datagram, and fills in the ports of a later fragment. Returns
/// [`Content::EarlyFragment`] where the fragment must wait for the first one, and
/// [`Content::AwaitedFragment`] where it is the first one, and others wait for it.
#[inline(always)]
pub(crate) fn finish<E: Node + FragmentStore>(env: &mut E, work: &mut Work, hook: Hook) -> Content {
    let waiting = write(env, work, hook);
    if work.headers.fragment == Fragment::First {
        work.fragment.datagram.held = waiting;
        return if waiting == 0 {
            Content::Ip
        } else {
            Content::AwaitedFragment
        };
    }
    if work.headers.transport == Transport::Portless {
        return Content::Ip;
    }
    if work.fragment.datagram.flags & DatagramFlags::PORTS == 0 || work.fragment.is_ahead != 0 {
        return if hold::is_held(env, work, hook) {
            Content::EarlyFragment
        } else {
            lost(work)
        };
    }
    ports::fill_ports(&work.fragment.datagram, &mut work.headers);
    Content::Ip
}

/// Returns the content of a fragment without ports. Unknown whether it belongs to a request or a
/// reply: treated as a packet without ports.
#[inline(always)]
fn lost(work: &mut Work) -> Content {
    work.headers.transport = Transport::Portless;
    Content::LostFragment
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

/// Writes the state of the datagram. For a first fragment, returns the fragments that wait for it:
/// none at the uplink's egress, where they are of the next datagram with its identification.
#[inline(always)]
fn write<E: FragmentStore>(env: &mut E, work: &mut Work, hook: Hook) -> u64 {
    let Some(known) = env.datagram(&work.fragment.key) else {
        insert(env, &mut work.fragment);
        return 0;
    };
    env.write_datagram(known, &work.fragment.datagram);
    // After the ports are written: see `hold`.
    let is_first = work.headers.fragment == Fragment::First
        && work.fragment.datagram.flags & DatagramFlags::REFUSED == 0;
    if hook == Hook::UplinkOut || (!is_first && work.fragment.is_alive != 0) {
        return 0;
    }
    let waiting = env.take_held(known, u64::MAX);
    // Those of an expired datagram are not for this fragment.
    if work.fragment.is_alive == 0 {
        0
    } else {
        waiting
    }
}

/// Updates the copied state of a datagram for one of its fragments. Drops fragments that overlap.
///
/// `has_order` is false at the uplink's egress: the ingress hooks have checked the fragment, and
/// the node's own stack may have fragmented it again.
#[inline(always)]
pub(crate) fn update(work: &mut Work, has_order: bool) -> Decision<()> {
    let (datagram, headers) = (&mut work.fragment.datagram, &work.headers);
    let is_first = headers.fragment == Fragment::First;
    let is_last = headers.fragment_is_last != 0;
    let differs = datagram.flags & DatagramFlags::PORTS != 0
        && (datagram.source_port != headers.tuple.source_port
            || datagram.destination_port != headers.tuple.destination_port);
    // The receiver has forgotten a complete datagram: whatever follows is of the next one with its
    // identification.
    let follows = has_order && datagram.flags & DatagramFlags::COMPLETE != 0;
    if follows && !is_first && headers.transport != Transport::Portless {
        // Waits for its own first fragment. Fragments of the complete one may still be on the way
        // to the uplink, so that one's state stays.
        datagram.seen = work.now;
        work.fragment.is_ahead = 1;
        return Ok(());
    }
    let is_next = follows || (!has_order && is_first && differs);
    if is_next {
        restart(datagram, work.now);
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
    if !has_order {
        return Ok(());
    }
    let added = range::add_range(datagram, work.fragment.range, is_last);
    if added.is_err() {
        datagram.flags |= DatagramFlags::REFUSED;
    }
    added
}

#[cfg(test)]
mod tests;
