//! Connection tracking: the flow table maps the packet's tuple to the tuple to write.
//!
//! A flow has two entries, one per direction, so that one lookup gives the translation of any
//! packet. With `O` the entry of the original direction and `R` that of the reply: `R.key ==
//! O.translated.reverse()` and `O.key == R.translated.reverse()`. The entries thus need no pointers
//! to each other.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Address, Port};

/// Addresses, ports and protocol of one direction of a flow. 40 bytes.
///
/// ICMP echo: a request carries its identifier as the source port, a reply as the destination port,
/// so that [`Tuple::reverse`] of a request is the tuple of its reply. Protocols without ports have
/// [`Port::NONE`] in both.
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
    /// IP protocol number: see [`crate::protocol`].
    pub protocol: u8,
    /// Always zero.
    pub reserved: [u8; 3],
}

const _: () = assert!(size_of::<Tuple>() == 40);

impl Tuple {
    /// Returns the tuple of packets in the other direction.
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

/// Bits of [`Flow::flags`]: where the entry applies, what it translates, and in the upper half the
/// account that the flow counts for.
#[derive(Clone, Copy, Debug)]
pub struct FlowFlags;

impl FlowFlags {
    /// The entry applies to packets that arrive on an uplink (`uplink_in`).
    pub const UPLINK_IN: u32 = 1 << 0;
    /// The entry applies to packets that leave through an uplink (`uplink_out`).
    pub const UPLINK_OUT: u32 = 1 << 1;
    /// The entry applies to packets from a pod (`from_pod`).
    pub const FROM_POD: u32 = 1 << 2;
    /// The reverse path check succeeded in the second of [`Flow::last_seen`]: replies leave through
    /// the interface on which this direction arrives.
    pub const REVERSE_PATH_OK: u32 = 1 << 3;
    /// This entry is the direction of the flow's first packet.
    pub const ORIGINAL: u32 = 1 << 4;
    /// The flow's source is translated (MASQUERADE).
    pub const SNAT: u32 = 1 << 5;
    /// The flow's destination is translated (hostport).
    pub const DNAT: u32 = 1 << 6;
    /// The flow belongs to the node itself or to another NAT on the node. With [`FlowFlags::SNAT`]
    /// its source port was changed, because a pod's flow uses it; else it only reserves the port.
    pub const NODE: u32 = 1 << 7;

    /// Number of bits below the account.
    const ACCOUNT_SHIFT: u32 = 16;

    /// Returns the bits of a flow that counts for an account.
    #[inline]
    pub const fn of_account(account: u32) -> u32 {
        (account + 1) << Self::ACCOUNT_SHIFT
    }

