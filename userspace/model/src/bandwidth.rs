//! Limits of a pod's traffic, as they were asked for. Refuses to know how they are enforced.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroU64;

use crate::Cidr;

/// The limit of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Limit {
    /// Bits per second.
    pub rate: NonZeroU64,
    /// Bits that may pass at once; `None` for as many as suit the rate.
    pub burst: Option<NonZeroU64>,
}

/// The limits of a pod, seen from the pod; `None` for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bandwidth {
    /// To the pod.
    pub ingress: Option<Limit>,
    /// From the pod.
    pub egress: Option<Limit>,
    /// With whom both count.
    pub shaped_subnets: ShapedSubnets,
}

impl Bandwidth {
    /// Whether nothing is limited.
    pub const fn is_unlimited(&self) -> bool {
        self.ingress.is_none() && self.egress.is_none()
    }
}

/// Bits per second in each direction, seen from the pod; `None` for nothing said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rates {
    /// To the pod.
    pub ingress: Option<NonZeroU64>,
    /// From the pod.
    pub egress: Option<NonZeroU64>,
}

/// What a network makes of the limits of its pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitPolicy {
    /// For pods that nobody limits.
    pub default: Rates,
    /// No pod gets more, whatever it asks for.
    pub ceiling: Rates,
}

impl LimitPolicy {
    /// What a pod gets that asks for this.
    #[must_use]
    pub fn apply(&self, asked: &Bandwidth) -> Bandwidth {
        let limit = |rate| Limit { rate, burst: None };
        let by_default = Bandwidth {
            ingress: asked.ingress.or(self.default.ingress.map(limit)),
            egress: asked.egress.or(self.default.egress.map(limit)),
            ..*asked
        };
        self.clamp_to_ceiling(&by_default)
    }

    /// The same without what is above the ceiling; no limit is above each.
    #[must_use]
    pub fn clamp_to_ceiling(&self, wanted: &Bandwidth) -> Bandwidth {
        Bandwidth {
            ingress: at_most(wanted.ingress, self.ceiling.ingress),
            egress: at_most(wanted.egress, self.ceiling.egress),
            ..*wanted
        }
    }
}

fn at_most(wanted: Option<Limit>, ceiling: Option<NonZeroU64>) -> Option<Limit> {
    let Some(rate) = ceiling else {
        return wanted;
    };
    let within = wanted.filter(|limit| limit.rate <= rate);
    Some(within.unwrap_or(Limit { rate, burst: None }))
}

/// Prefixes, each once.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefixes([Option<Cidr>; Self::MAX]);

impl Prefixes {
    /// As many as there may be.
    pub const MAX: usize = 16;

    /// In an order of their own; `None` where there are too many.
    pub fn new(prefixes: impl IntoIterator<Item = Cidr>) -> Option<Self> {
        let distinct: BTreeSet<Cidr> = prefixes.into_iter().collect();
        let mut kept = Self::default();
        if distinct.len() > Self::MAX {
            return None;
        }
        for (place, prefix) in kept.0.iter_mut().zip(distinct) {
            *place = Some(prefix);
        }
        Some(kept)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Cidr> + '_ {
        self.0.iter().flatten().copied()
    }
}

impl fmt::Debug for Prefixes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// With whom a pod's traffic counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShapedSubnets {
    /// With everybody.
    #[default]
    All,
    /// With these alone.
    Only(Prefixes),
    /// With all but these.
    Except(Prefixes),
}

impl ShapedSubnets {
    /// The prefixes that are named.
    pub fn prefixes(&self) -> Prefixes {
        match self {
            Self::All => Prefixes::default(),
            Self::Only(prefixes) | Self::Except(prefixes) => *prefixes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_policy_applies_defaults_and_ceilings() {
        let rates = |ingress, egress| Rates {
            ingress: NonZeroU64::new(ingress),
            egress: NonZeroU64::new(egress),
        };
        let limit = |rate, burst| {
            NonZeroU64::new(rate).map(|rate| Limit {
                rate,
                burst: NonZeroU64::new(burst),
            })
        };
        let asked = |ingress, egress| Bandwidth {
            ingress,
            egress,
            ..Bandwidth::default()
        };
        let policy = LimitPolicy {
            default: rates(10, 0),
            ceiling: rates(100, 50),
        };
        for (wanted, gets) in [
            (asked(None, None), asked(limit(10, 0), limit(50, 0))),
            (
                asked(limit(70, 7), limit(50, 5)),
                asked(limit(70, 7), limit(50, 5)),
            ),
            (
                asked(limit(101, 7), limit(51, 5)),
                asked(limit(100, 0), limit(50, 0)),
            ),
        ] {
            assert_eq!(policy.apply(&wanted), gets);
        }
        let free = asked(None, limit(9, 0));
        assert_eq!(LimitPolicy::default().apply(&free), free);
        // What somebody has lifted by hand does not come back as the default.
        assert_eq!(
            policy.clamp_to_ceiling(&asked(None, None)).ingress,
            limit(100, 0)
        );
    }

    #[test]
    fn prefixes_are_a_set_with_a_maximum_size() {
        let prefix = |number: usize| format!("10.{number}.0.0/16").parse::<Cidr>().unwrap();
        let few = Prefixes::new([prefix(2), prefix(1), prefix(2)]).unwrap();
        assert_eq!(few.iter().collect::<Vec<_>>(), [prefix(1), prefix(2)]);
        assert!(Prefixes::new((0..Prefixes::MAX).map(prefix)).is_some());
        assert_eq!(Prefixes::new((0..=Prefixes::MAX).map(prefix)), None);
    }
}
