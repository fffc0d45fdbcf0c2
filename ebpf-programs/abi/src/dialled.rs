//! Sockets of the node that dial hostports: what they asked for, where they are connected instead.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Address, Port};

/// `SO_MARK` of the sockets by which the agent holds the ports of the node that lead to pods: the one mark that may
/// be bound to a hostport. Setting a mark takes `CAP_NET_ADMIN`.
pub const HOLDER_MARK: u32 = 0x7669_6164;

/// A socket and a pod's port that it talks to. 32 bytes.
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
pub struct DialledKey {
    /// The socket's cookie.
    pub socket: u64,
    /// The pod's address.
    pub address: Address,
    /// The pod's port.
    pub port: Port,
    /// IP protocol number.
    pub protocol: u8,
    /// Always zero.
    pub reserved: [u8; 5],
}

const _: () = assert!(size_of::<DialledKey>() == 32);

/// What the socket dialled. 20 bytes.
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
pub struct Dialled {
    /// The node's address.
    pub address: Address,
    /// The node's port.
    pub port: Port,
    /// Always zero.
    pub reserved: u16,
}

const _: () = assert!(size_of::<Dialled>() == 20);
