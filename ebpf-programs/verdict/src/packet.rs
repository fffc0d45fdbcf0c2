//! Packet access as a trait. Contains no protocol.

use crate::checksum::Difference;
use crate::crc;
use crate::outcome::Decision;

/// The bytes of one packet, link-layer header included where the interface has one.
///
/// Reads and writes are by 32-bit words of packet memory (network order, never swapped), because
/// eBPF copies words and not bytes; offsets need no alignment.
pub trait Packet {
    /// Returns the length in bytes.
    fn len(&self) -> u32;

    /// Returns whether the length is zero.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the `EtherType` in host byte order.
    fn ethertype(&self) -> u16;

    /// Returns whether the packet has a VLAN tag. The tag is not among its bytes: the kernel keeps
    /// it in the metadata.
    fn is_tagged(&self) -> bool;

    /// Returns the VLAN identifier of that tag, 0..=4095; 0 where there is no tag, or one with a
    /// priority only (IEEE 802.1Q, "priority-tagged").
    fn vlan_id(&self) -> u32;

    /// Returns the interface index of the hook.
    fn hook_interface(&self) -> u32;

    /// Returns the interface index of the link that the packet has come in by; 0 for a packet of
    /// the node itself. A bridge forwards a frame with the index of the port that the frame came in
    /// by, and routing one with that of the bridge.
    fn ingress_interface(&self) -> u32;

    /// Returns whether the link layer has addressed the packet to this host alone (`PACKET_HOST`):
    /// the kernel forwards no others. See [`Packet::is_for_other_host`].
    fn is_for_this_host(&self) -> bool;

    /// Returns whether the link layer has addressed the packet to another host
    /// (`PACKET_OTHERHOST`): a promiscuous link receives such packets, and the stack drops them.
    fn is_for_other_host(&self) -> bool;

    /// Returns `N` words from `offset` on, or `None` where the packet ends before.
    fn words<const N: usize>(&self, offset: u32) -> Option<[u32; N]>;

    /// As [`Packet::words`], but returns `None` as well where the words are not in the linear part
    /// and would have to be copied.
    fn linear_words<const N: usize>(&self, offset: u32) -> Option<[u32; N]>;

    /// As [`Packet::linear_words`], for `A` words at the beginning and `B` words at `offset`, which
    /// is behind them.
    fn linear_words_both<const A: usize, const B: usize>(
        &self,
        offset: u32,
    ) -> Option<([u32; A], [u32; B])> {
        let behind = self.linear_words(offset)?;
        Some((self.linear_words(0)?, behind))
    }

    /// Writes `N` words at `offset`.
    fn store<const N: usize>(&mut self, offset: u32, words: [u32; N]) -> Decision<()>;

    /// As [`Packet::store`], in the linear part only: fails where the words would have to be
    /// copied.
    fn store_linear<const N: usize>(&mut self, offset: u32, words: [u32; N]) -> Decision<()>;

    /// As [`Packet::store`], where no checksum in the packet compensates for the change: updates
    /// `CHECKSUM_COMPLETE`, the sum that a network card has taken of the whole packet.
    fn store_and_update_csum<const N: usize>(
        &mut self,
        offset: u32,
        words: [u32; N],
    ) -> Decision<()>;

    /// Returns whether the packet, or each of its GSO segments, fits the MTU of this interface.
    fn fits(&self, interface: u32) -> bool;

    /// Returns the MTU of this interface in bytes, 0 where there is none.
    fn mtu(&self, interface: u32) -> u32;

    /// Adds a difference to the transport checksum at `offset`.
    fn fix_checksum(
        &mut self,
        offset: u32,
        difference: Difference,
        kind: ChecksumKind,
    ) -> Decision<()>;

    /// [`crc::change`]. The verifier walks every step of its loops wherever it is inlined, so the
    /// BPF object has it as a function of its own.
    fn crc_change(&self, difference: u32, length: u32) -> u32 {
        crc::change(difference, length)
    }
}

/// Properties of a checksum update beyond the sum.
///
/// A checksum that is left to the network card (`CHECKSUM_PARTIAL`) holds only the sum of the
/// pseudo-header. So the update must state whether the difference comes from the pseudo-header
/// (addresses) or from bytes that the card will add (ports).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumKind {
    /// The difference is in the pseudo-header.
    pub pseudo_header: bool,
    /// Zero means "no checksum" and stays, and a sum that becomes zero is written as 0xffff (UDP).
    pub zero_means_none: bool,
    /// The addresses are IPv6: no header checksum compensates for their difference.
    pub v6: bool,
}
