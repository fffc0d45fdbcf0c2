//! Frames byte by byte: Ethernet with VLAN tags, ARP, neighbour discovery, ICMP errors, and IP
//! packets with wrong lengths.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use abi::{Address, Mac};
use verdict::simulator::frame::{Body, Frame};

pub(crate) const ETHERTYPE_ARP: u16 = 0x0806;
/// The group of all stations of a link.
pub(crate) const BROADCAST: Mac = Mac::new([0xff; 6]);
/// Bytes of an Ethernet header.
pub(crate) const ETHERNET: usize = 14;

/// Begins each marker: bytes that nothing else on these links contains.
const MAGIC: [u8; 4] = [0x9d, 0xc1, 0x5e, 0x77];
/// Bytes of a marker.
pub(crate) const MARKER: usize = 8;

/// Returns the bytes by which a receiver recognises the frames of a cell. The Internet checksum of
/// all markers is the same, so one can replace another.
pub(crate) fn marker(cell: u16) -> Vec<u8> {
    [&MAGIC[..], &cell.to_be_bytes(), &(!cell).to_be_bytes()].concat()
}

/// Returns the numbers of the cells whose markers are in these bytes.
pub(crate) fn markers(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes
        .windows(MARKER)
        .filter(|window| window.starts_with(&MAGIC))
        .map(|window| u16::from_be_bytes([window[4], window[5]]))
}

/// A VLAN tag: TPID, and VLAN identifier with priority 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) tpid: u16,
    pub(crate) vid: u16,
}

/// Inserts tags between the addresses and the `EtherType`, the outermost first.
pub(crate) fn tagged(frame: &[u8], tags: &[Tag]) -> Vec<u8> {
    let (addresses, rest) = frame.split_at(12);
    let tags = tags
        .iter()
        .flat_map(|tag| [tag.tpid.to_be_bytes(), tag.vid.to_be_bytes()].concat());
    addresses
        .iter()
        .copied()
        .chain(tags)
        .chain(rest.iter().copied())
        .collect()
}

/// Returns a frame of any `EtherType`.
pub(crate) fn ethernet(to: Mac, from: Mac, kind: u16, payload: &[u8]) -> Vec<u8> {
    [
        &to.bytes()[..],
        &from.bytes()[..],
        &kind.to_be_bytes()[..],
        payload,
    ]
    .concat()
}

pub(crate) fn abi(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    }
}

/// Returns an IP packet in a frame between these MAC addresses.
pub(crate) fn ip(macs: [Mac; 2], addresses: [IpAddr; 2], body: Body) -> Frame {
    let [from, to] = macs;
    let [source, destination] = addresses.map(abi);
    Frame::new(source, destination, body).from_to(from, to)
}

/// Sets the hop limit of an IPv6 packet, which no checksum covers.
pub(crate) fn with_hop_limit(mut frame: Vec<u8>, hops: u8) -> Vec<u8> {
    frame[ETHERNET + 7] = hops;
    frame
}

/// An ARP packet for Ethernet and IPv4 (RFC 826).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arp {
    /// 1 is a request, 2 a reply.
    pub(crate) operation: u16,
    pub(crate) sender: (Mac, Ipv4Addr),
    pub(crate) target: (Mac, Ipv4Addr),
}

impl Arp {
    /// Returns the bytes behind the Ethernet header, padded to the minimum length of a frame.
    pub(crate) fn bytes(&self, padding: &[u8]) -> Vec<u8> {
        let [sender, target] = [self.sender, self.target]
            .map(|(mac, ip)| [&mac.bytes()[..], &ip.octets()[..]].concat());
        let mut bytes = vec![0, 1, 8, 0, 6, 4];
        bytes.extend(self.operation.to_be_bytes());
        bytes.extend(sender);
        bytes.extend(target);
        bytes.extend(padding);
        bytes.resize(46, 0);
        bytes
    }
}

/// Options of neighbour discovery (RFC 4861, 4.6).
pub(crate) mod option {
    use abi::Mac;

