//! What a sweep of the flow table did.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The last sweep; written while it runs, so read it after. 32 bytes.
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
    /// Entries that stay; a flow is two.
    pub kept: u64,
    /// Flows forgotten because no packet came for too long.
    pub timed_out: u64,
    /// Flows forgotten because their pod is gone.
    pub stale: u64,
    /// Flows forgotten because the node has lost the address, or the uplink, that they were masqueraded with.
    pub address_gone: u64,
}

const _: () = assert!(size_of::<Swept>() == 32);
