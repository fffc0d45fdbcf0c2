//! A TCP connection that has lost a packet to a limit loses all that follow for a moment.
//!
//! A sender that is near and that nobody paces has sent its lost packets again before a millisecond is over, and learns
//! from each that gets through by chance that it may go on: thousands of small packets in each second, one in ten of them
//! lost. Without any answer it waits for its timer, 200 ms with Linux, and comes back to a bucket with room for packets as
//! large as it likes. It gets the same rate, since what it does not take meanwhile is there for it afterwards.
//!
//! Datagrams are left alone: nobody says that who sends them would wait.

use abi::{Limit, TICKS};

use super::{Bucket, FLOW_UNIT};

/// Longest silence: more than two round trips to those who are near and the wait before TCP's probe for a lost tail, much
/// less than its timer.
const LONGEST: u64 = 32_000_000 * TICKS;
/// Parts of the burst that a silence may take: one in so many. In a whole one the bucket would be full before its end, and
/// rate be lost.
const SHARE: u64 = 8;

/// Ticks that a silence lasts.
#[inline(always)]
pub(super) const fn length(limit: &Limit) -> u64 {
    let share = limit.allowance / SHARE;
    if share < LONGEST { share } else { LONGEST }
}

/// Whether a flow is to lose whatever it sends. Of use only while the bucket is nearly exhausted: the times are short
/// numbers, which come round after an hour.
#[inline(always)]
pub(super) fn is_active(bucket: &impl Bucket, limit: &Limit, now: u64, hash: u32) -> bool {
    let ahead = bucket.silent_until(hash).wrapping_sub(units(now));
    ahead != 0 && ahead <= units(length(limit))
}

/// A connection has lost a packet. One that is silent already is not silenced for longer: whoever never stops sending
/// would never be heard again.
#[inline(always)]
pub(super) fn start(bucket: &impl Bucket, limit: &Limit, now: u64, hash: u32) {
    if !is_active(bucket, limit, now, hash) {
        let until = units(now).wrapping_add(units(length(limit)));
        bucket.set_silent_until(hash, until);
    }
}

#[inline(always)]
const fn units(ticks: u64) -> u32 {
    ((ticks >> FLOW_UNIT) & 0xffff_ffff) as u32
}
