//! Pods: by slot, by interface, by address.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Address, Mac};

/// A pod's row in the pod table, an array indexed by slot; slot 0 is never a pod. 64 bytes.
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
pub struct Pod {
    /// IPv4 address, or [`Address::ANY`].
    pub v4: Address,
    /// IPv6 address, or [`Address::ANY`].
    pub v6: Address,
    /// The Ethernet address of the pod's own end of the veth.
    pub mac: Mac,
    /// Always zero.
    pub reserved: u16,
    /// Interface index of the host's end of the veth; 0 in a free slot.
    pub interface: u32,
    /// Grows each time the slot gets a new owner, and stays behind when the owner goes: flows carry it.
    pub generation: u32,
    /// [`EndpointFlags`].
    pub flags: u32,
    /// The network that the pod belongs to: the interface index of its bridge.
    pub network: u32,
    /// Most flows the pod may have at once; 0 for [`crate::Settings::flow_quota`].
    pub flow_quota: u32,
    /// Always zero.
    pub reserved2: u32,
}

const _: () = assert!(size_of::<Pod>() == 64);

/// What applies to a pod: bits of [`Pod::flags`], [`Interface::flags`] and [`Endpoint::flags`].
#[derive(Clone, Copy, Debug)]
pub struct EndpointFlags;

impl EndpointFlags {
    /// Flows that the pod opens to the outside get the uplink's IPv4 address.
    pub const MASQUERADE_V4: u32 = 1 << 0;
    /// Flows that the pod opens to the outside get the uplink's IPv6 address.
    pub const MASQUERADE_V6: u32 = 1 << 1;
    /// Frames with a source MAC or IP address that is not the pod's are dropped.
    pub const SPOOF_CHECK: u32 = 1 << 2;
    /// Hostports lead to the pod: other pods may come to it by two ways, and it has to tell them apart.
    pub const PUBLISHED: u32 = 1 << 3;
    /// The bridge does nothing for the pod but to forward, so packets may go past it.
    pub const BYPASS: u32 = 1 << 4;
    /// What the pod sends or receives is limited, or both: nobody else's limits are looked up.
    pub const LIMITED: u32 = 1 << 5;
    /// The bridge keeps the pod apart from other such pods: they cannot even ask for each other's Ethernet address.
    pub const ISOLATED: u32 = 1 << 6;
    /// Packets from pods of other bridges that are kept apart, too, are dropped.
    pub const SAME_BRIDGE: u32 = 1 << 7;
    /// And so are packets from such pods of the same bridge.
    pub const INGRESS_ISOLATED: u32 = 1 << 8;
}

/// Whose an interface is: value of the interface table, keyed by the interface index of the host's end. 8 bytes.
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
pub struct Interface {
    /// Slot in the pod table.
    pub pod: u32,
    /// [`EndpointFlags::LIMITED`].
    pub flags: u32,
}

const _: () = assert!(size_of::<Interface>() == 8);

/// Who has an address: value of the endpoint table, keyed by [`Address`]. 24 bytes.
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
pub struct Endpoint {
    /// Slot in the pod table.
    pub pod: u32,
    /// Generation of the pod.
    pub generation: u32,
    /// Interface index of the host's end of the veth.
    pub interface: u32,
    /// [`EndpointFlags`].
    pub flags: u32,
    /// The Ethernet address of the pod's own end of the veth.
    pub mac: Mac,
    /// Always zero.
    pub reserved: u16,
}

const _: () = assert!(size_of::<Endpoint>() == 24);
