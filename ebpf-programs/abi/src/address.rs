//! IP addresses, ports and MAC addresses in network byte order.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Address family of a packet or a map entry; the number is the IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Family {
    /// IPv4.
    V4 = 4,
    /// IPv6.
    V6 = 6,
}

/// An IPv4 or IPv6 address: 16 bytes in network order, IPv4 as `::ffff:a.b.c.d` (RFC 4291,
/// 2.5.5.2).
///
/// It is stored as four words because eBPF copies words, not bytes. The words hold the packet's
/// bytes in memory order and are never byte-swapped.
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Debug,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(C)]
pub struct Address {
    words: [u32; 4],
}

/// Third word of an IPv4-mapped address: 00 00 ff ff in memory.
const MAPPED: u32 = u32::from_ne_bytes([0, 0, 0xff, 0xff]);

impl Address {
    /// The all-zero address: the wildcard, or "no address", of map entries.
    pub const ANY: Self = Self { words: [0; 4] };

    /// Returns the address of the four bytes of an IPv4 address.
    #[inline]
    pub const fn v4(bytes: [u8; 4]) -> Self {
        Self {
            words: [0, 0, MAPPED, u32::from_ne_bytes(bytes)],
        }
    }

    /// Returns the address of the sixteen bytes of an IPv6 address.
    #[inline]
    pub const fn v6(b: [u8; 16]) -> Self {
        Self {
            words: [
                u32::from_ne_bytes([b[0], b[1], b[2], b[3]]),
                u32::from_ne_bytes([b[4], b[5], b[6], b[7]]),
                u32::from_ne_bytes([b[8], b[9], b[10], b[11]]),
                u32::from_ne_bytes([b[12], b[13], b[14], b[15]]),
            ],
        }
    }

    /// Returns the address of an IPv4 address that was loaded as one word (not byte-swapped).
    #[inline]
    pub const fn from_v4_word(word: u32) -> Self {
        Self {
            words: [0, 0, MAPPED, word],
        }
    }

    /// Returns the address of an IPv6 address that was loaded as four words (not byte-swapped).
    #[inline]
    pub const fn from_words(words: [u32; 4]) -> Self {
        Self { words }
    }

    /// Returns the words in memory order; an IPv4 address is the last one.
    #[inline]
    pub const fn words(&self) -> [u32; 4] {
        self.words
    }

    /// Returns the sixteen bytes in network order.
    #[inline]
    pub const fn bytes(&self) -> [u8; 16] {
        let [a, b, c, d] = self.words;
        let (a, b, c, d) = (
            a.to_ne_bytes(),
            b.to_ne_bytes(),
            c.to_ne_bytes(),
            d.to_ne_bytes(),
        );
        [
            a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3], d[0], d[1],
            d[2], d[3],
        ]
    }

    /// Returns whether this is an IPv4 address (`::ffff:0:0/96`).
    #[inline]
    pub const fn is_v4(&self) -> bool {
        self.words[0] == 0 && self.words[1] == 0 && self.words[2] == MAPPED
    }

    /// Returns the address family.
    #[inline]
    pub const fn family(&self) -> Family {
        if self.is_v4() { Family::V4 } else { Family::V6 }
    }

    /// Returns whether this is [`Address::ANY`].
    #[inline]
    pub const fn is_any(&self) -> bool {
        self.words[0] == 0 && self.words[1] == 0 && self.words[2] == 0 && self.words[3] == 0
    }
}

/// A TCP, UDP or SCTP port, or an ICMP echo identifier, in network byte order.
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Debug,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(C)]
pub struct Port {
    raw: u16,
}

impl Port {
    /// "No port": protocols without ports, and the missing side of an ICMP echo.
    pub const NONE: Self = Self { raw: 0 };

    /// Returns the port of a number in host byte order.
    #[inline]
    pub const fn new(number: u16) -> Self {
        Self {
            raw: number.to_be(),
        }
    }

    /// Returns the port of the two bytes of a packet, loaded as one word (not byte-swapped).
    #[inline]
    pub const fn from_raw(raw: u16) -> Self {
        Self { raw }
    }

    /// Returns the two bytes as one word in memory order (not byte-swapped).
    #[inline]
    pub const fn raw(self) -> u16 {
        self.raw
    }

    /// Returns the port number in host byte order.
    #[inline]
    pub const fn number(self) -> u16 {
        u16::from_be(self.raw)
    }
}

/// A MAC address (Ethernet, 6 bytes).
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Debug,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(C)]
pub struct Mac {
    bytes: [u8; 6],
}

impl Mac {
    /// Returns the address of six bytes in wire order.
    #[inline]
    pub const fn new(bytes: [u8; 6]) -> Self {
        Self { bytes }
    }

    /// Returns the six bytes in wire order.
    #[inline]
    pub const fn bytes(self) -> [u8; 6] {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_is_kept_as_mapped_ipv6() {
        let address = Address::v4([192, 0, 2, 1]);
        assert_eq!(
            address.bytes(),
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1]
        );
        assert_eq!(address.family(), Family::V4);
        assert_eq!(Address::v6(address.bytes()), address);
    }

    #[test]
    fn a_port_keeps_network_order_in_memory() {
        assert_eq!(Port::new(0x1234).as_bytes(), [0x12, 0x34]);
        assert_eq!(Port::new(8080).number(), 8080);
    }
}
