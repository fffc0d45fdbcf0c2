//! How much senders that are far away, and that nobody on this node can pace, may have under way to a pod: as much as its
//! limit lets through in a round trip. The pod's own sockets tell them, by the windows that they advertise.

use abi::{Address, Direction};

use super::Shaper;
use super::pace::{LimitDebt, STEPS};
use crate::node::Node;

/// The widest window that there is, in bytes: 65,535 by the largest scale (RFC 7323, 2.3), rounded.
pub const WIDEST: u32 = 1 << 30;

/// Round trips shorter than this, in microseconds, are no measure: the window of one would be smaller than a packet, and
/// who waits for a processor takes longer.
const NEAR: u32 = 2_000;
/// Longer ones are taken for this.
const FARTHEST: u32 = 2_000_000;
/// Bits per second: no window is wide enough for more.
const FASTEST: u64 = 1_000_000_000_000;

/// How many bytes `remote` may have under way to the socket of `local`, if a limit of the pod counts between them.
/// `round_trip` is in microseconds. No less than `least`: four of its packets, since what is left of a window goes as a small
/// packet of its own.
///
/// As many as it likes while hardly anything is owed: then it is not the limit that matters. Where little is, four times
/// of what is under way at the rate: round trips become longer than they were when the connection was made.
#[inline(always)]
pub fn window_of<E: Node + Shaper>(
    node: &mut E,
    local: &Address,
    remote: &Address,
    round_trip: u32,
    least: u32,
) -> Option<u32> {
    if round_trip < NEAR {
        return None;
    }
    let limit = LimitDebt::of(node, local, Direction::Ingress, remote)?;
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
    let under_way = rate / 8 * u64::from(round_trip) / 1_000_000;
    let window = limit.share(under_way, 2 * STEPS);
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
