//! Uplinks: interfaces by which packets leave the node.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Address;

/// How many addresses of an uplink the datapath can choose from.
pub const SOURCES: usize = 8;

/// An address of an uplink that MASQUERADE may use. 24 bytes.
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
pub struct Source {
    /// The address; [`Address::ANY`] in an unused row.
    pub address: Address,
    /// Prefix length of the address's subnet in bits, counted in its own family (0..=32 or 0..=128).
    pub prefix_len: u32,
    /// Always zero.
    pub reserved: u32,
}

/// An uplink; keyed by interface index. 208 bytes.
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
pub struct Uplink {
    /// Bytes in front of the IP header: 14 for Ethernet, 0 for a tunnel without one.
    pub l2_len: u32,
    /// The smallest MTU of the uplink and of all routes by it, in bytes.
    pub mtu: u32,
    /// [`UplinkFlags`].
    pub flags: u32,
    /// Always zero.
    pub reserved: u32,
    /// Addresses in the kernel's own order (primary ones first), used rows in front.
    pub sources: [Source; SOURCES],
}

const _: () = assert!(size_of::<Uplink>() == 208);

/// Bits of [`Uplink::flags`].
#[derive(Clone, Copy, Debug)]
pub struct UplinkFlags;

impl UplinkFlags {
    /// Both programs are attached: what leaves is translated.
    pub const OPEN: u32 = 1 << 0;
}
