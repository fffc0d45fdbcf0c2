//! Frame builder of the tests.
//!
//! Checksums are computed in full, byte by byte, so that the datapath's incremental updates can be
//! compared with a sender's result.

use std::ops::Range;

use abi::{Address, Mac, protocol};

/// Destination MAC address of frames, unless a test chooses another one.
pub const TO: Mac = Mac::new([2, 0, 0, 0, 0, 0xd]);

/// A frame: addresses and a body, from which it computes the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Destination and source of the Ethernet header, if there is one.
    pub ethernet: Option<[Mac; 2]>,
    /// Source address; its family is the packet's.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// IPv4 options, or IPv6 extension headers as pairs of protocol number and bytes after the
    /// first two.
    pub options: Vec<(u8, Vec<u8>)>,
    /// The payload of the IP packet.
    pub body: Body,
}

/// The payload of an IP packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A TCP segment: ports, flags, payload.
    Tcp(u16, u16, u8, Vec<u8>),
    /// A UDP datagram: ports, payload.
    Udp(u16, u16, Vec<u8>),
    /// A UDP datagram without a checksum.
    UdpUnchecked(u16, u16, Vec<u8>),
    /// An SCTP packet: ports, and the bytes after the verification tag.
    Sctp(u16, u16, Vec<u8>),
    /// An ICMP message of the packet's family: type, code, the four bytes after the checksum, the
    /// rest.
    Icmp(u8, u8, [u8; 4], Vec<u8>),
    /// Any other protocol.
    Other(u8, Vec<u8>),
}

/// TCP flags.
pub mod flag {
    /// FIN.
    pub const FIN: u8 = 0x01;
    /// SYN.
    pub const SYN: u8 = 0x02;
    /// RST.
    pub const RST: u8 = 0x04;
    /// ACK.
    pub const ACK: u8 = 0x10;
}

impl Body {
    /// Returns an echo request of the family of `address`.
    pub fn echo_request(address: &Address, identifier: u16) -> Self {
        Self::echo(if address.is_v4() { 8 } else { 128 }, identifier)
    }

    /// Returns an echo reply of the family of `address`.
    pub fn echo_reply(address: &Address, identifier: u16) -> Self {
        Self::echo(if address.is_v4() { 0 } else { 129 }, identifier)
    }

    fn echo(icmp_type: u8, identifier: u16) -> Self {
        let [a, b] = identifier.to_be_bytes();
        Self::Icmp(icmp_type, 0, [a, b, 0, 7], b"echo".to_vec())
    }

    /// Returns the protocol number, in a packet of the family of `address`.
    pub fn protocol(&self, address: &Address) -> u8 {
        match self {
            Self::Tcp(..) => protocol::TCP,
            Self::Udp(..) | Self::UdpUnchecked(..) => protocol::UDP,
            Self::Sctp(..) => protocol::SCTP,
            Self::Icmp(..) if address.is_v4() => protocol::ICMP,
            Self::Icmp(..) => protocol::ICMPV6,
            Self::Other(number, _) => *number,
        }
    }
}

impl Frame {
    /// Returns an Ethernet frame from `source` to `destination`, with two fixed MAC addresses.
    pub fn new(source: Address, destination: Address, body: Body) -> Self {
        Self {
            ethernet: Some([TO, Mac::new([2, 0, 0, 0, 0, 0x5])]),
            source,
            destination,
            options: Vec::new(),
            body,
        }
    }

    /// Returns the frame with other addresses and another body, such as its expected translation.
    #[must_use]
    pub fn becoming(&self, source: Address, destination: Address, body: Body) -> Self {
        Self {
            source,
            destination,
            body,
            ..self.clone()
        }
    }

    /// Returns the frame with other MAC addresses.
    #[must_use]
    pub fn from_to(mut self, from: Mac, to: Mac) -> Self {
        self.ethernet = self.ethernet.map(|_| [to, from]);
        self
    }

    /// Returns the frame with another source MAC address.
    #[must_use]
    pub fn sent_by(mut self, mac: Mac) -> Self {
        if let Some([_, source]) = &mut self.ethernet {
            *source = mac;
        }
        self
    }

