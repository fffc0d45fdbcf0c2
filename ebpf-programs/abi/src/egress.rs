//! Fixed egress addresses: what pods of a network leave with, whatever the uplink.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Address, Family};

/// The addresses that pods of a network are masqueraded with; keyed by the interface index of the bridge. 32 bytes.
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
    /// IPv4 address, or [`Address::ANY`] for the uplink's.
    pub v4: Address,
    /// IPv6 address, or [`Address::ANY`] for the uplink's.
    pub v6: Address,
}

const _: () = assert!(size_of::<Egress>() == 32);

impl Egress {
    /// The address of a family; [`Address::ANY`] where there is none.
    #[inline]
    pub const fn address(&self, family: Family) -> Address {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}
