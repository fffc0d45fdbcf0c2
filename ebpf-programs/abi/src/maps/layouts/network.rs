//! Networks: addresses of a bridge, which all its pods share.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Address, Family, Mac};

/// A network; the map key is the interface index of its bridge. 40 bytes.
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
    /// The bridge's IPv4 address, the pods' gateway; [`Address::ANY`] if it has none.
    pub v4: Address,
    /// The bridge's IPv6 address, the pods' gateway; [`Address::ANY`] if it has none.
    pub v6: Address,
    /// The bridge's MAC address.
    pub mac: Mac,
    /// Prefix length of the gateway's IPv4 subnet, on a promiscuous bridge: a frame that the bridge
    /// itself sends to a pod is a duplicate if its source is in this subnet. 0 on other bridges.
    pub duplicates_v4: u8,
    /// As [`Network::duplicates_v4`], for IPv6.
    pub duplicates_v6: u8,
}

const _: () = assert!(size_of::<Network>() == 40);

impl Network {
    /// Returns the gateway of a family; [`Address::ANY`] if there is none.
    #[inline]
    pub const fn gateway(&self, family: Family) -> Address {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }

    /// Returns [`Network::duplicates_v4`] or [`Network::duplicates_v6`].
    #[inline]
    pub const fn duplicates(&self, family: Family) -> u8 {
        match family {
            Family::V4 => self.duplicates_v4,
            Family::V6 => self.duplicates_v6,
        }
    }
}
