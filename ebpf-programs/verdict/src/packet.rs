//! A packet as the datapath may touch it. Knows no protocol.

use crate::checksum::Difference;
use crate::outcome::Decision;

/// Bytes of one packet, link-layer header included where the interface has one.
///
/// Reading and writing is by words as they lie in memory, because eBPF copies words and not bytes; offsets need
/// no alignment.
pub trait Packet {
    /// Length in bytes.
    fn len(&self) -> u32;

    /// Whether there is nothing in it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the link layer says is inside: an `EtherType`, as a number.
    fn ethertype(&self) -> u16;

    /// Whether it belongs to a VLAN: the tag is not among its bytes, the kernel keeps it beside them.
    fn is_tagged(&self) -> bool;

    /// `N` words from `offset` on, or `None` where the packet ends before.
    fn words<const N: usize>(&self, offset: u32) -> Option<[u32; N]>;

    /// As [`Packet::words`], and `None` as well where they would have to be copied first.
    fn near<const N: usize>(&self, offset: u32) -> Option<[u32; N]>;

    /// As [`Packet::near`], of `A` words at its beginning and `B` at `offset`, which is behind them.
    fn near_both<const A: usize, const B: usize>(
        &self,
        offset: u32,
    ) -> Option<([u32; A], [u32; B])> {
        let behind = self.near(offset)?;
        Some((self.near(0)?, behind))
    }

    /// Writes `N` words at `offset`.
    fn store<const N: usize>(&mut self, offset: u32, words: [u32; N]) -> Decision<()>;

    /// As [`Packet::store`], for what [`Packet::near`] has read: an error where it would have to be copied first.
    fn store_near<const N: usize>(&mut self, offset: u32, words: [u32; N]) -> Decision<()>;

    /// As [`Packet::store`], where no checksum in the packet makes up for the change: the sum that a network card has
    /// taken of the whole packet must follow.
    fn store_alone<const N: usize>(&mut self, offset: u32, words: [u32; N]) -> Decision<()>;

    /// Whether the packet, or each of the packets that it will be cut into, may leave by this interface.
    fn fits(&self, interface: u32) -> bool;

    /// Adds a difference to the checksum of a transport protocol at `offset`.
    fn fix_checksum(
        &mut self,
        offset: u32,
        difference: Difference,
        kind: ChecksumKind,
    ) -> Decision<()>;
}

/// What a transport checksum is, beyond a sum.
///
/// A checksum left to the network card holds the sum of the pseudo-header only, so it must be told apart whether a
/// difference comes from the pseudo-header (addresses) or from what the card will add up itself (ports).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumKind {
    /// The difference is one of the pseudo-header.
    pub pseudo_header: bool,
    /// Zero means "no checksum" and stays, and a sum that becomes zero is written as 0xffff (UDP).
    pub zero_means_none: bool,
    /// The addresses are IPv6: no header checksum makes up for their difference.
    pub v6: bool,
}
