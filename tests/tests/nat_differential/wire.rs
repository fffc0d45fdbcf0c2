//! Parses captured packets, and prints them for the comparison.

use std::net::IpAddr;

use abi::protocol;

use super::packet::{Header, IPV4, IPV6, pseudo_header, sum};

/// Protocol number of the IPv6 fragment header (RFC 8200).
const FRAGMENT_HEADER: u8 = 44;

/// A captured packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wire {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) protocol: u8,
    hops: u8,
    dont_fragment: bool,
    /// Whether the checksum of the IPv4 header is valid.
    header_is_valid: bool,
    pub(super) part: Option<Part>,
    /// Whether the packet has as many bytes as its header says.
    is_whole: bool,
    /// Transport header and payload.
    pub(super) payload: Vec<u8>,
    /// The packet as captured, without padding; a packet that came in fragments as a whole one.
    pub(super) bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) identification: u32,
    pub(super) offset: usize,
    pub(super) more: bool,
}

impl Wire {
    /// Parses a packet. A packet that an ICMP error quotes may be cut off behind its IP header.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        match bytes.first()? >> 4 {
            4 => Self::ipv4(bytes),
            6 => Self::ipv6(bytes),
            _ => None,
        }
    }

    fn ipv4(bytes: &[u8]) -> Option<Self> {
        let header = usize::from(bytes.first()? & 0xf) * 4;
        let length = usize::from(word(bytes, 2)?);
        let total = length.min(bytes.len());
        let flags = word(bytes, 6)?;
        let part = Part {
            identification: word(bytes, 4)?.into(),
            offset: usize::from(flags & 0x1fff) * 8,
            more: flags & 0x2000 != 0,
        };
        Some(Self {
            source: <[u8; 4]>::try_from(bytes.get(12..16)?).ok()?.into(),
            destination: <[u8; 4]>::try_from(bytes.get(16..20)?).ok()?.into(),
            protocol: *bytes.get(9)?,
            hops: *bytes.get(8)?,
            dont_fragment: flags & 0x4000 != 0,
            header_is_valid: sum(bytes.get(..header)?) == 0xffff,
            part: (part.more || part.offset != 0).then_some(part),
            is_whole: total == length,
            payload: bytes.get(header..total).unwrap_or_default().to_vec(),
            bytes: bytes[..total].to_vec(),
        })
    }

    fn ipv6(bytes: &[u8]) -> Option<Self> {
        let length = IPV6 + usize::from(word(bytes, 4)?);
        let total = length.min(bytes.len());
        let mut wire = Self {
            source: <[u8; 16]>::try_from(bytes.get(8..24)?).ok()?.into(),
            destination: <[u8; 16]>::try_from(bytes.get(24..40)?).ok()?.into(),
            protocol: *bytes.get(6)?,
            hops: *bytes.get(7)?,
            dont_fragment: true,
            header_is_valid: true,
            part: None,
            is_whole: total == length,
            payload: bytes.get(IPV6..total)?.to_vec(),
            bytes: bytes[..total].to_vec(),
        };
        if wire.protocol == FRAGMENT_HEADER && wire.payload.len() >= 8 {
            let fields = word(&wire.payload, 2)?;
            wire.part = Some(Part {
                identification: u32::from_be_bytes(wire.payload[4..8].try_into().ok()?),
                offset: usize::from(fields & !7),
                more: fields & 1 != 0,
            });
            wire.protocol = wire.payload[0];
            wire.payload.drain(..8);
        }
        Some(wire)
    }

    /// Returns the place of a fragment as text.
    pub(super) fn place(&self) -> Option<String> {
        self.part.map(|part| {
            format!(
                "protocol {} fragment of {:04x}: bytes {}..{}{}",
                self.protocol,
                part.identification,
                part.offset,
                part.offset + self.payload.len(),
                if part.more { "" } else { ", the last" }
            )
        })
    }

    pub(super) fn is_later_fragment(&self) -> bool {
        self.part.is_some_and(|part| part.offset > 0)
    }

    /// Returns whether the packet is neighbour discovery or group membership, whose timing differs
    /// between kernels.
    pub(super) fn is_of_neighbours(&self) -> bool {
        match self.source {
            IpAddr::V4(_) => self.protocol == 2,
            IpAddr::V6(_) => {
                self.protocol == 0
                    || self.protocol == protocol::ICMPV6
                        && self.part.is_none()
                        && matches!(self.payload.first(), Some(130..=137 | 143))
            }
        }
    }

    /// Returns the whole packet of which this is the first fragment.
    pub(super) fn with_payload(self, payload: Vec<u8>) -> Self {
        let header = Header {
            source: self.source,
            destination: self.destination,
            protocol: self.protocol,
            dont_fragment: false,
            identification: 0,
        };
        Self {
            part: None,
            dont_fragment: false,
            bytes: with_hops(header.packet(&payload), self.hops),
            payload,
            ..self
        }
    }

    /// Returns the packet with the header of its first fragment, or of a later one.
    pub(super) fn fragment(&self, first: bool) -> Vec<u8> {
        let header = Header {
            source: self.source,
            destination: self.destination,
            protocol: self.protocol,
            dont_fragment: false,
            identification: 0x0bad,
        };
        let place = super::packet::Place {
            offset: if first { 0 } else { 1024 },
            more: first,
        };
        with_hops(header.fragment(&self.payload, place), self.hops)
    }

    /// Returns source and destination port; the identifier of an echo request is its source port,
    /// that of a reply its destination port.
    pub(super) fn ports(&self) -> [u16; 2] {
        if self.is_later_fragment() {
            return [0, 0];
        }
        let at = |offset| word(&self.payload, offset).unwrap_or(0);
        match (self.protocol, self.payload.first()) {
            (protocol::TCP | protocol::UDP | protocol::SCTP, _) => [at(0), at(2)],
            (protocol::ICMP, Some(8)) | (protocol::ICMPV6, Some(128)) => [at(4), 0],
            (protocol::ICMP, Some(0)) | (protocol::ICMPV6, Some(129)) => [0, at(4)],
            _ => [0, 0],
        }
    }

    /// Returns the bytes behind the transport header.
    pub(super) fn data(&self) -> &[u8] {
        let header = match self.protocol {
            protocol::TCP => 20,
            protocol::UDP | protocol::ICMP | protocol::ICMPV6 => 8,
            _ => 0,
        };
        self.payload.get(header..).unwrap_or_default()
    }

    /// Returns the packet that an ICMP error quotes.
    pub(super) fn quote(&self) -> Option<Self> {
        match (self.protocol, self.payload.first()?) {
            (protocol::ICMP, 3..=5 | 11 | 12) | (protocol::ICMPV6, 1..=4) => {
                Self::parse(self.payload.get(8..)?)
            }
            _ => None,
        }
    }

    /// Returns the packet as text. Identifications are left out, because each receiver compares
    /// them within one packet only; so are checksums, except for their validity, because they
    /// depend on translated ports. `named` replaces addresses and ports.
    pub(super) fn text(&self, named: &dyn Fn(&Self) -> [String; 2]) -> String {
        let [source, destination] = named(self);
        let mut text = format!("{source} > {destination} hops {}", self.hops);
        if self.source.is_ipv4() && self.dont_fragment {
            text += " DF";
        }
        if !self.header_is_valid {
            text += " header checksum wrong";
        }
        let covered = self.covered();
        text + &match self.quote() {
            Some(quote) => {
                let rest = hex(&self.payload[4..8]);
                format!(
                    " error {}/{} {rest} checksum {} about [{}]",
                    self.payload[0],
                    self.payload[1],
                    validity(&covered),
                    quote.quoted_text(named)
                )
            }
            None => self.transport_text(&covered),
        }
    }

    /// Returns what the transport checksum covers.
    fn covered(&self) -> Vec<u8> {
        let length = self.payload.len();
        let mut covered = pseudo_header(self.source, self.destination, self.protocol, length);
        covered.extend(&self.payload);
        covered
    }

    fn transport_text(&self, covered: &[u8]) -> String {
        let payload = &self.payload;
        match self.protocol {
            protocol::TCP if payload.len() >= 20 => format!(
                " TCP sequence {} acknowledged {} flags {:02x} window {} checksum {} {}",
                hex(&payload[4..8]),
                hex(&payload[8..12]),
                payload[13],
                hex(&payload[14..16]),
                validity(covered),
                summary(&payload[20..])
            ),
            protocol::UDP if payload.len() >= 8 => format!(
                " UDP checksum {} {}",
                if payload[6..8] == [0, 0] {
                    "none"
                } else {
                    validity(covered)
                },
                summary(&payload[8..])
            ),
            protocol::ICMP | protocol::ICMPV6 if payload.len() >= 8 => format!(
                " ICMP {}/{} sequence {} checksum {} {}",
                payload[0],
                payload[1],
                hex(&payload[6..8]),
                validity(covered),
                summary(&payload[8..])
            ),
            number => format!(" protocol {number} {}", summary(payload)),
        }
    }

    /// Returns a quoted packet as text, with the validity of its transport checksum if it is
    /// quoted to its end.
    fn quoted_text(&self, named: &dyn Fn(&Self) -> [String; 2]) -> String {
        let [source, destination] = named(self);
        let header = if self.header_is_valid {
            ""
        } else {
            " header checksum wrong"
        };
        let (ports, checksum) = match self.protocol {
            protocol::TCP => (4, 16..18),
            protocol::UDP => (4, 6..8),
            // The identifier is in the names.
            protocol::ICMP | protocol::ICMPV6 => (0, 2..6),
            _ => (0, 0..0),
        };
        let has_checksum = self.is_whole && self.part.is_none() && !checksum.is_empty();
        let verdict = match self.payload.get(checksum.clone()) {
            Some(&[0, 0]) => " checksum none",
            _ if has_checksum && validity(&self.covered()) == "right" => " checksum right",
            _ if has_checksum => " checksum wrong",
            _ => "",
        };
        let mut rest = self.payload.clone();
        for at in checksum {
            if let Some(byte) = rest.get_mut(at) {
                *byte = 0;
            }
        }
        let place = self
            .part
            .map_or_else(String::new, |part| format!(" from {}", part.offset));
        format!(
            "{source} > {destination} protocol {} hops {}{header}{place}{verdict} {}",
            self.protocol,
            self.hops,
            summary(rest.get(ports..).unwrap_or_default())
        )
    }
}

/// Returns the bytes as text: short ones as they are, long ones as length and a hash.
fn summary(bytes: &[u8]) -> String {
    if bytes.len() <= 32 {
        return hex(bytes);
    }
    // FNV-1a.
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!(
        "{}… {} bytes, hash {hash:016x}",
        hex(&bytes[..16]),
        bytes.len()
    )
}

fn validity(covered: &[u8]) -> &'static str {
    if sum(covered) == 0xffff {
        "right"
    } else {
        "wrong"
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([pair[0], pair[1]]))
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<Vec<_>>()
        .concat()
}

/// Sets TTL or hop limit of a packet with a header as built by [`Header`].
fn with_hops(mut packet: Vec<u8>, hops: u8) -> Vec<u8> {
    if packet[0] >> 4 == 4 {
        packet[8] = hops;
        packet[10..12].fill(0);
        let checksum = !sum(&packet[..IPV4]);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        packet[7] = hops;
    }
    packet
}

/// Returns the bytes of the IP header of this address's family.
pub(super) fn header_length(address: IpAddr) -> usize {
    if address.is_ipv4() { IPV4 } else { IPV6 }
}