    /// Returns the bytes on the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.link_layer();
        bytes.extend(self.packet());
        bytes
    }

    /// Returns the bytes from the IP header on.
    pub fn packet(&self) -> Vec<u8> {
        self.with_payload(&self.transport(), None)
    }

    /// Returns the bytes of two fragments of this frame, the first with `at` bytes after the IP
    /// header; `at` is a multiple of eight.
    ///
    /// # Panics
    /// If the payload has fewer bytes.
    pub fn fragments(&self, identification: u32, at: usize) -> [Vec<u8>; 2] {
        let pieces = self.fragments_at(identification, &[at]);
        pieces.try_into().expect("one cut makes two pieces")
    }

    /// Returns the bytes of the fragments of this frame that begin at these offsets behind the IP
    /// header, and at 0; offsets are multiples of eight, in ascending order.
    ///
    /// # Panics
    /// If the payload has fewer bytes.
    pub fn fragments_at(&self, identification: u32, cuts: &[usize]) -> Vec<Vec<u8>> {
        let length = self.transport().len();
        let starts = [0].into_iter().chain(cuts.iter().copied());
        let ends = cuts.iter().copied().chain([length]);
        starts
            .zip(ends)
            .map(|(start, end)| self.fragment(identification, start..end))
            .collect()
    }

    /// Returns the bytes of the fragment with this range of the bytes behind the IP header.
    ///
    /// # Panics
    /// If the payload has fewer bytes.
    pub fn fragment(&self, identification: u32, range: Range<usize>) -> Vec<u8> {
        let transport = self.transport();
        let part = Part {
            identification,
            offset: u16::try_from(range.start).expect("a fragment's offset is 16 bits"),
            more: range.end < transport.len(),
        };
        let mut bytes = self.link_layer();
        bytes.extend(self.with_payload(&transport[range], Some(part)));
        bytes
    }

    fn link_layer(&self) -> Vec<u8> {
        let Some([destination, source]) = self.ethernet else {
            return Vec::new();
        };
        let kind: u16 = if self.source.is_v4() { 0x0800 } else { 0x86dd };
        let mut bytes = destination.bytes().to_vec();
        bytes.extend(source.bytes());
        bytes.extend(kind.to_be_bytes());
        bytes
    }

    fn with_payload(&self, payload: &[u8], part: Option<Part>) -> Vec<u8> {
        let protocol = self.body.protocol(&self.source);
        if self.source.is_v4() {
            self.ipv4(protocol, payload, part)
        } else {
            self.ipv6(protocol, payload, part)
        }
    }

    fn ipv4(&self, protocol: u8, payload: &[u8], part: Option<Part>) -> Vec<u8> {
        let options: Vec<u8> = self.options.iter().flat_map(|(_, b)| b.clone()).collect();
        let header_len = 20 + options.len();
        let total = u16::try_from(header_len + payload.len()).expect("a packet fits 16 bits");
        let version = 0x40 | u8::try_from(header_len / 4).expect("options are at most 40 bytes");
        let mut bytes = vec![version, 0];
        bytes.extend(total.to_be_bytes());
        let (identification, bits) = part.map_or((0x1234, 0x4000), |part| {
            let more = if part.more { 0x2000 } else { 0 };
            let low = u16::try_from(part.identification).expect("IPv4 has 16 bits for it");
            (low, (part.offset / 8) | more)
        });
        bytes.extend(identification.to_be_bytes());
        bytes.extend(bits.to_be_bytes());
        bytes.extend([64, protocol, 0, 0]);
        bytes.extend(&self.source.bytes()[12..]);
        bytes.extend(&self.destination.bytes()[12..]);
        bytes.extend(options);
        let checksum = checksum(&bytes);
        bytes[10..12].copy_from_slice(&checksum);
        bytes.extend(payload);
        bytes
    }

    fn ipv6(&self, protocol: u8, payload: &[u8], part: Option<Part>) -> Vec<u8> {
        let mut chain = self.options.clone();
        if let Some(part) = part {
            let mut fields = (part.offset | u16::from(part.more)).to_be_bytes().to_vec();
            fields.extend(part.identification.to_be_bytes());
            chain.push((44, fields));
        }
        let following: Vec<u8> = chain
            .iter()
            .map(|(number, _)| *number)
            .chain([protocol])
            .collect();
        let mut extensions = Vec::new();
        for ((number, fields), next) in chain.iter().zip(&following[1..]) {
            let eights = u8::try_from((fields.len() + 2) / 8).expect("an extension is short");
            let length = match number {
                44 => 0,
                51 => eights * 2 - 2,
                _ => eights - 1,
            };
            extensions.extend([*next, length]);
            extensions.extend(fields);
        }
        let total = u16::try_from(extensions.len() + payload.len()).expect("it fits 16 bits");
        let mut bytes = vec![0x60, 0, 0, 0];
        bytes.extend(total.to_be_bytes());
        bytes.extend([following[0], 64]);
        bytes.extend(self.source.bytes());
        bytes.extend(self.destination.bytes());
        bytes.extend(extensions);
        bytes.extend(payload);
        bytes
    }

    /// Returns transport header and payload, with checksum.
    fn transport(&self) -> Vec<u8> {
        let protocol = self.body.protocol(&self.source);
        match &self.body {
            Body::Tcp(source, destination, flags, payload) => {
                let mut bytes = ports(*source, *destination);
                bytes.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, *flags, 0xff, 0, 0, 0, 0, 0]);
                bytes.extend(payload);
                self.sealed(bytes, protocol, 16)
            }
            Body::Udp(source, destination, payload) => {
                let bytes = udp(*source, *destination, payload);
                let mut bytes = self.sealed(bytes, protocol, 6);
                if bytes[6..8] == [0, 0] {
                    bytes[6..8].copy_from_slice(&[0xff, 0xff]);
                }
                bytes
            }
            Body::UdpUnchecked(source, destination, payload) => udp(*source, *destination, payload),
            Body::Sctp(source, destination, rest) => {
                let mut bytes = ports(*source, *destination);
                bytes.extend([1, 2, 3, 4, 0, 0, 0, 0]);
                bytes.extend(rest);
                let crc = crc32c(&bytes).to_le_bytes();
                bytes[8..12].copy_from_slice(&crc);
                bytes
            }
            Body::Icmp(icmp_type, code, rest, payload) => {
                let mut bytes = vec![*icmp_type, *code, 0, 0];
                bytes.extend(rest);
                bytes.extend(payload);
                self.sealed(bytes, protocol, 2)
            }
            // They have their checksum where UDP has it; it covers the addresses.
            Body::Other(protocol::UDP_LITE | protocol::DCCP, payload) if payload.len() >= 8 => {
                let mut bytes = payload.clone();
                bytes[6..8].fill(0);
                let mut bytes = self.sealed(bytes, protocol, 6);
                if protocol == protocol::UDP_LITE && bytes[6..8] == [0, 0] {
                    bytes[6..8].fill(0xff);
                }
                bytes
            }
            Body::Other(_, payload) => payload.clone(),
        }
    }

    fn sealed(&self, mut bytes: Vec<u8>, number: u8, at: usize) -> Vec<u8> {
        let mut covered = Vec::new();
        if number != protocol::ICMP {
            let length = u32::try_from(bytes.len()).expect("a packet is short");
            covered.extend(self.source.bytes());
            covered.extend(self.destination.bytes());
            if self.source.is_v4() {
                covered = [&self.source.bytes()[12..], &self.destination.bytes()[12..]].concat();
            }
            covered.extend(length.to_be_bytes());
            covered.extend([0, 0, 0, number]);
        }
        covered.extend(&bytes);
        bytes[at..at + 2].copy_from_slice(&checksum(&covered));
        bytes
    }
}

