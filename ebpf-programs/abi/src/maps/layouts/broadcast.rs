//! Broadcast addresses of the subnets of uplinks.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Address;

/// Number of broadcast addresses in a row.
pub const BROADCASTS: usize = 4;

/// Broadcast addresses of an uplink; the map key is its interface index. 64 bytes.
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
pub struct Broadcasts {
    /// The last address of each IPv4 subnet (RFC 919), then [`Address::ANY`].
    pub addresses: [Address; BROADCASTS],
}

const _: () = assert!(size_of::<Broadcasts>() == 64);
