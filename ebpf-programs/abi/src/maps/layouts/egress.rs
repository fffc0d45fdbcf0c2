//! Fixed egress addresses: MASQUERADE sources of a network's pods, independent of the uplink.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Address, Family};

/// Fixed MASQUERADE sources of a network; the map key is the bridge's interface index. 32 bytes;
/// 40 with the feature `next-layout`.
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
pub struct Egress {
    /// [`crate::ABI_VERSION`] in network byte order. In front of the addresses, so that a program
    /// of the other layout would read wrong addresses and not only ignore a field.
    #[cfg(feature = "next-layout")]
    version: [u8; 4],
    /// Keeps the size a multiple of 8 bytes; 0.
    #[cfg(feature = "next-layout")]
    reserved: [u8; 4],
    /// IPv4 address, or [`Address::ANY`] for the uplink's.
    pub v4: Address,
    /// IPv6 address, or [`Address::ANY`] for the uplink's.
    pub v6: Address,
}

#[cfg(not(feature = "next-layout"))]
const _: () = assert!(size_of::<Egress>() == 32);
#[cfg(feature = "next-layout")]
const _: () = assert!(size_of::<Egress>() == 40);

impl Egress {
    /// Returns the row with these addresses; [`Address::ANY`] stands for the uplink's.
    pub const fn new(v4: Address, v6: Address) -> Self {
        Self {
            #[cfg(feature = "next-layout")]
            version: crate::ABI_VERSION.to_be_bytes(),
            #[cfg(feature = "next-layout")]
            reserved: [0; 4],
            v4,
            v6,
        }
    }

    /// Returns the address of a family; [`Address::ANY`] for the uplink's.
    #[inline]
    pub const fn address(&self, family: Family) -> Address {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}