/// Returns the CRC-32C, computed bit by bit (RFC 9260, appendix A).
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    !crc
}

#[derive(Clone, Copy)]
struct Part {
    identification: u32,
    offset: u16,
    more: bool,
}

fn ports(source: u16, destination: u16) -> Vec<u8> {
    [source.to_be_bytes(), destination.to_be_bytes()].concat()
}

fn udp(source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len() + 8).expect("a datagram fits 16 bits");
    let mut bytes = ports(source, destination);
    bytes.extend(length.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(payload);
    bytes
}

/// Returns the Internet checksum of these bytes (RFC 1071), in network byte order.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        let low = pair.get(1).copied().unwrap_or(0);
        sum += u32::from(u16::from_be_bytes([pair[0], low]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!u16::try_from(sum).expect("it was folded")).to_be_bytes()
}

/// Returns the reply to a TCP or UDP frame without options: the same payload with swapped
/// addresses.
///
/// # Panics
/// If the frame is shorter than its headers.
#[must_use]
pub fn answer(frame: &[u8]) -> Vec<u8> {
    let (source, length, ports) = if frame[12] == 8 {
        (26, 4, 34)
    } else {
        (22, 16, 54)
    };
    let mut back = frame.to_vec();
    for (at, length) in [(source, length), (ports, 2)] {
        let (one, other) = (at..at + length, at + length..at + 2 * length);
        back[one.clone()].copy_from_slice(&frame[other.clone()]);
        back[other].copy_from_slice(&frame[one]);
    }
    back
}

/// As [`answer`], with the MAC address of the uplink as the destination.
pub fn answer_to_uplink(frame: &[u8]) -> Vec<u8> {
    let mut back = answer(frame);
    back[..6].copy_from_slice(&TO.bytes());
    back
}
