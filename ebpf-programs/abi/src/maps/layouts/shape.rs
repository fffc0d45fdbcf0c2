//! Bandwidth limits of pods, and the token buckets that enforce them: one of each per pod and
//! direction.
//!
//! Time is in ticks of 1/16 ns, so that the cost of a small packet is exact enough at hundreds of
//! gigabits per second. A bucket is one number: the time at which all traffic that passed will have
//! been sent at the limit's rate. The distance of this time to the present is the debt.

use crate::Address;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Ticks per nanosecond.
pub const TICKS: u64 = 16;
/// Maximum number of shaped or unshaped subnets of a pod.
pub const SUBNETS_OF_POD: u32 = 16;
/// Number of per-flow counters in a [`Bucket`].
pub const FLOWS_OF_BUCKET: usize = 128;

const SECOND: u128 = 1_000_000_000 * TICKS as u128;
const MILLISECOND: u64 = 1_000_000 * TICKS;
/// Bytes of the largest packet: a GSO packet, which is segmented later.
const LARGEST: u32 = 64 << 10;
/// Maximum of all durations, in ticks: one year of 365 days.
const LONGEST: u64 = 365 * 24 * 3_600 * 1_000 * MILLISECOND;

/// A bandwidth limit of a pod; the map index is `slot * 2 + direction`. All zeros mean no limit. 64
/// bytes.
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
    /// Cost per byte in ticks: a multiplier, and in the lowest 8 bits the right shift of the
    /// product. It is one number, so that a concurrent update is never read in part. 0 means no
    /// limit.
    pub price: u64,
    /// Rate in bits per second.
    pub rate: u64,
    /// Burst in bytes.
    pub burst: u64,
    /// Debt in ticks up to which any packet passes: the burst's duration at the rate.
    pub allowance: u64,
    /// Further debt in ticks up to which packets of low-rate flows pass.
    pub headroom: u64,
    /// Debt in ticks from which on packets of ECN-capable senders are marked.
    pub mark: u64,
    /// Generation of the pod; the limit is stale if the pod's generation differs.
    pub generation: u32,
    /// Bits of [`LimitFlags`].
    pub flags: u32,
    /// Always zero.
    pub reserved: u64,
}

const _: () = assert!(size_of::<Limit>() == 64);

/// Bits of [`Limit::flags`].
#[derive(Clone, Copy, Debug)]
pub struct LimitFlags;

impl LimitFlags {
    /// Only traffic with the pod's [`ShapedSubnetKey`]s is limited.
    pub const ONLY_SUBNETS: u32 = 1 << 0;
    /// Traffic with the pod's [`ShapedSubnetKey`]s is not limited.
    pub const EXCEPT_SUBNETS: u32 = 1 << 1;
}

impl Limit {
    /// Returns a limit of `rate` bits per second (not 0) with a burst of `burst` bytes.
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

    /// Returns the cost of `bytes` (at most 2^24) in ticks, rounded up.
    #[inline]
    pub const fn cost(&self, bytes: u32) -> u64 {
        cost(self.price, bytes)
    }
}

/// Returns the cost per byte of a rate, as in [`Limit::price`]. The multiplier is the largest one
/// of 32 bits, for the smallest error; it is larger only at the lowest rates.
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

/// A subnet that a pod's limits are, or are not, for. In the trie's key the 32 bits of the pod
/// precede those of the prefix. 20 bytes.
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
    /// The pod's slot in the pod table.
    pub pod: u32,
    /// The address, or the prefix with its host bits zero.
    pub address: Address,
}

const _: () = assert!(size_of::<ShapedSubnetKey>() == 20);

impl ShapedSubnetKey {
    /// Number of key bits before those of the address.
    pub const POD_BITS: u32 = 32;
    /// Number of bits of a whole key.
    pub const BITS: u32 = Self::POD_BITS + 128;
}

/// The token bucket of a limit; the map index is `slot * 2 + direction`. Shared by all CPUs. 1,040
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Bucket {
    /// Time at which all passed traffic will have been sent at the rate, in ticks of
    /// `CLOCK_MONOTONIC`. Written only by compare-and-exchange or atomic addition.
    pub paid_at: u64,
    /// The same for the traffic of low-rate flows beyond [`Limit::allowance`].
    pub low_rate_paid_at: u64,
    /// The same per flow, in units of 2^14 ticks, indexed by two hashes: an estimate is sufficient.
    pub flows: [u32; FLOWS_OF_BUCKET],
    /// Time until which a TCP connection that has lost a packet loses all packets, in units of 2^14
    /// ticks, indexed by one hash.
    pub silent_until: [u32; FLOWS_OF_BUCKET],
}

impl Default for Bucket {
    fn default() -> Self {
        Self {
            paid_at: 0,
            low_rate_paid_at: 0,
            flows: [0; FLOWS_OF_BUCKET],
            silent_until: [0; FLOWS_OF_BUCKET],
        }
    }
}

const _: () = assert!(size_of::<Bucket>() == 1_040);

/// Per-CPU counters of a pod's limited traffic in one direction; the map index is `slot * 2 +
/// direction`. 64 bytes.
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
    /// Bytes that passed, as on the wire after segmentation, from the IP header on.
    pub passed_bytes: u64,
    /// Passed packets that were marked with ECN Congestion Experienced.
    pub marked_packets: u64,
    /// Bytes of the marked packets.
    pub marked_bytes: u64,
    /// Passed packets that got a departure time.
    pub delayed_packets: u64,
    /// Passed packets of low-rate flows beyond the burst.
    pub spared_packets: u64,
    /// Packets that the limit dropped.
    pub dropped_packets: u64,
    /// Bytes of the dropped packets.
    pub dropped_bytes: u64,
}

const _: () = assert!(size_of::<Shaped>() == 64);

#[cfg(test)]
mod tests {
    use super::*;

    /// behaviour K28: 1 kbit/s … 1 Pbit/s.
    #[test]
    fn cost_per_byte_is_exact_at_every_rate() {
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
    fn burst_allowance_is_the_time_that_the_burst_takes_at_the_rate() {
        let limit = Limit::new(8_000_000, 250_000, 1);
        assert_eq!(limit.allowance, 250 * MILLISECOND);
        assert_eq!(limit.mark, limit.allowance / 4);
        assert_eq!(Limit::new(1, u64::MAX, 1).allowance, LONGEST);
    }

    #[test]
    fn the_default_limit_has_zero_cost() {
        assert_eq!(Limit::default().cost(65_535), 0);
    }
}
