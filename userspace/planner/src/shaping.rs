//! Limits of pods' traffic: from what was asked for to the entry that enforces it, and how much beyond enforcing is
//! done.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use model::{Attachment, Bandwidth, Limit};

use crate::{Entry, EntryKey, Observed};

/// Bytes that may pass at once at the least: the largest packet, and one that comes beside it.
const LEAST_BURST: u64 = (64 << 10) + 1_500;

/// A limit as the datapath keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// Bits per second.
    pub rate: u64,
    /// Bytes that may pass at once.
    pub burst: u64,
}

impl Shape {
    /// What enforces `limit`. TCP needs a quarter of a second of its rate at once: whoever loses a burst to a bucket
    /// waits for 200 ms, and has to be able to make up for them. A smaller burst would make the rate a lie.
    pub fn of(limit: Limit) -> Self {
        let rate = limit.rate.get();
        let asked = limit.burst.map_or(0, NonZeroU64::get) / 8;
        Self {
            rate,
            burst: asked.max(rate / 8 / 4).max(LEAST_BURST),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bit/s, {} bytes at once", self.rate, self.burst)
    }
}

/// The entry that limits an attachment; `None` where nothing does.
pub(crate) fn limit_entry(attachment: &Attachment) -> Option<(EntryKey, Entry)> {
    let Bandwidth {
        ingress,
        egress,
        peers,
    } = attachment.bandwidth;
    let entry = Entry::Limit {
        ingress: ingress.map(Shape::of),
        egress: egress.map(Shape::of),
        peers: Box::new(peers),
        generation: attachment.generation,
    };
    let limited = !attachment.bandwidth.is_unlimited();
    limited.then_some((EntryKey::Limit(attachment.slot), entry))
}

/// What is done for limits beyond enforcing them (`--shaper`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShaperMode {
    /// All that this node can do.
    #[default]
    Auto,
    /// Nothing: a bucket that lets pass or drops.
    Police,
    /// Sockets are told their pod's limits, and pace themselves.
    Pace,
    /// And packets are told when to depart, whether or not an uplink heeds it.
    Edt,
}

impl ShaperMode {
    const ALL: [Self; 4] = [Self::Auto, Self::Police, Self::Pace, Self::Edt];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Police => "police",
            Self::Pace => "pace",
            Self::Edt => "edt",
        }
    }

    /// What it comes to on a node that looks like this.
    #[must_use]
    pub fn choose(self, observed: &Observed) -> Self {
        match self {
            Self::Auto if observed.heeds_departure => Self::Edt,
            Self::Auto => Self::Pace,
            chosen @ (Self::Police | Self::Pace | Self::Edt) => chosen,
        }
    }

    /// [`abi::SettingsFlags`] for it.
    pub(crate) const fn flags(self) -> u32 {
        match self {
            Self::Auto | Self::Police => 0,
            Self::Pace => abi::SettingsFlags::PACE,
            Self::Edt => abi::SettingsFlags::PACE | abi::SettingsFlags::DEPART,
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
    fn a_burst_is_a_quarter_of_a_second_and_never_less_than_a_large_packet() {
        for (rate, asked, burst) in [
            (1_000, 0, LEAST_BURST),
            (100_000_000, 0, 3_125_000),
            (100_000_000, 8_000, 3_125_000),
            (100_000_000, 80_000_000, 10_000_000),
            (1_000_000_000_000_000, 0, 31_250_000_000_000),
        ] {
            let shape = Shape::of(limit(rate, asked));
            assert_eq!(shape, Shape { rate, burst }, "{rate} {asked}");
        }
    }

    #[test]
    fn departure_times_are_for_uplinks_that_heed_them() {
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
