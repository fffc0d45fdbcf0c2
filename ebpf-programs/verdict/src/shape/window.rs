//! Receive windows of rate-limited pods, for distant senders that this node cannot pace.
//!
//! A distant sender may have as much data in flight to a pod as the pod's limit lets through in a
//! round trip. The pod's own sockets announce it, by the windows that they advertise.

use abi::{Address, Direction};

use super::Shaper;
use super::pace::{LimitDebt, STEPS};
use crate::node::Node;

/// The largest window in bytes: 65,535 with the largest scale (RFC 7323, 2.3), rounded.
pub const WIDEST: u32 = 1 << 30;

/// Shorter round trips, in microseconds, are not used: the window of one would be smaller than a
/// packet, and scheduling delays exceed it.
const NEAR: u32 = 2_000;
/// Longest round trip in microseconds; longer ones are clamped.
const FARTHEST: u32 = 2_000_000;
/// Highest rate in bits per second: no window is large enough for more.
const FASTEST: u64 = 1_000_000_000_000;

/// Returns how many bytes `remote` may have in flight to the socket of `local`, if a limit of the
/// pod applies between them. `round_trip` is in microseconds. Never less than `least`, four of the
/// sender's packets: the rest of a window is sent as a small packet of its own.
///
/// [`WIDEST`] at hardly any debt: then the limit is not the bottleneck. At a small debt, four times
/// the data in flight at the rate: round trips become longer than they were when the connection was
/// established.
#[inline(always)]
pub fn window_limit<E: Node + Shaper>(
    node: &mut E,
    local: &Address,
    remote: &Address,
    round_trip: u32,
    least: u32,
) -> Option<u32> {
    if round_trip < NEAR {
        return None;
    }
    let limit = LimitDebt::lookup(node, local, Direction::Ingress, remote)?;
    if limit.is_idle() {
        return Some(WIDEST);
    }
    let round_trip = if round_trip > FARTHEST {
        FARTHEST
    } else {
        round_trip
    };
    let rate = if limit.rate > FASTEST {
        FASTEST
    } else {
        limit.rate
    };
    let in_flight = rate / 8 * u64::from(round_trip) / 1_000_000;
    let window = limit.share(in_flight, 2 * STEPS);
    Some(if window < u64::from(least) {
        least
    } else if window > u64::from(WIDEST) {
        WIDEST
    } else {
        (window & 0xffff_ffff) as u32
    })
}

#[cfg(test)]
mod tests;
