//! What is written into all packets of a connection, worked out once.

use abi::{DropReason, Tuple, protocol};

use super::Steps;
use super::sight::Sight;
use crate::bypass::age;
use crate::checksum::Difference;
use crate::outcome::Decision;
use crate::packet::Packet;
use crate::parse::{IPV4_HEADER, IPV6_HEADER};
use crate::rewrite::{
    TCP_CHECKSUM, UDP_CHECKSUM, V4_TIME_TO_LIVE, V6_SOURCE, header_word, kind, word,
};
use crate::sender::ETHERNET;

/// What is written into packets, and what it does to sums.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Change {
    /// [`Difference::halved`] of the addresses.
    pub addresses: u16,
    /// The same of the ports.
    pub ports: u16,
    /// Ethernet addresses.
    pub stations: [u32; 3],
    /// Source, destination and ports, as they lie in the packet: nine words, or three of IPv4.
    pub words: [u32; 9],
}

impl Change {
    /// From one tuple to another of its family.
    #[inline(always)]
    pub(super) fn fill(&mut self, from: &Tuple, to: &Tuple, stations: [u32; 3]) {
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
        self.stations = stations;
    }

    /// [`Steps`] that a packet takes from one tuple to the other.
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

    /// Does to a packet of that sight what was done to the one before it.
    #[inline(always)]
    pub(super) fn make<P: Packet>(&self, packet: &mut P, of: u32, steps: u32) -> Decision<()> {
        let (v6, udp) = (Sight::is_of_v6(of), Sight::protocol_of(of) == protocol::UDP);
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
        if steps & Steps::STATIONS != 0 {
            packet.store_near(0, self.stations)?;
        }
        Ok(())
    }

    /// Writes all that changes of an IPv4 packet, from its time to live to its ports: it lies side by side.
    #[inline(always)]
    fn write_v4<P: Packet>(&self, packet: &mut P, steps: u32) -> Decision<()> {
        let at = ETHERNET + V4_TIME_TO_LIVE;
        let [old] = packet.near::<1>(at).ok_or(DropReason::RewriteFailed)?;
        // One that has no hop left has no shortcut.
        let aged = u8::from(steps & Steps::AGED != 0);
        let first = header_word(old, aged, self.addresses);
        let [source, destination, ports, ..] = self.words;
        packet.store_near(at, [first, source, destination, ports])
    }

    /// Writes addresses and ports of an IPv6 packet, and its age, for which no checksum makes up.
    #[inline(always)]
    fn write_v6<P: Packet>(&self, packet: &mut P, steps: u32) -> Decision<()> {
        packet.store_near(ETHERNET + V6_SOURCE, self.words)?;
        if steps & Steps::AGED != 0 {
            age(packet, 6, ETHERNET)?;
        }
        Ok(())
    }
}

/// Both ports, as they lie in a packet.
#[inline(always)]
fn ports(tuple: &Tuple) -> u32 {
    word(tuple.source_port.raw(), tuple.destination_port.raw())
}
