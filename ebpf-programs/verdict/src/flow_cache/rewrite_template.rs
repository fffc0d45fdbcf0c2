//! The rewrite of all packets of one direction of a flow, computed once.

use abi::{DropReason, Tuple, protocol};

use super::Steps;
use super::cache_key::CacheKey;
use crate::bypass::decrement_hop_limit;
use crate::checksum::Difference;
use crate::outcome::Decision;
use crate::packet::Packet;
use crate::parse::{IPV4_HEADER, IPV6_HEADER};
use crate::rewrite::{
    TCP_CHECKSUM, UDP_CHECKSUM, V4_TIME_TO_LIVE, V6_SOURCE, header_word, kind, word,
};
use crate::sender::ETHERNET;

/// The words to write into each packet, and the checksum differences that they make.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RewriteTemplate {
    /// [`Difference::halved`] of the address rewrite.
    pub addresses: u16,
    /// [`Difference::halved`] of the port rewrite.
    pub ports: u16,
    /// Destination and source MAC address, as words of packet memory.
    pub mac_addresses: [u32; 3],
    /// Source address, destination address and ports as words of packet memory: nine words, for
    /// IPv4 three.
    pub words: [u32; 9],
}

impl RewriteTemplate {
    /// Fills the template for the rewrite from one tuple to another of the same family.
    #[inline(always)]
    pub(super) fn fill(&mut self, from: &Tuple, to: &Tuple, mac_addresses: [u32; 3]) {
        let (source, destination) = (to.source.words(), to.destination.words());
        if to.source.is_v4() {
            self.words[..3].copy_from_slice(&[source[3], destination[3], ports(to)]);
        } else {
            self.words[..4].copy_from_slice(&source);
            self.words[4..8].copy_from_slice(&destination);
            self.words[8] = ports(to);
        }
        let addresses = Difference::NONE
            .and_words(from.source.words(), source)
            .and_words(from.destination.words(), destination);
        let ports = Difference::NONE.and(ports(from), ports(to));
        self.addresses = addresses.halved();
        self.ports = ports.halved();
        self.mac_addresses = mac_addresses;
    }

    /// Returns the [`Steps`] of the rewrite from one tuple to the other.
    #[inline(always)]
    pub(super) fn steps(from: &Tuple, to: &Tuple) -> u32 {
        let mut steps = 0;
        if from.source != to.source || from.destination != to.destination {
            steps |= Steps::ADDRESSES;
        }
        if ports(from) != ports(to) {
            steps |= Steps::PORTS;
        }
        steps
    }

    /// Applies `steps` of the template to a packet of [`CacheKey::kind`] `of`. Writes TTL,
    /// addresses and ports in one go where they lie side by side.
    #[inline(always)]
    pub(super) fn apply<P: Packet>(&self, packet: &mut P, of: u32, steps: u32) -> Decision<()> {
        let (v6, udp) = (
            CacheKey::is_of_v6(of),
            CacheKey::protocol_of(of) == protocol::UDP,
        );
        let header = if v6 { IPV6_HEADER } else { IPV4_HEADER };
        let at = ETHERNET + header + if udp { UDP_CHECKSUM } else { TCP_CHECKSUM };
        if steps & Steps::ADDRESSES != 0 {
            let addresses = Difference::from_folded(self.addresses.into());
            packet.fix_checksum(at, addresses, kind(udp, v6, true))?;
        }
        if steps & Steps::PORTS != 0 {
            let ports = Difference::from_folded(self.ports.into());
            packet.fix_checksum(at, ports, kind(udp, v6, false))?;
        }
        if v6 {
            self.write_v6(packet, steps)?;
        } else {
            self.write_v4(packet, steps)?;
        }
        if steps & Steps::MAC_ADDRESSES != 0 {
            packet.store_linear(0, self.mac_addresses)?;
        }
        Ok(())
    }

    /// Rewrites an IPv4 header from its TTL to the ports behind it: the words lie side by side.
    #[inline(always)]
    fn write_v4<P: Packet>(&self, packet: &mut P, steps: u32) -> Decision<()> {
        let at = ETHERNET + V4_TIME_TO_LIVE;
        let [old] = packet
            .linear_words::<1>(at)
            .ok_or(DropReason::RewriteFailed)?;
        // The parser has refused packets with a TTL of 1.
        let aged = u8::from(steps & Steps::TTL_DECREMENTED != 0);
        let first = header_word(old, aged, self.addresses);
        let [source, destination, ports, ..] = self.words;
        packet.store_linear(at, [first, source, destination, ports])
    }

    /// Rewrites addresses and ports of an IPv6 packet, and its hop limit, which no checksum in the
    /// packet covers.
    #[inline(always)]
    fn write_v6<P: Packet>(&self, packet: &mut P, steps: u32) -> Decision<()> {
        packet.store_linear(ETHERNET + V6_SOURCE, self.words)?;
        if steps & Steps::TTL_DECREMENTED != 0 {
            decrement_hop_limit(packet, 6, ETHERNET)?;
        }
        Ok(())
    }
}

/// Returns both ports as one word of packet memory.
#[inline(always)]
fn ports(tuple: &Tuple) -> u32 {
    word(tuple.source_port.raw(), tuple.destination_port.raw())
}
