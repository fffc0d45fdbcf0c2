//! Networks: what pods of one bridge have in common.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Address, Family, Mac};

/// A network; keyed by the interface index of its bridge. 40 bytes.
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
pub struct Network {
    /// The bridge's IPv4 address, by which pods leave; [`Address::ANY`] where there is none.
    pub v4: Address,
    /// The bridge's IPv6 address, by which pods leave; [`Address::ANY`] where there is none.
    pub v6: Address,
    /// The bridge's Ethernet address.
    pub mac: Mac,
    /// Always zero.
    pub reserved: u16,
}

const _: () = assert!(size_of::<Network>() == 40);

impl Network {
    /// The gateway of a family; [`Address::ANY`] where there is none.
    #[inline]
    pub const fn gateway(&self, family: Family) -> Address {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}
