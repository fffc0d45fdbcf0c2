//! Pacing rates of local TCP senders, so that the bucket has nothing to drop.

use abi::{Address, Direction, Limit, LimitFlags, TICKS};

use super::{Bucket as _, Shaper, clamp_time, max_debt};
use crate::node::Node;

/// The pacing rate of a socket that is not paced (`SO_MAX_PACING_RATE`).
pub const UNPACED: u32 = u32::MAX;

/// Lowest pacing rate of one sender, in bits per second: a large packet every twentieth of a
/// second. Slower senders would not measure a round trip in time to follow a change of the debt.
const SLOWEST: u64 = (64 << 10) * 8 * 20;

/// Which limits a sender is paced by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// All limits on its path.
    ByAll,
    /// Limits that are in debt. Until then a sender may use the burst: a short reply leaves at
    /// once, and the congestion window grows large enough for large packets, which it does not
    /// while a sender is paced.
    ByThoseInDebt,
}

/// Returns the payload bytes per second that the limits between two addresses allow a sender;
/// [`UNPACED`] where there are none.
#[inline(always)]
pub fn pacing_rate<E: Node + Shaper>(
    node: &mut E,
    local: &Address,
    remote: &Address,
    pacing: Pacing,
) -> u32 {
    let own = limit_rate(node, local, Direction::Egress, remote, pacing);
    let other = limit_rate(node, remote, Direction::Ingress, local, pacing);
    if own < other { own } else { other }
}

/// Returns what the limit of the pod with this address allows, towards that peer.
#[inline(always)]
fn limit_rate<E: Node + Shaper>(
    node: &mut E,
    address: &Address,
    direction: Direction,
    peer: &Address,
    pacing: Pacing,
) -> u32 {
    let Some(limit) = LimitDebt::lookup(node, address, direction, peer) else {
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
    // The bucket counts headers, and a socket's rate does not: of 1500 bytes 1448 are payload, or
    // 1428.
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

/// Steps of [`LimitDebt::share`], in parts of the debt.
pub(super) const STEPS: u64 = 32;

/// A limit that applies between a pod and a peer, and its bucket's debt.
pub(super) struct LimitDebt {
    /// Rate in bits per second.
    pub(super) rate: u64,
    /// The bucket's debt in ticks.
    debt: u64,
    /// Debt in ticks that needs no reaction.
    tolerated: u64,
}

impl LimitDebt {
    /// Returns the limit of the pod with this address, if it applies to that peer.
    #[inline(always)]
    pub(super) fn lookup<E: Node + Shaper>(
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

    /// Returns whether the debt is so small that the limit is not in use.
    #[inline(always)]
    pub(super) const fn is_idle(&self) -> bool {
        self.debt <= self.tolerated / 8
    }

    /// Returns the share of `whole` for each of several senders, whose number is unknown. All of
    /// `whole` at the tolerated debt, and less the larger the debt is beyond it. So the debt
    /// settles where all together send at the rate: with four senders before packets are marked,
    /// with sixteen before one is dropped. At a smaller debt, up to the square of `most` steps
    /// more. In steps, so that socket options are seldom set.
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

/// Returns the bucket's debt in ticks.
#[inline(always)]
fn debt<E: Shaper>(node: &mut E, pod: u32, direction: Direction, limit: &Limit) -> u64 {
    let now = node.clock().saturating_mul(TICKS);
    match node.bucket(pod, direction) {
        Some(bucket) => clamp_time(bucket.paid_at(), now, max_debt(limit)) - now,
        None => 0,
    }
}

/// Returns the new pacing rate of a socket that has the rate `now`, was set to `ours` by us, and is
/// to send no faster than `limit`. A rate that is not ours was set by the socket's owner, and is an
/// upper bound.
#[inline(always)]
pub const fn merge_pacing_rate(now: u32, ours: Option<u32>, limit: u32) -> u32 {
    let requested = match ours {
        Some(ours) if ours == now => UNPACED,
        _ => now,
    };
    if limit < requested { limit } else { requested }
}
