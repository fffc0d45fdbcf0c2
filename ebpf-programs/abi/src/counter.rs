//! Counters, kept once per CPU and added up by the reader.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Which way a packet goes, seen from the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Direction {
    /// From the pod.
    Egress = 0,
    /// To the pod.
    Ingress = 1,
}

/// Traffic of one pod in one direction; index in the table: `slot * 2 + direction`. 64 bytes.
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
pub struct Counters {
    /// Packets that passed (a GSO packet counts as one).
    pub packets: u64,
    /// Bytes that passed, from the IP header on.
    pub bytes: u64,
    /// Packets dropped by name.
    pub dropped_packets: u64,
    /// Bytes dropped by name.
    pub dropped_bytes: u64,
    /// Flows made for the pod.
    pub new_flows: u64,
    /// Flows of the pod that were forgotten before their time, to make room for another pod's.
    pub evicted_flows: u64,
    /// Always zero.
    pub reserved: [u64; 2],
}

const _: () = assert!(size_of::<Counters>() == 64);

/// Packets dropped for one reason; index in the table: the reason's number.
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
pub struct DropCount {
    /// Packets.
    pub packets: u64,
    /// Bytes, from the IP header on.
    pub bytes: u64,
}
