//! Rate limits of pods: the datapath's limit entry for a requested limit, and the shaping mode of
//! the node.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use model::{Attachment, Bandwidth, Limit};
use steps::{Entry, EntryKey, Observed, Shape};

/// Least burst in bytes: the largest GSO packet and one more packet of a usual MTU.
const MIN_BURST: u64 = (64 << 10) + 1_500;

/// Returns the token bucket that enforces `limit`. The burst is at least a quarter of a second
/// at the rate: a TCP sender that loses a burst to the bucket waits for its 200 ms
/// retransmission timeout and must be able to make up for that time. With a smaller burst TCP
/// would stay below the rate.
pub fn token_bucket(limit: Limit) -> Shape {
    let rate = limit.rate.get();
    let requested = limit.burst.map_or(0, NonZeroU64::get) / 8;
    Shape {
        rate,
        burst: requested.max(rate / 8 / 4).max(MIN_BURST),
    }
}

/// Returns the limit entry of an attachment; `None` without limits.
pub(crate) fn limit_entry(attachment: &Attachment) -> Option<(EntryKey, Entry)> {
    let Bandwidth {
        ingress,
        egress,
        shaped_subnets,
    } = attachment.bandwidth;
    let entry = Entry::Limit {
        ingress: ingress.map(token_bucket),
        egress: egress.map(token_bucket),
        shaped_subnets: Box::new(shaped_subnets),
        generation: attachment.generation,
    };
    let limited = !attachment.bandwidth.is_unlimited();
    limited.then_some((EntryKey::Limit(attachment.slot), entry))
}

/// How rate limits are shaped (`--shaper`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShaperMode {
    /// `Edt` where an uplink has an `fq` qdisc, `Pace` elsewhere.
    #[default]
    Auto,
    /// Policing only: a token bucket passes or drops packets.
    Police,
    /// Policing, and the pacing rate of TCP sockets is set to the pod's limit.
    Pace,
    /// As `Pace`, and packets get an earliest departure time, whether or not the uplink's qdisc
    /// honours it.
    Edt,
}

impl ShaperMode {
    const ALL: [Self; 4] = [Self::Auto, Self::Police, Self::Pace, Self::Edt];

    /// Returns the value as the configuration spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Police => "police",
            Self::Pace => "pace",
            Self::Edt => "edt",
        }
    }

    /// Returns the mode in force on this node: `Auto` resolved by the observation.
    #[must_use]
    pub fn choose(self, observed: &Observed) -> Self {
        match self {
            Self::Auto if observed.heeds_departure => Self::Edt,
            Self::Auto => Self::Pace,
            chosen @ (Self::Police | Self::Pace | Self::Edt) => chosen,
        }
    }

    /// Returns the [`abi::SettingsFlags`] of the mode.
    pub(crate) const fn flags(self) -> u32 {
        match self {
            Self::Auto | Self::Police => 0,
            Self::Pace => abi::SettingsFlags::PACE,
            Self::Edt => abi::SettingsFlags::PACE | abi::SettingsFlags::DELIVERY_TIME,
        }
    }
}

impl fmt::Display for ShaperMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ShaperMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|mode| mode.name() == text);
        named.ok_or_else(|| format!("{text:?} is none of auto, police, pace, edt"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(rate: u64, burst: u64) -> Limit {
        Limit {
            rate: NonZeroU64::new(rate).unwrap(),
            burst: NonZeroU64::new(burst),
        }
    }

    #[test]
    fn a_burst_is_a_quarter_of_a_second_and_at_least_a_large_packet() {
        for (rate, requested, burst) in [
            (1_000, 0, MIN_BURST),
            (100_000_000, 0, 3_125_000),
            (100_000_000, 8_000, 3_125_000),
            (100_000_000, 80_000_000, 10_000_000),
            (1_000_000_000_000_000, 0, 31_250_000_000_000),
        ] {
            let shape = token_bucket(limit(rate, requested));
            assert_eq!(shape, Shape { rate, burst }, "{rate} {requested}");
        }
    }

    #[test]
    fn departure_times_are_for_uplinks_with_fq() {
        let with_fq = Observed {
            heeds_departure: true,
            ..Observed::default()
        };
        let without = Observed::default();
        assert_eq!(ShaperMode::Auto.choose(&with_fq), ShaperMode::Edt);
        assert_eq!(ShaperMode::Auto.choose(&without), ShaperMode::Pace);
        for mode in [ShaperMode::Police, ShaperMode::Pace, ShaperMode::Edt] {
            assert_eq!(mode.choose(&with_fq), mode);
            assert_eq!(mode.choose(&without), mode);
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        assert!("tbf".parse::<ShaperMode>().is_err());
    }
}
