//! Builds IP packets, whole and in fragments, with the checksums that a sender computes.

use std::net::IpAddr;

use abi::protocol;

/// Bytes of an IPv4 header without options.
pub(super) const IPV4: usize = 20;
/// Bytes of an IPv6 header.
pub(super) const IPV6: usize = 40;
/// Bytes of an IPv6 fragment header.
const FRAGMENT: usize = 8;

/// The IP header of a packet to build.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) protocol: u8,
    /// Only IPv4 has it in the header.
    pub(super) dont_fragment: bool,
    pub(super) identification: u16,
}

/// The place of a fragment in its packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Bytes from the start of the payload.
    pub(super) offset: usize,
    /// Whether fragments follow.
    pub(super) more: bool,
}

/// Fields of a TCP header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) ports: [u16; 2],
    pub(super) sequence: u32,
    pub(super) acknowledged: u32,
    pub(super) flags: u8,
}

impl Header {
    /// Returns the packet with this transport header and payload.
    pub(super) fn packet(&self, payload: &[u8]) -> Vec<u8> {
        self.bytes(payload, None)
    }

    /// Returns a fragment: a part of the payload, and its place.
    pub(super) fn fragment(&self, part: &[u8], place: Place) -> Vec<u8> {
        self.bytes(part, Some(place))
    }

    fn bytes(&self, payload: &[u8], place: Option<Place>) -> Vec<u8> {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                self.ipv4([source.octets(), destination.octets()], payload, place)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                self.ipv6([source.octets(), destination.octets()], payload, place)
            }
            _ => unreachable!("both addresses of a packet have one family"),
        }
    }

    fn ipv4(&self, addresses: [[u8; 4]; 2], payload: &[u8], place: Option<Place>) -> Vec<u8> {
        let mut bytes = vec![0x45, 0];
        bytes.extend(length(IPV4 + payload.len()));
        bytes.extend(self.identification.to_be_bytes());
        let flags = match place {
            Some(place) => u16::from(place.more) << 13 | units(place.offset / 8),
            None => u16::from(self.dont_fragment) << 14,
        };
        bytes.extend(flags.to_be_bytes());
        bytes.extend([64, self.protocol, 0, 0]);
        bytes.extend(addresses.concat());
        let checksum = checksum(&bytes);
        bytes[10..12].copy_from_slice(&checksum);
        bytes.extend(payload);
        bytes
    }

    fn ipv6(&self, addresses: [[u8; 16]; 2], payload: &[u8], place: Option<Place>) -> Vec<u8> {
        let extension = if place.is_some() { FRAGMENT } else { 0 };
        let mut bytes = vec![0x60, 0, 0, 0];
        bytes.extend(length(extension + payload.len()));
        bytes.extend([if extension == 0 { self.protocol } else { 44 }, 64]);
        bytes.extend(addresses.concat());
        if let Some(place) = place {
            bytes.extend([self.protocol, 0]);
            bytes.extend((units(place.offset) | u16::from(place.more)).to_be_bytes());
            bytes.extend(u32::from(self.identification).to_be_bytes());
        }
        bytes.extend(payload);
        bytes
    }

    /// Returns a TCP segment.
    pub(super) fn tcp(&self, segment: &Segment, payload: &[u8]) -> Vec<u8> {
        let mut bytes = segment.ports.map(u16::to_be_bytes).concat();
        bytes.extend(segment.sequence.to_be_bytes());
        bytes.extend(segment.acknowledged.to_be_bytes());
        bytes.extend([0x50, segment.flags, 0xff, 0xff, 0, 0, 0, 0]);
        bytes.extend(payload);
        self.sealed(bytes, 16)
    }

    /// Returns a UDP datagram.
    pub(super) fn udp(&self, ports: [u16; 2], payload: &[u8], with_checksum: bool) -> Vec<u8> {
        let mut bytes = ports.map(u16::to_be_bytes).concat();
        bytes.extend(length(8 + payload.len()));
        bytes.extend([0, 0]);
        bytes.extend(payload);
        if with_checksum {
            bytes = self.sealed(bytes, 6);
            if bytes[6..8] == [0, 0] {
                bytes[6..8].copy_from_slice(&[0xff, 0xff]);
            }
        }
        bytes
    }

    /// Returns an ICMP message of the packet's family: type and code, the four bytes behind the
    /// checksum, and the rest.
    pub(super) fn icmp(&self, kind: [u8; 2], rest: [u8; 4], payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind[0], kind[1], 0, 0];
        bytes.extend(rest);
        bytes.extend(payload);
        self.sealed(bytes, 2)
    }

    /// Writes the transport checksum at this offset.
    fn sealed(&self, mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
        let mut covered = pseudo_header(self.source, self.destination, self.protocol, bytes.len());
        covered.extend(&bytes);
        bytes[at..at + 2].copy_from_slice(&checksum(&covered));
        bytes
    }
}

/// Returns the pseudo header that a transport checksum covers; ICMP of IPv4 has none.
pub(super) fn pseudo_header(
    source: IpAddr,
    destination: IpAddr,
    number: u8,
    length: usize,
) -> Vec<u8> {
    if number == protocol::ICMP {
        return Vec::new();
    }
    let mut covered = [octets(source), octets(destination)].concat();
    covered.extend(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    covered.extend([0, 0, 0, number]);
    covered
}

/// Returns the bytes of an address.
pub(super) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// Returns the folded sum of RFC 1071: all ones if the bytes include a valid checksum.
pub(super) fn sum(bytes: &[u8]) -> u16 {
    let sum = bytes
        .chunks(2)
        .map(|pair| {
            let low = pair.get(1).copied().unwrap_or(0);
            u32::from(u16::from_be_bytes([pair[0], low]))
        })
        .fold(0, |sum, word| {
            let sum: u32 = sum + word;
            (sum & 0xffff) + (sum >> 16)
        });
    u16::try_from(sum).expect("the sum is folded")
}

fn checksum(bytes: &[u8]) -> [u8; 2] {
    (!sum(bytes)).to_be_bytes()
}

fn length(bytes: usize) -> [u8; 2] {
    units(bytes).to_be_bytes()
}

fn units(number: usize) -> u16 {
    u16::try_from(number).expect("a packet has at most 65535 bytes")
}
