//! The cache key, and parsing it from the packets of established flows.

use abi::{Address, Port, Seen, Tuple, protocol};

use super::{CachePlace, FlowCache};
use crate::packet::Packet;
use crate::parse::{
    IPV4_HEADER, IPV6_HEADER, UDP_HEADER, high_half, is_valid_checksum, low_half, tcp_flags,
    tcp_header,
};
use crate::sender::ETHERNET;
use crate::shape::Shaper;
use crate::work::Hook;

const TCP_HEADER: u32 = 20;
/// Offset of the acknowledgment number in a TCP header; the word with the flags follows.
const TCP_ACKNOWLEDGMENT: u32 = 8;
/// First byte of an IPv4 header without options: version 4, header length 5.
const PLAIN_V4: u8 = 0x45;
/// Fragment offset and "more fragments" bits of an IPv4 header (RFC 791).
const FRAGMENTED: u16 = 0x3fff;
/// Multiplier that spreads all bits of a number over the upper bits of the product (Fibonacci
/// hashing).
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// The packet fields that a verdict may depend on, except length and TTL.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CacheKey {
    /// Destination and source MAC address, as three words of packet memory.
    pub mac_addresses: [u32; 3],
    /// Interface index of the hook.
    pub interface: u32,
    /// [`FlowCache::mark`] of the packet.
    pub mark: u32,
    /// Source and destination port, as one word of packet memory.
    pub ports: u32,
    /// [`Hook::flag`] of the hook, IP version, and protocol: a byte each.
    pub kind: u32,
    /// Source address; for IPv4 the last word, and the others are zero.
    pub source: [u32; 4],
    /// Destination address, in the same form.
    pub destination: [u32; 4],
}

impl CacheKey {
    /// Returns whether two keys are equal. Unlike `==`, does not compare the zeros of IPv4
    /// addresses.
    #[inline(always)]
    pub(super) fn matches(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.ports == other.ports
            && self.interface == other.interface
            && self.mark == other.mark
            && self.mac_addresses == other.mac_addresses
            && self.source[3] == other.source[3]
            && self.destination[3] == other.destination[3]
            && (!self.is_v6()
                || (self.source == other.source && self.destination == other.destination))
    }

    #[inline(always)]
    pub(super) const fn is_v6(&self) -> bool {
        Self::is_of_v6(self.kind)
    }

    /// Returns whether a [`CacheKey::kind`] is IPv6.
    #[inline(always)]
    pub(super) const fn is_of_v6(kind: u32) -> bool {
        kind & 0xff00 == 0x0600
    }

    /// Returns the protocol number in a [`CacheKey::kind`].
    #[inline(always)]
    pub(super) const fn protocol_of(kind: u32) -> u8 {
        kind.to_le_bytes()[0]
    }

    /// Returns the flow table key of the packet.
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

    /// Returns where the cache entry may be.
    #[inline(always)]
    pub(super) fn place(&self) -> CachePlace {
        let hash = hash_of(self.kind, self.ports, &self.source, &self.destination);
        CachePlace::of_hash(hash)
    }
}

/// Returns a hash whose upper half depends on the addresses, the ports and the kind.
#[inline(always)]
fn hash_of(kind: u32, ports: u32, from: &[u32; 4], to: &[u32; 4]) -> u64 {
    let mut hash = pair(from[3], to[3]);
    if CacheKey::is_of_v6(kind) {
        let networks = pair(from[0] ^ to[2], from[1] ^ to[1]) ^ pair(to[0], from[2]);
        hash ^= networks.wrapping_mul(MIX);
    }
    // A product's bits depend on those below only. Folded, so that all depend on the last byte of
    // the address, which is the upper one of its word.
    let addresses = hash.wrapping_mul(MIX);
    (addresses ^ addresses >> 32 ^ pair(kind, ports)).wrapping_mul(MIX)
}

/// Returns where the cache entry of packets with this tuple at a hook may be.
#[inline(always)]
pub(crate) fn place_of_tuple(tuple: &Tuple, hook: Hook) -> CachePlace {
    let version = if tuple.source.is_v4() { 4 } else { 6 };
    let (source, destination) = (tuple.source_port.raw(), tuple.destination_port.raw());
    let ([a, b], [c, d]) = (source.to_ne_bytes(), destination.to_ne_bytes());
    let ports = u32::from_ne_bytes([a, b, c, d]);
    let kind = kind(hook, version, tuple.protocol);
    let (from, to) = (tuple.source.words(), tuple.destination.words());
    CachePlace::of_hash(hash_of(kind, ports, &from, &to))
}

