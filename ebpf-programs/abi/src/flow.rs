//! Connection tracking: "tuple as seen in the packet → tuple to write".
//!
//! A flow is two entries, one for each direction, so that any packet finds what to do in one lookup. With `O` the
//! original direction's entry and `R` the reply's: `R.key == O.translated.reverse()` and
//! `O.key == R.translated.reverse()`; no pointer between the two is needed.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Address, Port};

/// Addresses, ports and protocol of one direction of a flow. 40 bytes.
///
/// ICMP echo: a request carries its identifier as the source port, a reply as the destination port, so that
/// [`Tuple::reverse`] of a request is the tuple of its reply. Protocols without ports have [`Port::NONE`] in both.
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
pub struct Tuple {
    /// Source address.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// Source port.
    pub source_port: Port,
    /// Destination port.
    pub destination_port: Port,
    /// IP protocol number.
    pub protocol: u8,
    /// Always zero.
    pub reserved: [u8; 3],
}

const _: () = assert!(size_of::<Tuple>() == 40);

impl Tuple {
    /// The tuple of packets that go the other way.
    #[inline]
    #[must_use]
    pub const fn reverse(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            protocol: self.protocol,
            reserved: [0; 3],
        }
    }
}

/// What a [`Flow`] entry is for: bits of [`Flow::flags`].
#[derive(Clone, Copy, Debug)]
pub struct FlowFlags;

impl FlowFlags {
    /// Translate where packets enter from an uplink.
    pub const UPLINK_IN: u32 = 1 << 0;
    /// Translate where packets leave by an uplink.
    pub const UPLINK_OUT: u32 = 1 << 1;
    /// Translate where packets come from a pod.
    pub const FROM_POD: u32 = 1 << 2;
    /// In the second when this direction was last seen, answers would have gone out by the link that it came by.
    pub const REVERSE_PATH_OK: u32 = 1 << 3;
    /// This entry is the direction of the flow's first packet.
    pub const ORIGINAL: u32 = 1 << 4;
    /// The flow's source is translated (MASQUERADE).
    pub const SNAT: u32 = 1 << 5;
    /// The flow's destination is translated (hostport).
    pub const DNAT: u32 = 1 << 6;
    /// The flow belongs to the node itself and was moved off a port that a pod's flow holds.
    pub const NODE: u32 = 1 << 7;
}

/// Which packets an entry has seen: bits of [`Flow::seen`].
#[derive(Clone, Copy, Debug)]
pub struct Seen;

impl Seen {
    /// Any packet at all in this direction.
    pub const PACKET: u32 = 1 << 0;
    /// TCP SYN.
    pub const SYN: u32 = 1 << 1;
    /// TCP FIN.
    pub const FIN: u32 = 1 << 2;
    /// TCP RST.
    pub const RST: u32 = 1 << 3;
    /// TCP ACK.
    pub const ACK: u32 = 1 << 4;
}

/// One direction of a tracked flow. 88 bytes.
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
pub struct Flow {
    /// What to write into the packet; equal to the key where nothing is translated.
    pub translated: Tuple,
    /// [`FlowFlags`].
    pub flags: u32,
    /// [`Seen`], of this direction only.
    pub seen: u32,
    /// Seconds of `CLOCK_MONOTONIC` when the flow was made.
    pub created: u32,
    /// Seconds of `CLOCK_MONOTONIC` when this direction was last seen.
    pub last_seen: u32,
    /// Interface index of the uplink that the flow uses; with [`FlowFlags::FROM_POD`], of the client's veth.
    pub uplink: u32,
    /// The pod's slot in the pod table; 0 for a flow of the node itself.
    pub pod: u32,
    /// Generation of the pod when the flow was made. The entry is dead when the pod's is another.
    pub generation: u32,
    /// What tells the flow from an earlier one with the same key: [`ClockEntry::flow_id`].
    pub flow_id: u32,
    /// Packets of this direction; what has passed by shortcuts may still stand in a [`PendingCounters`].
    pub packets: u64,
    /// Bytes of this direction, from the IP header on; likewise.
    pub bytes: u64,
}

const _: () = assert!(size_of::<Flow>() == 88);

/// Packets of one direction of a flow that one CPU has passed by a shortcut, and has not yet added to the flow's entry.
/// 64 bytes.
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
pub struct PendingCounters {
    /// Key of the entry.
    pub key: Tuple,
    /// [`Flow::flow_id`]: another flow of the same key has passed other packets.
    pub flow_id: u32,
    /// Always zero.
    pub reserved: u32,
    /// Packets.
    pub packets: u64,
    /// Bytes, from the IP header on.
    pub bytes: u64,
}

const _: () = assert!(size_of::<PendingCounters>() == 64);

impl PendingCounters {
    /// Adds what was noted to the entry of its key, unless that is of another flow by now.
    pub const fn add_to(&self, flow: &mut Flow) {
        if flow.flow_id == self.flow_id {
            flow.packets += self.packets;
            flow.bytes += self.bytes;
        }
    }
}

/// A flow that waits for its turn to be looked at, in [`crate::maps::TURNS`]. 48 bytes.
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
pub struct ClockEntry {
    /// Key of the original direction's entry.
    pub key: Tuple,
    /// [`Flow::flow_id`]: another flow of the same key has a turn of its own.
    pub flow_id: u32,
    /// Seconds of `CLOCK_MONOTONIC` when it is worth a look: the flow has hardly ended before. 0 for at once.
    pub due: u32,
}

const _: () = assert!(size_of::<ClockEntry>() == 48);

/// Key under which a first fragment leaves its ports for the fragments behind it (RFC 791, RFC 8200 4.5). 40 bytes.
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
pub struct FragmentKey {
    /// Source address.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// The fragment identification as it lies in memory; IPv4's 16 bits are zero-extended.
    pub identification: u32,
    /// IP protocol number of the whole packet.
    pub protocol: u8,
    /// Always zero.
    pub reserved: [u8; 3],
}

const _: () = assert!(size_of::<FragmentKey>() == 40);

/// Ports of a fragmented packet.
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
pub struct FragmentPorts {
    /// As in [`Tuple::source_port`].
    pub source_port: Port,
    /// As in [`Tuple::destination_port`].
    pub destination_port: Port,
    /// Seconds of `CLOCK_MONOTONIC` when the first fragment passed.
    pub seen: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reversing_twice_is_the_identity() {
        let tuple = Tuple {
            source: Address::v4([10, 0, 0, 2]),
            destination: Address::v4([192, 0, 2, 1]),
            source_port: Port::new(40000),
            destination_port: Port::new(443),
            protocol: 6,
            reserved: [0; 3],
        };
        assert_eq!(tuple.reverse().reverse(), tuple);
        assert_eq!(tuple.reverse().source_port, Port::new(443));
    }
}
