//! Links that are trusted by a network.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A network and a link: key of the table of trusted links. 8 bytes.
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
pub struct TrustedLinkKey {
    /// Interface index of the network's bridge.
    pub network: u32,
    /// Interface index of the uplink.
    pub interface: u32,
}

const _: () = assert!(size_of::<TrustedLinkKey>() == 8);
