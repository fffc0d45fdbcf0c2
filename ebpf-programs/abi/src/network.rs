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
    /// Promiscuous bridges: the prefix length of the IPv4 subnet around the gateway whose addresses, in frames that the
    /// bridge itself sends to a pod, mark duplicates. 0 otherwise.
    pub duplicates_v4: u8,
    /// As [`Network::duplicates_v4`], for IPv6.
    pub duplicates_v6: u8,
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

    /// [`Network::duplicates_v4`] or [`Network::duplicates_v6`].
    #[inline]
    pub const fn duplicates(&self, family: Family) -> u8 {
        match family {
            Family::V4 => self.duplicates_v4,
            Family::V6 => self.duplicates_v6,
        }
    }
}
