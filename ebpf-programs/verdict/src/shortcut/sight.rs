//! What a packet of a connection under way says of itself.

use abi::maps::NOTED_CAPACITY;
use abi::{Address, Port, Seen, Tuple, protocol};

use super::Shortcuts;
use crate::packet::Packet;
use crate::parse::{
    IPV4_HEADER, IPV6_HEADER, TCP_FLAGS, UDP_HEADER, high_half, low_half, tcp_flags, tcp_header,
};
use crate::sender::ETHERNET;
use crate::shape::Shaper;
use crate::work::Way;

const TCP_HEADER: u32 = 20;
/// An IPv4 header without options begins with this byte.
const PLAIN_V4: u8 = 0x45;
/// What makes a packet a fragment: its offset, and that more follow (RFC 791).
const FRAGMENTED: u16 = 0x3fff;
/// Makes of a number one whose upper bits depend on all of it.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// All that a packet says of itself that a verdict may rest on, but its length and age.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Sight {
    /// Both Ethernet addresses.
    pub stations: [u32; 3],
    /// Interface index of the hook.
    pub interface: u32,
    /// [`Shortcuts::mark`].
    pub mark: u32,
    /// Both ports.
    pub ports: u32,
    /// [`Way::flag`] of the hook, IP version, and protocol: a byte each.
    pub kind: u32,
    /// The source; IPv4's is the last word, and the others are zero.
    pub source: [u32; 4],
    /// The destination, likewise.
    pub destination: [u32; 4],
}

impl Sight {
    /// Whether two packets look the same. As equality, but that of IPv4 no zeros are compared.
    #[inline(always)]
    pub(super) fn is(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.ports == other.ports
            && self.interface == other.interface
            && self.mark == other.mark
            && self.stations == other.stations
            && self.source[3] == other.source[3]
            && self.destination[3] == other.destination[3]
            && (!self.is_v6()
                || (self.source == other.source && self.destination == other.destination))
    }

    #[inline(always)]
    pub(super) const fn is_v6(&self) -> bool {
        Self::is_of_v6(self.kind)
    }

    /// Whether packets of this [`Sight::kind`] are IPv6.
    #[inline(always)]
    pub(super) const fn is_of_v6(kind: u32) -> bool {
        kind & 0xff00 == 0x0600
    }

    /// The protocol of packets of this [`Sight::kind`].
    #[inline(always)]
    pub(super) const fn protocol_of(kind: u32) -> u8 {
        kind.to_le_bytes()[0]
    }

    /// The key of the packet's flow.
    #[inline(always)]
    pub(super) fn tuple(&self) -> Tuple {
        let address = |words: [u32; 4]| {
            if self.is_v6() {
                Address::from_words(words)
            } else {
                Address::from_v4_word(words[3])
            }
        };
        Tuple {
            source: address(self.source),
            destination: address(self.destination),
            source_port: Port::from_raw(low_half(self.ports)),
            destination_port: Port::from_raw(high_half(self.ports)),
            protocol: Self::protocol_of(self.kind),
            reserved: [0; 3],
        }
    }

    /// Where a CPU keeps the shortcut.
    #[inline(always)]
    pub(super) fn index(&self) -> u32 {
        index_of(self.mixed())
    }

    /// Where a CPU keeps the shortcut, and its [tag](Shortcuts::tag).
    #[inline(always)]
    pub(super) fn place(&self) -> (u32, u8) {
        let mixed = self.mixed();
        (index_of(mixed), mixed.to_le_bytes()[5])
    }

    /// A number whose upper bits depend on all that packets of one connection differ in.
    #[inline(always)]
    fn mixed(&self) -> u64 {
        let (from, to) = (&self.source, &self.destination);
        let mut mixed = pair(from[3], to[3]);
        if self.is_v6() {
            let networks = pair(from[0] ^ to[2], from[1] ^ to[1]) ^ pair(to[0], from[2]);
            mixed ^= networks.wrapping_mul(MIX);
        }
        (mixed.wrapping_mul(MIX) ^ pair(self.kind, self.ports)).wrapping_mul(MIX)
    }
}