#[inline(always)]
fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// A packet's key and lengths.
pub(super) struct ParsedHeaders {
    pub(super) key: CacheKey,
    /// Length in bytes from the IP header on.
    pub(super) bytes: u32,
    /// TCP: acknowledgment number; 0 for UDP.
    pub(super) acknowledgment: u32,
    /// Bytes of IP and transport header.
    headers: u32,
}

impl ParsedHeaders {
    /// Returns whether the packet, or each of its GSO segments, has at most `most` bytes from the
    /// IP header on.
    #[inline(always)]
    pub(super) fn is_within<E: Shaper>(&self, env: &E, most: u32) -> bool {
        self.bytes <= most || self.length(env) <= most
    }

    /// Returns the length in bytes from the IP header on, of the packet or of each of its GSO
    /// segments.
    #[inline(always)]
    pub(super) fn length<E: Shaper>(&self, env: &E) -> u32 {
        match env.segment_size() {
            0 => self.bytes,
            size => self.headers + size,
        }
    }
}

/// Parses an IPv4 packet. Returns `None` unless it is whole, without options, complete, has a right
/// header checksum and a TTL above 1, and, for TCP, no flag but ACK of those that change a flow's
/// state.
#[inline(always)]
pub(super) fn parse_v4<E: Packet + FlowCache>(
    env: &E,
    interface: u32,
    hook: Hook,
) -> Option<ParsedHeaders> {
    let (mac_addresses, words) = env.linear_words_both::<3, 7>(ETHERNET)?;
    let [ttl, protocol, _, _] = words[2].to_ne_bytes();
    let whole = u16::from_be(high_half(words[1])) & FRAGMENTED == 0;
    let plain = words[0].to_ne_bytes()[0] == PLAIN_V4;
    if !plain || !whole || ttl <= 1 {
        return None;
    }
    // What the node sends itself is not verified by the stack either.
    let [a, b, c, d, e, _, _] = words;
    if hook != Hook::UplinkOut && !is_valid_checksum([a, b, c, d, e]) {
        return None;
    }
    let key = CacheKey {
        mac_addresses,
        interface,
        mark: env.mark(),
        ports: words[5],
        kind: kind(hook, 4, protocol),
        source: [0, 0, 0, words[3]],
        destination: [0, 0, 0, words[4]],
    };
    let total = u32::from(u16::from_be(high_half(words[0])));
    parse_transport(env, key, [IPV4_HEADER, total])
}

/// As [`parse_v4`], for IPv6 without extension headers.
#[inline(always)]
pub(super) fn parse_v6<E: Packet + FlowCache>(
    env: &E,
    interface: u32,
    hook: Hook,
) -> Option<ParsedHeaders> {
    let (mac_addresses, words) = env.linear_words_both::<3, 12>(ETHERNET)?;
    let [_, _, next, limit] = words[1].to_ne_bytes();
    if words[0].to_ne_bytes()[0] >> 4 != 6 || limit <= 1 {
        return None;
    }
    let key = CacheKey {
        mac_addresses,
        interface,
        mark: env.mark(),
        ports: words[10],
        kind: kind(hook, 6, next),
        source: [words[2], words[3], words[4], words[5]],
        destination: [words[6], words[7], words[8], words[9]],
    };
    let payload = u32::from(u16::from_be(low_half(words[1])));
    parse_transport(env, key, [IPV6_HEADER, IPV6_HEADER + payload])
}

#[inline(always)]
fn kind(hook: Hook, version: u32, protocol: u8) -> u32 {
    hook.flag() << 16 | version << 8 | u32::from(protocol)
}

/// Parses the transport header behind an IP header of `header` bytes, in a packet that announces
/// `total` bytes. TCP and UDP only.
#[inline(always)]
fn parse_transport<E: Packet>(
    env: &E,
    key: CacheKey,
    [header, total]: [u32; 2],
) -> Option<ParsedHeaders> {
    let bytes = env.len().saturating_sub(ETHERNET);
    let (least, transport, acknowledgment) = match CacheKey::protocol_of(key.kind) {
        protocol::TCP => {
            let at = ETHERNET + header + TCP_ACKNOWLEDGMENT;
            let [acknowledgment, word] = env.linear_words::<2>(at)?;
            if tcp_flags(word) != Seen::ACK {
                return None;
            }
            (TCP_HEADER, tcp_header(word), u32::from_be(acknowledgment))
        }
        protocol::UDP => (UDP_HEADER, UDP_HEADER, 0),
        _ => return None,
    };
    if header + least > total || total > bytes {
        return None;
    }
    Some(ParsedHeaders {
        key,
        bytes,
        acknowledgment,
        headers: header + transport,
    })
}
