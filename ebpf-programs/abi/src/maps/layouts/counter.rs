//! Counters of pods and of drop reasons.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::maps::DROP_REASONS;

/// Direction of a packet, from the pod's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Direction {
    /// From the pod to the network.
    Egress = 0,
    /// From the network to the pod.
    Ingress = 1,
}

/// Traffic of one pod in one direction; the map index is `slot * 2 + direction`. 64 bytes.
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
    /// Packets that were dropped for a [`crate::DropReason`].
    pub dropped_packets: u64,
    /// Bytes of the dropped packets, from the IP header on.
    pub dropped_bytes: u64,
    /// Flows that were created for the pod.
    pub new_flows: u64,
    /// Flows of the pod that were evicted before their timeout, in favour of another pod's flows.
    pub evicted_flows: u64,
    /// Always zero.
    pub reserved: [u64; 2],
}

const _: () = assert!(size_of::<Counters>() == 64);

/// Packets that were dropped for one reason; the map index is the reason's number. 16 bytes.
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
    /// Dropped packets (a GSO packet counts as one).
    pub packets: u64,
    /// Bytes of the dropped packets, from the IP header on.
    pub bytes: u64,
}

/// Packets that were dropped for one pod and one reason. 16 bytes.
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
pub struct PodDropCount {
    /// Dropped packets (a GSO packet counts as one).
    pub packets: u64,
    /// The last report of such a drop; 0 before the first. See `verdict::drop_record::sample`.
    pub sampled: u64,
}

const _: () = assert!(size_of::<PodDropCount>() == 16);

/// Packets that were dropped for one pod, by reason. 1,024 bytes.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct PodDrops {
    /// Counters by the number of the [`crate::DropReason`].
    pub reasons: [PodDropCount; DROP_REASONS as usize],
}

const _: () = assert!(size_of::<PodDrops>() == 1_024);

impl Default for PodDrops {
    fn default() -> Self {
        Self {
            reasons: [PodDropCount::default(); DROP_REASONS as usize],
        }
    }
}
