//! Hostports: ports of the node that are forwarded to pods.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Address, Family, Port};

/// A port of the node: key of the hostport table. 20 bytes.
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
pub struct HostportKey {
    /// The node's address, or [`Address::ANY`] for every address of the family. An address of a pod
    /// publishes the port of that address itself, see [`crate::EndpointFlags::ROUTED_V4`].
    pub address: Address,
    /// The node's port.
    pub port: Port,
    /// IP protocol number: see [`crate::protocol`].
    pub protocol: u8,
    /// 4 or 6: the wildcards of the two families are separate keys.
    pub family: u8,
}

const _: () = assert!(size_of::<HostportKey>() == 20);

impl HostportKey {
    /// Returns the key of `port` on one address.
    #[inline]
    pub const fn new(address: Address, port: Port, protocol: u8) -> Self {
        Self {
            address,
            port,
            protocol,
            family: address.family() as u8,
        }
    }

    /// Returns the key of `port` on every address of `family`.
    #[inline]
    pub const fn wildcard(family: Family, port: Port, protocol: u8) -> Self {
        Self {
            address: Address::ANY,
            port,
            protocol,
            family: family as u8,
        }
    }
}

/// Destination of a hostport: value of the hostport table. 32 bytes.
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
pub struct Hostport {
    /// The pod's address.
    pub address: Address,
    /// The pod's port.
    pub port: Port,
    /// Always zero.
    pub reserved: u16,
    /// The pod's slot in the pod table.
    pub pod: u32,
    /// Generation of the pod; the entry is stale if the pod's generation differs.
    pub generation: u32,
    /// Process (thread group ID) of a runtime that may bind the node's port besides the agent; 0
    /// for none.
    pub binder: u32,
}

const _: () = assert!(size_of::<Hostport>() == 32);