    /// Returns the account that a flow with these flags counts for, an index of
    /// [`crate::maps::LIVE`]; `None` for a flow that was made by ABI version 1, which is not
    /// counted.
    #[inline]
    pub const fn account(flags: u32) -> Option<u32> {
        (flags >> Self::ACCOUNT_SHIFT).checked_sub(1)
    }
}

/// Bits of [`Flow::seen`]: packets that the entry's direction has had.
#[derive(Clone, Copy, Debug)]
pub struct Seen;

impl Seen {
    /// Any packet.
    pub const PACKET: u32 = 1 << 0;
    /// A TCP segment with SYN.
    pub const SYN: u32 = 1 << 1;
    /// A TCP segment with FIN, at a sequence number of the connection.
    pub const FIN: u32 = 1 << 2;
    /// A TCP segment with RST, at the sequence number that the receiver expects.
    pub const RST: u32 = 1 << 3;
    /// A TCP segment with ACK.
    pub const ACK: u32 = 1 << 4;
    /// A RST close to the sequence number that the receiver expects, and no packet since.
    pub const RESET_SUSPECTED: u32 = 1 << 5;
    /// The other direction has sent a SYN, which this direction has not acknowledged by
    /// [`Flow::awaited`] yet.
    pub const AWAITS_SYN: u32 = 1 << 6;
    /// The other direction has sent a FIN beyond the expected sequence numbers, which this
    /// direction has not acknowledged by [`Flow::awaited`] yet.
    pub const AWAITS_FIN: u32 = 1 << 7;
    /// This direction has acknowledged such a FIN of the other direction.
    pub const FIN_CONFIRMED: u32 = 1 << 8;
}

/// One direction of a tracked flow: value of the flow table. 96 bytes.
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
    /// The tuple to write into the packet; equal to the key without translation.
    pub translated: Tuple,
    /// Bits of [`FlowFlags`].
    pub flags: u32,
    /// Bits of [`Seen`], of this direction only.
    pub seen: u32,
    /// Creation time in seconds of `CLOCK_MONOTONIC`.
    pub created: u32,
    /// Time of this direction's last packet, in seconds of `CLOCK_MONOTONIC`.
    pub last_seen: u32,
    /// Interface index of the flow's uplink; with [`FlowFlags::FROM_POD`], of the client's veth.
    pub uplink: u32,
    /// The pod's slot in the pod table; 0 for a flow of the node itself.
    pub pod: u32,
    /// Generation of the pod when the flow was created. The entry is stale if the pod's generation
    /// differs.
    pub generation: u32,
    /// Distinguishes the flow from an earlier one with the same key; also in
    /// [`ClockEntry::flow_id`].
    pub flow_id: u32,
    /// TCP: acknowledgment number of this direction's last segment, in host byte order, without
    /// those in [`PendingCounters`]; valid with [`Seen::ACK`].
    pub acknowledged: u32,
    /// TCP: acknowledgment number by which this direction confirms a SYN or FIN, in host byte
    /// order; valid with [`Seen::AWAITS_SYN`] or [`Seen::AWAITS_FIN`].
    pub awaited: u32,
    /// Packets of this direction, without those that are still in [`PendingCounters`] of the flow
    /// cache.
    pub packets: u64,
    /// Bytes of this direction, from the IP header on; also without those in [`PendingCounters`].
    pub bytes: u64,
}

const _: () = assert!(size_of::<Flow>() == 96);
const _: () = assert!(crate::maps::LIVE.capacity < 1 << 16);

impl Flow {
    /// Returns the account of the flow, an index of [`crate::maps::LIVE`]. That of a flow which is
    /// not counted is the slot of its pod.
    #[inline]
    pub const fn account(&self) -> u32 {
        match FlowFlags::account(self.flags) {
            Some(account) => account,
            None => self.pod,
        }
    }
}

/// Packets of one flow direction that one CPU has handled from its flow cache and not yet added to
/// the flow's entry. 64 bytes.
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
    /// Key of the flow table entry.
    pub key: Tuple,
    /// [`Flow::flow_id`] of the flow: the counts must not be added to a later flow with the same
    /// key.
    pub flow_id: u32,
    /// TCP: acknowledgment number of the last of these packets, in host byte order.
    pub acknowledged: u32,
    /// Packets not yet added to [`Flow::packets`].
    pub packets: u64,
    /// Bytes not yet added to [`Flow::bytes`], from the IP header on.
    pub bytes: u64,
}

const _: () = assert!(size_of::<PendingCounters>() == 64);

impl PendingCounters {
    /// Adds the counts to the entry of the key, unless the entry belongs to another flow by now.
    pub const fn add_to(&self, flow: &mut Flow) {
        if flow.flow_id != self.flow_id {
            return;
        }
        flow.packets += self.packets;
        flow.bytes += self.bytes;
        let later = self
            .acknowledged
            .wrapping_sub(flow.acknowledged)
            .cast_signed()
            > 0;
        if self.key.protocol == crate::protocol::TCP && self.packets > 0 && later {
            flow.acknowledged = self.acknowledged;
        }
    }
}

/// An entry of the eviction clock [`crate::maps::TURNS`]: a flow that the clock hand will check. 48
/// bytes.
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
    /// [`Flow::flow_id`] of the flow: a later flow with the same key has its own clock entry.
    pub flow_id: u32,
    /// Seconds of `CLOCK_MONOTONIC` before which the flow has hardly finished, so the clock hand
    /// skips the check; 0 for an immediate check.
    pub due: u32,
}

const _: () = assert!(size_of::<ClockEntry>() == 48);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reversing_a_tuple_twice_is_the_identity() {
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