    /// Returns the source link-layer address.
    pub(crate) fn source(mac: Mac) -> Vec<u8> {
        [&[1, 1], &mac.bytes()[..]].concat()
    }

    /// Returns the target link-layer address.
    pub(crate) fn target(mac: Mac) -> Vec<u8> {
        [&[2, 1], &mac.bytes()[..]].concat()
    }

    /// Returns the prefix `2001:db8:bad::/64`, on the link and for address configuration.
    pub(crate) fn prefix() -> Vec<u8> {
        let mut bytes = vec![3, 4, 64, 0xc0];
        bytes.extend(600_u32.to_be_bytes());
        bytes.extend(600_u32.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend([0x20, 0x01, 0x0d, 0xb8, 0x0b, 0xad, 0, 0]);
        bytes.extend([0; 8]);
        bytes
    }

    /// Returns the MTU of the link.
    pub(crate) fn mtu(bytes: u32) -> Vec<u8> {
        [&[5, 1, 0, 0], &bytes.to_be_bytes()[..]].concat()
    }

    /// Returns an option of an experimental type, which receivers ignore (RFC 4727), with a
    /// marker of 8 bytes.
    pub(crate) fn unknown(marker: &[u8]) -> Vec<u8> {
        [&[253, 2, 0, 0, 0, 0, 0, 0], marker].concat()
    }
}

/// A message of neighbour discovery or MLD: type, the four bytes after the checksum, addresses, and
/// options.
#[derive(Clone, Debug)]
pub(crate) struct Discovery {
    pub(crate) kind: u8,
    pub(crate) flags: [u8; 4],
    pub(crate) addresses: Vec<Ipv6Addr>,
    pub(crate) options: Vec<Vec<u8>>,
}

impl Discovery {
    pub(crate) fn body(&self) -> Body {
        let addresses = self.addresses.iter().flat_map(Ipv6Addr::octets);
        let options = self.options.iter().flatten().copied();
        let rest = addresses.chain(options).collect();
        Body::Icmp(self.kind, 0, self.flags, rest)
    }
}

/// Returns an ICMP message about a packet: an error, or a redirect of IPv4.
pub(crate) fn error(kind: u8, code: u8, field: [u8; 4], quote: &[u8]) -> Body {
    Body::Icmp(kind, code, field, quote.to_vec())
}

/// Returns the first packet of a UDP flow as an error quotes it, with a marker behind.
pub(crate) fn quote(from: (IpAddr, u16), to: (IpAddr, u16), marker: &[u8]) -> Vec<u8> {
    let body = Body::Udp(from.1, to.1, marker.to_vec());
    Frame::new(abi(from.0), abi(to.0), body).packet()
}

/// Replaces the length that the IP header announces, and corrects the header checksum of IPv4.
pub(crate) fn with_length(mut frame: Vec<u8>, length: u16) -> Vec<u8> {
    let at = if frame[ETHERNET] >> 4 == 4 { 2 } else { 4 };
    let at = ETHERNET + at;
    frame[at..at + 2].copy_from_slice(&length.to_be_bytes());
    with_checksum(frame)
}

/// Replaces the header length of an IPv4 header, in words.
pub(crate) fn with_header_words(mut frame: Vec<u8>, words: u8) -> Vec<u8> {
    frame[ETHERNET] = 0x40 | words;
    with_checksum(frame)
}

/// Corrects the header checksum of an IPv4 header without options (RFC 1071).
fn with_checksum(mut frame: Vec<u8>) -> Vec<u8> {
    if frame[ETHERNET] >> 4 == 4 {
        let header = ETHERNET..ETHERNET + 20;
        frame[ETHERNET + 10..ETHERNET + 12].fill(0);
        let mut sum: u32 = frame[header]
            .chunks(2)
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        let [_, _, high, low] = (!sum).to_be_bytes();
        frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&[high, low]);
    }
    frame
}
