//! Limits of a pod's traffic, as they were asked for. Refuses to know how they are enforced.

use std::num::NonZeroU64;

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
}

impl Bandwidth {
    /// Whether nothing is limited.
    pub const fn is_unlimited(&self) -> bool {
        self.ingress.is_none() && self.egress.is_none()
    }
}
