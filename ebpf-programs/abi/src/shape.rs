//! Limits of a pod's traffic, and the buckets that enforce them: one of each for each pod and direction.
//!
//! Time in here is in ticks of a sixteenth of a nanosecond, so that the price of a small packet is exact enough at
//! hundreds of gigabits. A bucket is one number: the time at which everything that it let through will have been paid
//! for at the limit's rate. How far that is ahead of the clock is the debt.

use crate::Address;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Ticks in a nanosecond.
pub const TICKS: u64 = 16;
/// Prefixes of peers that a pod's limits may be, or may not be, for.
pub const SUBNETS_OF_POD: u32 = 16;
/// Counters by flow in a [`Bucket`].
pub const FLOWS_OF_BUCKET: usize = 128;

const SECOND: u128 = 1_000_000_000 * TICKS as u128;
const MILLISECOND: u64 = 1_000_000 * TICKS;
/// Bytes that wait together at most: a packet that is cut up later.
const LARGEST: u32 = 64 << 10;
/// Times longer than this, a year, are as good as any other.
const LONGEST: u64 = 365 * 24 * 3_600 * 1_000 * MILLISECOND;

/// How much a pod may send or receive; index in the table: `slot * 2 + direction`. All zeros: as much as it likes.
/// 64 bytes.
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Debug,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(C)]
pub struct Limit {
    /// What a byte costs: a multiplier, and in the lowest 8 bits how far a product is shifted to the right. In one
    /// number, so that nobody ever reads the half of it. 0: nothing is limited.
    pub price: u64,
    /// Bits per second.
    pub rate: u64,
    /// Bytes that may pass at once.
    pub burst: u64,
    /// Ticks of debt up to which any packet passes: the burst.
    pub allowance: u64,
    /// Ticks of debt beyond that, up to which packets of thin flows pass.
    pub headroom: u64,
    /// Ticks of debt from which on packets are marked, where a sender heeds marks.
    pub mark: u64,
    /// Generation of the pod.
    pub generation: u32,
    /// [`LimitFlags`].
    pub flags: u32,
    /// Always zero.
    pub reserved: u64,
}

const _: () = assert!(size_of::<Limit>() == 64);

/// Bits of [`Limit::flags`].
#[derive(Clone, Copy, Debug)]
pub struct LimitFlags;

impl LimitFlags {
    /// Only traffic with the pod's [`ShapedSubnetKey`]s counts.
    pub const ONLY_SUBNETS: u32 = 1 << 0;
    /// Traffic with the pod's [`ShapedSubnetKey`]s does not count.
    pub const EXCEPT_SUBNETS: u32 = 1 << 1;
}

impl Limit {
    /// A limit of `rate` bits per second (not 0) that lets `burst` bytes pass at once.
    pub const fn new(rate: u64, burst: u64, generation: u32) -> Self {
        let price = price(rate);
        let allowance = ticks(burst, rate);
        Self {
            price,
            rate,
            burst,
            allowance,
            headroom: cost(price, LARGEST).saturating_add(50 * MILLISECOND),
            mark: allowance / 4,
            generation,
            flags: 0,
            reserved: 0,
        }
    }

    /// Ticks that `bytes` cost, rounded up. At most 2^24 bytes.
    #[inline]
    pub const fn cost(&self, bytes: u32) -> u64 {
        cost(self.price, bytes)
    }
}

/// As large a multiplier as 32 bits hold, for the smallest error; larger ones only for the lowest rates.
#[expect(
    clippy::cast_possible_truncation,
    reason = "at the lowest rate, 1 bit/s, the multiplier has 37 bits"
)]
const fn price(rate: u64) -> u64 {
    let rate = if rate == 0 { 1 } else { rate as u128 };
    let mut shift = 0;
    while ((8 * SECOND) << (shift + 1)) / rate < 1 << 32 && shift < 63 {
        shift += 1;
    }
    let multiplier = ((8 * SECOND) << shift).div_ceil(rate);
    (multiplier as u64) << 8 | shift
}

#[inline]
const fn cost(price: u64, bytes: u32) -> u64 {
    let (multiplier, shift) = (price >> 8, price & 63);
    ((bytes as u64) * multiplier + ((1 << shift) - 1)) >> shift
}

