//! Pods: tables by slot, by interface and by address.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Address, Mac};

/// A pod: value of the pod table, an array indexed by slot; slot 0 is never used. 64 bytes.
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
    /// The pod's IPv4 address; [`Address::ANY`] if it has none.
    pub v4: Address,
    /// The pod's IPv6 address; [`Address::ANY`] if it has none.
    pub v6: Address,
    /// MAC address of the pod's end of the veth. Without one, the spoof check accepts any.
    pub mac: Mac,
    /// Always zero.
    pub reserved: u16,
    /// Interface index of the host's end of the veth; 0 in a free slot.
    pub interface: u32,
    /// Number that no other attachment has had; kept when the pod is removed. Flows store it, so
    /// that those of an earlier pod of the slot are stale.
    pub generation: u32,
    /// Bits of [`EndpointFlags`].
    pub flags: u32,
    /// The network that the pod belongs to: the interface index of its bridge.
    pub network: u32,
    /// Maximum number of concurrent flows; 0 for [`crate::Settings::flow_quota`].
    pub flow_quota: u32,
    /// Always zero.
    pub reserved2: u32,
}

const _: () = assert!(size_of::<Pod>() == 64);

/// Properties of a pod: bits of [`Pod::flags`], [`Interface::flags`] and [`Endpoint::flags`].
#[derive(Clone, Copy, Debug)]
pub struct EndpointFlags;

impl EndpointFlags {
    /// Flows that the pod opens to outside the node are masqueraded with an IPv4 address of the
    /// uplink.
    pub const MASQUERADE_V4: u32 = 1 << 0;
    /// Flows that the pod opens to outside the node are masqueraded with an IPv6 address of the
    /// uplink.
    pub const MASQUERADE_V6: u32 = 1 << 1;
    /// Frames whose source MAC or IP address is not the pod's are dropped.
    pub const SPOOF_CHECK: u32 = 1 << 2;
    /// The pod has hostports: another pod may reach it directly and through a hostport, and the
    /// datapath has to keep the two flows distinct.
    pub const PUBLISHED: u32 = 1 << 3;
    /// The bridge only forwards for this pod, so that packets may bypass it.
    pub const BYPASS: u32 = 1 << 4;
    /// The pod has a bandwidth limit in at least one direction. Without this flag limits are not
    /// looked up.
    pub const LIMITED: u32 = 1 << 5;
    /// Port isolation: the bridge forwards nothing between the pod and other isolated pods, not
    /// even ARP and neighbour solicitations.
    pub const ISOLATED: u32 = 1 << 6;
    /// Ingress policy `same-bridge`: packets from pods of other bridges with this flag are dropped.
    pub const SAME_BRIDGE: u32 = 1 << 7;
    /// Ingress policy `isolated`: packets from pods of the same bridge with this flag are dropped,
    /// too.
    pub const INGRESS_ISOLATED: u32 = 1 << 8;
    /// The network has no direct access (`directAccess: false`, and all internal networks): from
    /// other networks and from outside the node, packets reach the pod by its hostports only,
    /// unless a flag below or the table of trusted links opens more.
    pub const PUBLISHED_ONLY: u32 = 1 << 9;
    /// The network is internal (`internal: true`): besides replies of its hostports, the pod's
    /// packets reach its own network and the addresses of its bridge only. Pods with this flag have
    /// [`Self::PUBLISHED_ONLY`] as well.
    pub const INTERNAL: u32 = 1 << 10;
    /// The pod's IPv4 address is routed: echo requests reach it, and so do packets to ports of the
    /// address that the hostport table has. Without effect unless [`Self::PUBLISHED_ONLY`] is set;
    /// pods of internal networks do not have it.
    pub const ROUTED_V4: u32 = 1 << 11;
    /// The same for the pod's IPv6 address.
    pub const ROUTED_V6: u32 = 1 << 12;
}

/// The pod of an interface: value of the interface table, whose key is the interface index of the
/// veth's host end. 8 bytes.
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
    /// [`EndpointFlags::LIMITED`], or 0.
    pub flags: u32,
}

const _: () = assert!(size_of::<Interface>() == 8);

/// The pod of an address: value of the endpoint table, whose key is an [`Address`]. 24 bytes.
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
    /// Bits of [`EndpointFlags`].
    pub flags: u32,
    /// MAC address of the pod's end of the veth.
    pub mac: Mac,
    /// Always zero.
    pub reserved: u16,
}

const _: () = assert!(size_of::<Endpoint>() == 24);