#[inline(always)]
fn index_of(mixed: u64) -> u32 {
    (mixed >> 40) as u32 >> (24 - NOTED_CAPACITY.trailing_zeros())
}

#[inline(always)]
fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// What a packet says of itself.
pub(super) struct Glance {
    pub(super) sight: Sight,
    /// Bytes from the IP header on.
    pub(super) bytes: u32,
    /// Those of them that are headers.
    headers: u32,
}

impl Glance {
    /// Whether the packet, or each that it will be cut into, is no longer than so many bytes from the IP header on.
    #[inline(always)]
    pub(super) fn is_within<E: Shaper>(&self, env: &E, most: u32) -> bool {
        self.bytes <= most || self.length(env) <= most
    }

    /// Bytes from the IP header on, of the packet or of each that it will be cut into.
    #[inline(always)]
    pub(super) fn length<E: Shaper>(&self, env: &E) -> u32 {
        match env.segment_size() {
            0 => self.bytes,
            size => self.headers + size,
        }
    }
}

/// Reads a packet of IPv4, if it is one of a connection under way: whole, without options, long enough, and with a life before
/// it.
#[inline(always)]
pub(super) fn look_v4<E: Packet + Shortcuts>(env: &E, interface: u32, way: Way) -> Option<Glance> {
    let (stations, words) = env.near_both::<3, 7>(ETHERNET)?;
    let [ttl, protocol, _, _] = words[2].to_ne_bytes();
    let whole = u16::from_be(high_half(words[1])) & FRAGMENTED == 0;
    if words[0].to_ne_bytes()[0] != PLAIN_V4 || !whole || ttl <= 1 {
        return None;
    }
    let sight = Sight {
        stations,
        interface,
        mark: env.mark(),
        ports: words[5],
        kind: kind(way, 4, protocol),
        source: [0, 0, 0, words[3]],
        destination: [0, 0, 0, words[4]],
    };
    let total = u32::from(u16::from_be(high_half(words[0])));
    glance(env, sight, [IPV4_HEADER, total])
}

/// As [`look_v4`], of a packet of IPv6.
#[inline(always)]
pub(super) fn look_v6<E: Packet + Shortcuts>(env: &E, interface: u32, way: Way) -> Option<Glance> {
    let (stations, words) = env.near_both::<3, 12>(ETHERNET)?;
    let [_, _, next, limit] = words[1].to_ne_bytes();
    if words[0].to_ne_bytes()[0] >> 4 != 6 || limit <= 1 {
        return None;
    }
    let sight = Sight {
        stations,
        interface,
        mark: env.mark(),
        ports: words[10],
        kind: kind(way, 6, next),
        source: [words[2], words[3], words[4], words[5]],
        destination: [words[6], words[7], words[8], words[9]],
    };
    let payload = u32::from(u16::from_be(low_half(words[1])));
    glance(env, sight, [IPV6_HEADER, IPV6_HEADER + payload])
}

#[inline(always)]
fn kind(way: Way, version: u32, protocol: u8) -> u32 {
    way.flag() << 16 | version << 8 | u32::from(protocol)
}

/// What stands behind an IP header of so many bytes, in a packet that says that it is `total` bytes long.
#[inline(always)]
fn glance<E: Packet>(env: &E, sight: Sight, [header, total]: [u32; 2]) -> Option<Glance> {
    let bytes = env.len().saturating_sub(ETHERNET);
    let (least, transport) = match Sight::protocol_of(sight.kind) {
        protocol::TCP => {
            let [word] = env.near::<1>(ETHERNET + header + TCP_FLAGS)?;
            if tcp_flags(word) != Seen::ACK {
                return None;
            }
            (TCP_HEADER, tcp_header(word))
        }
        protocol::UDP => (UDP_HEADER, UDP_HEADER),
        _ => return None,
    };
    if header + least > total || total > bytes {
        return None;
    }
    Some(Glance {
        sight,
        bytes,
        headers: header + transport,
    })
}
