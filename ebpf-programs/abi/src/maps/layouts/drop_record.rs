//! Drop events: what the datapath reports of dropped packets while the agent listens.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Tuple;

/// A program that drops packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum DropHook {
    /// `from_pod`, and `from_busy_pod` in front of it.
    FromPod = 1,
    /// `to_pod`.
    ToPod = 2,
    /// `uplink_in`.
    UplinkIn = 3,
    /// `uplink_out`.
    UplinkOut = 4,
    /// `xdp_guard`.
    XdpGuard = 5,
}

impl DropHook {
    /// All hooks, in the order of their numbers.
    pub const ALL: [Self; 5] = [
        Self::FromPod,
        Self::ToPod,
        Self::UplinkIn,
        Self::UplinkOut,
        Self::XdpGuard,
    ];

    /// Returns the name of the program.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FromPod => crate::maps::programs::FROM_POD,
            Self::ToPod => crate::maps::programs::TO_POD,
            Self::UplinkIn => crate::maps::programs::UPLINK_IN,
            Self::UplinkOut => crate::maps::programs::UPLINK_OUT,
            Self::XdpGuard => crate::maps::programs::XDP_GUARD,
        }
    }
}

/// A dropped packet, as an entry of the ring buffer. 128 bytes.
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
pub struct DropRecord {
    /// Time of the drop, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// Packets that were dropped for this pod and reason since the last record, with this one.
    pub count: u32,
    /// Number of the [`crate::DropReason`].
    pub reason: u32,
    /// Slot of the pod that the packet was from or for; 0 where none is known.
    pub pod: u32,
    /// Generation of the pod.
    pub generation: u32,
    /// Interface index of the hook; 0 for a fragment that had been held.
    pub interface: u32,
    /// Length in bytes from the IP header on.
    pub length: u32,
    /// What the other fields contain.
    pub packet: DroppedPacket,
}

const _: () = assert!(size_of::<DropRecord>() == 128);

/// The headers of a dropped packet, as it was when it was dropped: a translation may be in it
/// already. 96 bytes.
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
pub struct DroppedPacket {
    /// Addresses, ports and protocol. Of an ARP packet, sender and target.
    pub tuple: Tuple,
    /// The same of the packet that an ICMP error quotes.
    pub quoted: Tuple,
    /// The `EtherType` in host byte order; 0 where the link has no Ethernet header.
    pub ethertype: u16,
    /// Number of the [`DropHook`].
    pub hook: u8,
    /// Bits of [`DroppedPacketFlags`].
    pub flags: u8,
    /// Type of the ICMP or ICMPv6 message.
    pub icmp_type: u8,
    /// Code of the ICMP or ICMPv6 message.
    pub icmp_code: u8,
    /// Always zero.
    pub reserved: [u8; 10],
}

const _: () = assert!(size_of::<DroppedPacket>() == 96);

/// Bits of [`DroppedPacket::flags`].
#[derive(Clone, Copy, Debug)]
pub struct DroppedPacketFlags;

impl DroppedPacketFlags {
    /// [`DroppedPacket::tuple`] has addresses and protocol.
    pub const ADDRESSES: u8 = 1 << 0;
    /// [`DroppedPacket::tuple`] has ports.
    pub const PORTS: u8 = 1 << 1;
    /// [`DroppedPacket::icmp_type`] and [`DroppedPacket::icmp_code`] are set.
    pub const ICMP: u8 = 1 << 2;
    /// [`DroppedPacket::quoted`] is set.
    pub const QUOTED: u8 = 1 << 3;
    /// The packet is a fragment.
    pub const FRAGMENT: u8 = 1 << 4;
}

/// Whether the agent listens, and how often a drop of one pod and reason is reported to it: the one
/// element of its table. 24 bytes. Times are milliseconds of `CLOCK_MONOTONIC`.
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
pub struct DropSampling {
    /// Time until which drops are reported, which the agent moves while it listens: nothing is
    /// reported for an agent that has died. 0 while it does not listen.
    pub until: u64,
    /// Time at which the agent began to listen. The first drop of each pod and reason after it is
    /// reported in any case.
    pub since: u64,
    /// Milliseconds between two reports of one pod and reason.
    pub interval: u64,
}

const _: () = assert!(size_of::<DropSampling>() == 24);
