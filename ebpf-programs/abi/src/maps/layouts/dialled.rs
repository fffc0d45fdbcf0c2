//! Records of node sockets that the cgroup programs redirect from a hostport to a pod.
//!
//! `connect` and `sendmsg` replace the hostport by the pod's address and port; `recvmsg` and
//! `getpeername` restore the hostport from this record.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Address, Port};

/// `SO_MARK` of the agent's port reservation sockets: only sockets with this mark may bind to a
/// hostport. Setting a mark requires `CAP_NET_ADMIN`.
pub const HOLDER_MARK: u32 = 0x7669_6164;

/// A socket, and the pod's address and port that it was redirected to. 32 bytes.
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
    /// The socket's cookie (`SO_COOKIE`).
    pub socket: u64,
    /// The pod's address.
    pub address: Address,
    /// The pod's port.
    pub port: Port,
    /// IP protocol number: see [`crate::protocol`].
    pub protocol: u8,
    /// Always zero.
    pub reserved: [u8; 5],
}

const _: () = assert!(size_of::<DialledKey>() == 32);

/// The hostport that the application used. 20 bytes.
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
