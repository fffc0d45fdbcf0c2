//! The silence after a loss: a TCP connection that has lost a packet to a limit loses all that
//! follow for a moment.
//!
//! A nearby sender that is not paced retransmits lost packets within a millisecond. Each one that
//! gets through by chance tells it to go on: thousands of small packets per second, one in ten of
//! them lost. Without any answer it waits for its retransmission timer (200 ms with Linux), and
//! returns to a bucket with room for packets of full size. It gets the same rate: what it does not
//! use meanwhile is available afterwards.
//!
//! Datagrams are not silenced: their senders need not wait after a loss.

use abi::{Limit, TICKS};

use super::{Bucket, FLOW_UNIT};

/// Longest silence in ticks: more than two round trips of nearby senders plus the wait before TCP's
/// tail loss probe, and much less than TCP's timer.
const LONGEST: u64 = 32_000_000 * TICKS;
/// Divisor of the burst: the share that a silence may last. In a whole burst's time the
/// bucket would be full before the end, and rate be lost.
const SHARE: u64 = 8;

/// Returns the length of a silence in ticks.
#[inline(always)]
pub(super) const fn length(limit: &Limit) -> u64 {
    let share = limit.allowance / SHARE;
    if share < LONGEST { share } else { LONGEST }
}

/// Returns whether all packets of a flow are to be dropped. Use only while the bucket is nearly
/// exhausted: the times have 32 bits, which wrap after an hour.
#[inline(always)]
pub(super) fn is_active(bucket: &impl Bucket, limit: &Limit, now: u64, hash: u32) -> bool {
    let ahead = bucket.silent_until(hash).wrapping_sub(units(now));
    ahead != 0 && ahead <= units(length(limit))
}

/// Starts the silence of a connection that has lost a packet. An active silence is not prolonged: a
/// sender that never stops would be silenced forever.
#[inline(always)]
pub(super) fn start(bucket: &impl Bucket, limit: &Limit, now: u64, hash: u32) {
    if !is_active(bucket, limit, now, hash) {
        let until = units(now).wrapping_add(units(length(limit)));
        bucket.set_silent_until(hash, until);
    }
}

/// Returns a time in units of 2^[`FLOW_UNIT`] ticks.
#[inline(always)]
const fn units(ticks: u64) -> u32 {
    ((ticks >> FLOW_UNIT) & 0xffff_ffff) as u32
}
