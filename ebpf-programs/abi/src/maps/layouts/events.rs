//! Changes of the kernel's state that the agent reports to the programs.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The one element of the event table. 64 bytes: a cache line, which only the agent writes.
///
/// The agent listens to the kernel's notifications. Cached verdicts depend on state that programs
/// are not notified of, so they are short-lived unless the agent is known to listen.
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
pub struct Events {
    /// Grows after each change of a route, routing rule, link or neighbour that cached verdicts may
    /// depend on.
    pub routes: u64,
    /// Time until which both numbers are kept up to date, in nanoseconds of `CLOCK_MONOTONIC`; 0
    /// where no agent listens.
    pub valid_until: u64,
    /// Grows after each change of a netfilter rule, and with [`Events::routes`]: rules may depend
    /// on routes.
    pub rulesets: u64,
    /// Always zero.
    pub reserved: [u64; 5],
}

const _: () = assert!(size_of::<Events>() == 64);

impl Events {
    /// Nanoseconds for which the agent sets [`Events::valid_until`] ahead. It renews the
    /// time several times in that interval.
    pub const VALIDITY: u64 = 1_000_000_000;
}
