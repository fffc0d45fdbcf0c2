//! Result of a sweep of the flow table.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Counters of the last sweep. The sweep updates them while it runs, so they are valid only after
/// it. 32 bytes.
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
pub struct Swept {
    /// Entries that were kept; a flow has two.
    pub kept: u64,
    /// Flows that were removed because their idle timeout had expired.
    pub timed_out: u64,
    /// Flows that were removed because their pod no longer exists.
    pub stale: u64,
    /// Flows that were removed because the node no longer has their masquerade address or uplink.
    pub address_gone: u64,
}

const _: () = assert!(size_of::<Swept>() == 32);
