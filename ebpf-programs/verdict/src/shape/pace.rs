//! How fast senders are told to send, so that the bucket has nothing to drop.

use abi::{Address, Direction, Limit, LimitFlags, TICKS};

use super::{Bucket as _, Shaper, max_debt, clamp_time};
use crate::node::Node;

/// What a socket is told that nobody paces.
pub const UNPACED: u32 = u32::MAX;

/// The least that a sender's part of a limit is, in bits per second: a large packet in each twentieth of a second. Slower
/// ones would not be there to hear that the debt has changed.
const SLOWEST: u64 = (64 << 10) * 8 * 20;

/// Which limits a sender is paced by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// All on its way.
    ByAll,
    /// Those that have lent some of their burst already. Until then a sender may use it: a short answer goes at once, and
    /// the congestion window grows large enough for large packets, which it does not on a sender that is paced.
    ByThoseInDebt,
}

/// How many bytes of payload per second the limits on the way between two addresses allow a sender; [`UNPACED`] where
/// there are none.
#[inline(always)]
pub fn pace_of<E: Node + Shaper>(
    node: &mut E,
    local: &Address,
    remote: &Address,
    pacing: Pacing,
) -> u32 {
    let own = pace_by(node, local, Direction::Egress, remote, pacing);
    let other = pace_by(node, remote, Direction::Ingress, local, pacing);
    if own < other { own } else { other }
}

/// What the limit of whoever has the address allows, with that peer.
#[inline(always)]
fn pace_by<E: Node + Shaper>(
    node: &mut E,
    address: &Address,
    direction: Direction,
    peer: &Address,
    pacing: Pacing,
) -> u32 {
    let Some(limit) = LimitDebt::of(node, address, direction, peer) else {
        return UNPACED;
    };
    if pacing == Pacing::ByThoseInDebt && limit.debt <= limit.tolerated {
        return UNPACED;
    }
    let share = limit.share(limit.rate, STEPS);
    let slowest = if limit.rate < SLOWEST {
        limit.rate
    } else {
        SLOWEST
    };
    let rate = if share < slowest { slowest } else { share };
    // Headers are counted, and a socket does not know them: of 1500 bytes 1448 are payload, or 1428.
    let percent = if address.is_v4() { 96 } else { 95 };
    let bytes = rate / 800 * percent;
    if bytes >= u64::from(UNPACED) {
        UNPACED - 1
    } else if bytes == 0 {
        1
    } else {
        (bytes & 0xffff_ffff) as u32
    }
}

/// Parts that [`LimitDebt::share`] is counted in, of the debt.
pub(super) const STEPS: u64 = 32;

/// A limit that counts between a pod and a peer, and what it has lent.
pub(super) struct LimitDebt {
    /// Bits per second.
    pub(super) rate: u64,
    /// Ticks that the bucket is in debt.
    debt: u64,
    /// Ticks of debt that nobody minds.
    tolerated: u64,
}

impl LimitDebt {
    /// Of whoever has the address, with that peer.
    #[inline(always)]
    pub(super) fn of<E: Node + Shaper>(
        node: &mut E,
        address: &Address,
        direction: Direction,
        peer: &Address,
    ) -> Option<Self> {
        let pod = node.endpoint(address)?.pod;
        let limit = match node.limit(pod, direction) {
            Some(limit) if limit.price != 0 => *limit,
            _ => return None,
        };
        let only = limit.flags & LimitFlags::ONLY_SUBNETS != 0;
        if limit.flags != 0 && node.is_shaped_subnet(pod, limit.generation, peer) != only {
            return None;
        }
        Some(Self {
            rate: limit.rate,
            debt: debt(node, pod, direction, &limit),
            tolerated: limit.mark / 2,
        })
    }

    /// Whether so little is owed that nobody can be said to use the limit up.
    #[inline(always)]
    pub(super) const fn is_idle(&self) -> bool {
        self.debt <= self.tolerated / 8
    }

    /// What each of several senders is to have of `whole`. Nobody counts them: all while as much is owed as nobody minds,
    /// and less the more is owed beyond, so the debt comes to rest where all together send at the rate: with four of
    /// them before packets are marked, with sixteen before one is dropped. While less is owed, up to the square of
    /// `most` steps more. In steps, so that sockets are seldom told.
    #[inline(always)]
    pub(super) const fn share(&self, whole: u64, most: u64) -> u64 {
        const LEAST: u64 = STEPS / 4;
        if self.debt <= self.tolerated * STEPS / most {
            return whole * (most * most) / (STEPS * STEPS);
        }
        let part = self.tolerated * STEPS / self.debt;
        let part = if part < LEAST { LEAST } else { part };
        whole * (part * part) / (STEPS * STEPS)
    }
}

/// Ticks that the bucket is in debt.
#[inline(always)]
fn debt<E: Shaper>(node: &mut E, pod: u32, direction: Direction, limit: &Limit) -> u64 {
    let now = node.clock().saturating_mul(TICKS);
    match node.bucket(pod, direction) {
        Some(bucket) => clamp_time(bucket.paid_at(), now, max_debt(limit)) - now,
        None => 0,
    }
}

/// The pace of a socket that has `now`, was told `ours` by us, and is to send no faster than `limit`. A pace that is not
/// ours is its owner's wish.
#[inline(always)]
pub const fn pace_with(now: u32, ours: Option<u32>, limit: u32) -> u32 {
    let requested = match ours {
        Some(ours) if ours == now => UNPACED,
        _ => now,
    };
    if limit < requested { limit } else { requested }
}
