//! Uplinks: interfaces through which packets leave the node.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Address;

/// Maximum number of addresses of an uplink that MASQUERADE can choose from.
pub const SOURCES: usize = 8;

/// A candidate source address of MASQUERADE. 24 bytes.
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
    /// The address; [`Address::ANY`] in an unused element.
    pub address: Address,
    /// Prefix length of the address's subnet in bits, counted in its own family (0..=32 or
    /// 0..=128).
    pub prefix_len: u32,
    /// Always zero.
    pub reserved: u32,
}

/// An uplink; the map key is its interface index. 208 bytes.
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
    /// Length of the link-layer header in bytes: 14 for Ethernet, 0 for a layer-3 tunnel.
    pub l2_len: u32,
    /// The smallest MTU of the uplink and of all routes through it, in bytes.
    pub mtu: u32,
    /// Bits of [`UplinkFlags`].
    pub flags: u32,
    /// Always zero.
    pub reserved: u32,
    /// Addresses in the kernel's order (primary addresses first); unused elements are at the end.
    pub sources: [Source; SOURCES],
}

const _: () = assert!(size_of::<Uplink>() == 208);

/// Bits of [`Uplink::flags`].
#[derive(Clone, Copy, Debug)]
pub struct UplinkFlags;

impl UplinkFlags {
    /// Both programs are attached, so that packets which leave through the uplink are masqueraded.
    pub const OPEN: u32 = 1 << 0;
    /// The uplink is a tunnel to other nodes, which only their pods and this node's use.
    pub const TUNNEL: u32 = 1 << 1;
}