#[expect(clippy::cast_possible_truncation, reason = "it is compared before")]
const fn ticks(bytes: u64, rate: u64) -> u64 {
    let ticks = bytes as u128 * 8 * SECOND / if rate == 0 { 1 } else { rate as u128 };
    if ticks < LONGEST as u128 {
        ticks as u64
    } else {
        LONGEST
    }
}

/// An address, or a prefix, that a pod's limits are or are not for. In the trie the pod's 32 bits are before those of
/// the prefix. 20 bytes.
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Debug,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(C)]
pub struct ShapedSubnetKey {
    /// Row of the pod.
    pub pod: u32,
    /// The address, or the prefix with its host bits zero.
    pub address: Address,
}

const _: () = assert!(size_of::<ShapedSubnetKey>() == 20);

impl ShapedSubnetKey {
    /// Bits before those of the address.
    pub const POD_BITS: u32 = 32;
    /// Bits of a whole key.
    pub const BITS: u32 = Self::POD_BITS + 128;
}

/// What has passed of late; index in the table: `slot * 2 + direction`. Shared by all CPUs. 1,040 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Bucket {
    /// When everything will have been paid for, in ticks of `CLOCK_MONOTONIC`. Changed by compare and exchange, or by
    /// an addition, only.
    pub paid_at: u64,
    /// The same for what thin flows have got beyond [`Limit::allowance`].
    pub thin_paid_at: u64,
    /// The same for each flow, in units of 2^14 ticks, by two hashes: a guess is enough.
    pub flows: [u32; FLOWS_OF_BUCKET],
    /// Until when a TCP connection that has lost a packet loses all of them, in the same units, by one hash.
    pub silent_until: [u32; FLOWS_OF_BUCKET],
}

impl Default for Bucket {
    fn default() -> Self {
        Self {
            paid_at: 0,
            thin_paid_at: 0,
            flows: [0; FLOWS_OF_BUCKET],
            silent_until: [0; FLOWS_OF_BUCKET],
        }
    }
}

const _: () = assert!(size_of::<Bucket>() == 1_040);

/// What became of a pod's limited traffic in one direction, once per CPU; index in the table: `slot * 2 + direction`.
/// 64 bytes.
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Debug,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(C)]
pub struct Shaped {
    /// Packets that passed (a GSO packet counts as one).
    pub passed_packets: u64,
    /// Bytes that passed, as many as there are on a wire, from the IP header on.
    pub passed_bytes: u64,
    /// Those of them that were marked.
    pub marked_packets: u64,
    /// Bytes of those.
    pub marked_bytes: u64,
    /// Those of them that were given a time to depart.
    pub delayed_packets: u64,
    /// Those of them that passed because their flow is thin.
    pub spared_packets: u64,
    /// Packets that were dropped.
    pub dropped_packets: u64,
    /// Bytes of those.
    pub dropped_bytes: u64,
}

const _: () = assert!(size_of::<Shaped>() == 64);

#[cfg(test)]
mod tests {
    use super::*;

    /// behaviour K28: 1 kbit/s … 1 Pbit/s.
    #[test]
    fn a_byte_has_its_price_at_every_rate() {
        for exponent in 0..=15 {
            for rate in [10_u64.pow(exponent), 3 * 10_u64.pow(exponent) + 7] {
                let limit = Limit::new(rate, 1_000, 1);
                let megabyte = u128::from(limit.cost(1 << 20));
                let exact = (8 << 20) * SECOND / u128::from(rate);
                assert!(megabyte >= exact, "{rate} bit/s is too cheap");
                assert!(
                    megabyte <= exact + exact / 1_000_000_000 + 1,
                    "{rate} bit/s"
                );
            }
        }
    }

    #[test]
    fn a_burst_is_the_time_that_it_takes_at_the_rate() {
        let limit = Limit::new(8_000_000, 250_000, 1);
        assert_eq!(limit.allowance, 250 * MILLISECOND);
        assert_eq!(limit.mark, limit.allowance / 4);
        assert_eq!(Limit::new(1, u64::MAX, 1).allowance, LONGEST);
    }

    #[test]
    fn no_limit_costs_nothing() {
        assert_eq!(Limit::default().cost(65_535), 0);
    }
}
