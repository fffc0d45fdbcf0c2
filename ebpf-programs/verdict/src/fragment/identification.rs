//! Identifications of datagrams that leave with another source address. See decision 93.

use abi::{DatagramFlags, FragmentKey, Share, maps};

use super::is_over;
use super::share::mixed;
use crate::fragment_store::FragmentStore;
use crate::node::Node;
use crate::outcome::Decision;
use crate::packet::Packet;
use crate::rewrite;
use crate::work::Work;

/// Identifications that are tried for a datagram.
const TRIES: u32 = 8;

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
/// none is free, which takes tens of thousands of datagrams in [`super::LIFE`], returns the last
/// one.
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
    let index = index & (maps::IDENTIFICATIONS.capacity - 1);
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
