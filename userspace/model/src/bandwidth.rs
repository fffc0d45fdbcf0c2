//! Rate limits of a pod's traffic as requested, and a network's policy for them.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroU64;

use crate::Cidr;

/// Rate limit of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Limit {
    /// Rate in bit/s.
    pub rate: NonZeroU64,
    /// Burst in bits; `None` for one that suits the rate.
    pub burst: Option<NonZeroU64>,
}

/// Rate limits of a pod, in directions as seen from the pod; `None` for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bandwidth {
    /// Limit of traffic to the pod.
    pub ingress: Option<Limit>,
    /// Limit of traffic from the pod.
    pub egress: Option<Limit>,
    /// Remote subnets whose traffic both limits apply to.
    pub shaped_subnets: ShapedSubnets,
}

impl Bandwidth {
    /// Returns whether neither direction is limited.
    pub const fn is_unlimited(&self) -> bool {
        self.ingress.is_none() && self.egress.is_none()
    }
}

/// Rates in bit/s, in directions as seen from the pod; `None` for unspecified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rates {
    /// Rate of traffic to the pod.
    pub ingress: Option<NonZeroU64>,
    /// Rate of traffic from the pod.
    pub egress: Option<NonZeroU64>,
}

/// A network's policy for the limits of its pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitPolicy {
    /// Limits of pods that request none.
    pub default: Rates,
    /// Maximum rates of every pod, whatever it requests.
    pub ceiling: Rates,
}

impl LimitPolicy {
    /// Returns the limits of a pod that requests `requested`: with defaults filled in, and clamped
    /// to the ceiling.
    #[must_use]
    pub fn apply(&self, requested: &Bandwidth) -> Bandwidth {
        let limit = |rate| Limit { rate, burst: None };
        let by_default = Bandwidth {
            ingress: requested.ingress.or(self.default.ingress.map(limit)),
            egress: requested.egress.or(self.default.egress.map(limit)),
            ..*requested
        };
        self.clamp_to_ceiling(&by_default)
    }

    /// Returns the limits clamped to the ceiling; no limit counts as above it.
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

/// A set of at most [`Prefixes::MAX`] prefixes.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefixes([Option<Cidr>; Self::MAX]);

impl Prefixes {
    /// Maximum number of prefixes.
    pub const MAX: usize = 16;

    /// Returns the set of `prefixes` in ascending order; `None` where there are too many.
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

    /// Returns the prefixes in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Cidr> + '_ {
        self.0.iter().flatten().copied()
    }
}

impl fmt::Debug for Prefixes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Remote subnets whose traffic a pod's limits apply to (`shapedSubnets`, `unshapedSubnets`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShapedSubnets {
    /// Traffic with every address.
    #[default]
    All,
    /// Traffic with these subnets only.
    Only(Prefixes),
    /// Traffic with all but these subnets.
    Except(Prefixes),
}

impl ShapedSubnets {
    /// Returns the named prefixes; empty for [`ShapedSubnets::All`].
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
        let requested = |ingress, egress| Bandwidth {
            ingress,
            egress,
            ..Bandwidth::default()
        };
        let policy = LimitPolicy {
            default: rates(10, 0),
            ceiling: rates(100, 50),
        };
        for (wanted, gets) in [
            (requested(None, None), requested(limit(10, 0), limit(50, 0))),
            (
                requested(limit(70, 7), limit(50, 5)),
                requested(limit(70, 7), limit(50, 5)),
            ),
            (
                requested(limit(101, 7), limit(51, 5)),
                requested(limit(100, 0), limit(50, 0)),
            ),
        ] {
            assert_eq!(policy.apply(&wanted), gets);
        }
        let free = requested(None, limit(9, 0));
        assert_eq!(LimitPolicy::default().apply(&free), free);
        // A limit that was removed by hand does not come back as the default.
        assert_eq!(
            policy.clamp_to_ceiling(&requested(None, None)).ingress,
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
