//! Address classes and prefixes, by the address alone.

use abi::{Address, Family, Mac};

/// Returns the four words in host byte order, most significant first.
#[inline(always)]
fn numbers(address: &Address) -> [u32; 4] {
    let [a, b, c, d] = address.words();
    [
        u32::from_be(a),
        u32::from_be(b),
        u32::from_be(c),
        u32::from_be(d),
    ]
}

/// Returns whether the address is in `127.0.0.0/8` or `::1`.
#[inline(always)]
pub fn is_loopback(address: &Address) -> bool {
    let [a, b, c, d] = numbers(address);
    if address.is_v4() {
        d >> 24 == 127
    } else {
        a == 0 && b == 0 && c == 0 && d == 1
    }
}

/// Returns whether the address is in `224.0.0.0/4` or `ff00::/8`.
#[inline(always)]
pub fn is_multicast(address: &Address) -> bool {
    let [a, _, _, d] = numbers(address);
    if address.is_v4() {
        d >> 28 == 0xe
    } else {
        a >> 24 == 0xff
    }
}

/// Returns whether the address is `255.255.255.255`.
#[inline(always)]
pub fn is_broadcast(address: &Address) -> bool {
    address.is_v4() && numbers(address)[3] == u32::MAX
}

/// Returns whether the address is in `169.254.0.0/16` or `fe80::/10`, which never leave their link.
#[inline(always)]
pub fn is_link_local(address: &Address) -> bool {
    let [a, _, _, d] = numbers(address);
    if address.is_v4() {
        d >> 16 == 0xa9fe
    } else {
        a >> 22 == 0xfe80 >> 6
    }
}

/// Returns the link-local address of IPv6 that Linux derives from a MAC address (RFC 4291, appendix
/// A; `ipv6_generate_eui64` in `net/ipv6/addrconf.c`).
#[inline(always)]
pub fn link_local_of(mac: Mac) -> Address {
    let [a, b, c, d, e, f] = mac.bytes();
    Address::from_words([
        u32::from_ne_bytes([0xfe, 0x80, 0, 0]),
        0,
        u32::from_ne_bytes([a ^ 2, b, c, 0xff]),
        u32::from_ne_bytes([0xfe, d, e, f]),
    ])
}

/// Returns whether routers forward packets from and to the address: neither IPv4's `0.0.0.0/8`,
/// `127.0.0.0/8`, `224.0.0.0/4` and `255.255.255.255` (RFC 1122, 3.2.1.3; RFC 1812, 5.3.7), nor
/// IPv6's `::`, `::1`, `ff00::/8` and `fe80::/10` (RFC 4291, 2.4). The kernel's stack refuses to
/// forward all of these (`ip_route_input_slow`, `ip6_forward`).
#[inline(always)]
pub fn is_forwardable(address: &Address) -> bool {
    let [a, b, c, d] = numbers(address);
    if address.is_v4() {
        let network = d >> 24;
        network != 0 && network != 127 && d >> 28 != 0xe && d != u32::MAX
    } else {
        let is_lowest = a == 0 && b == 0 && c == 0 && d <= 1;
        !is_lowest && a >> 24 != 0xff && a >> 22 != 0xfe80 >> 6
    }
}

/// Returns whether no packet may have the address as its source, whatever its destination: a
/// loopback, multicast or broadcast address, or one of `0.0.0.0/8` but the unspecified one, which
/// Linux forwards since 5.3.
#[inline(always)]
pub fn is_invalid_source(address: &Address) -> bool {
    let is_zero_network = is_zero_network(address) && numbers(address)[3] != 0;
    is_loopback(address) || is_multicast(address) || is_broadcast(address) || is_zero_network
}

/// Returns whether no packet may have the address as its destination: one of the loopback, of
/// `0.0.0.0/8`, or `::`, which Linux forwards.
#[inline(always)]
pub fn is_invalid_destination(address: &Address) -> bool {
    is_loopback(address) || is_zero_network(address) || address.is_any()
}

#[inline(always)]
fn is_zero_network(address: &Address) -> bool {
    address.is_v4() && numbers(address)[3] >> 24 == 0
}

/// Returns whether the address is the broadcast address of the subnet of `prefix_len` bits that the
/// IPv4 address `member` is in.
#[inline(always)]
pub fn is_subnet_broadcast(address: &Address, member: &Address, prefix_len: u32) -> bool {
    let host_bits = u64::from(numbers(address)[3]) << (prefix_len & 63) & 0xffff_ffff;
    let ones = 0xffff_ffff_u64 << (prefix_len & 63) & 0xffff_ffff;
    member.is_v4()
        && prefix_len < 31
        && host_bits == ones
        && same_subnet(address, member, prefix_len)
}

/// Returns how many leading bits two addresses share, 0..=128; IPv4 counts from its mapped form.
#[inline(always)]
pub fn common_prefix(one: &Address, other: &Address) -> u32 {
    let (one, other) = (numbers(one), numbers(other));
    // Leading zeros are counted in one place: each count costs the verifier dozens of instructions.
    let (before, differing) = if one[0] != other[0] {
        (0, one[0] ^ other[0])
    } else if one[1] != other[1] {
        (32, one[1] ^ other[1])
    } else if one[2] != other[2] {
        (64, one[2] ^ other[2])
    } else {
        (96, one[3] ^ other[3])
    };
    before + differing.leading_zeros()
}

/// Returns whether `address` is in the subnet of `prefix_len` bits (counted in the family) that
/// `member` is in.
#[inline(always)]
pub fn same_subnet(address: &Address, member: &Address, prefix_len: u32) -> bool {
    match member.family() {
        Family::V4 => {
            let differing = numbers(address)[3] ^ numbers(member)[3];
            let in_prefix = u64::from(differing) << (prefix_len & 63) >> 32;
            address.is_v4() && in_prefix == 0
        }
        Family::V6 => common_prefix(address, member) >= prefix_len,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v6(text: &str) -> Address {
        let address: std::net::Ipv6Addr = text.parse().unwrap();
        Address::v6(address.octets())
    }

    #[test]
    fn ranges_end_where_the_registries_say() {
        assert!(is_loopback(&Address::v4([127, 255, 255, 255])));
        assert!(!is_loopback(&Address::v4([128, 0, 0, 1])));
        assert!(is_loopback(&v6("::1")) && !is_loopback(&v6("::2")));
        assert!(is_multicast(&Address::v4([239, 255, 255, 255])));
        assert!(!is_multicast(&Address::v4([240, 0, 0, 0])));
        assert!(is_multicast(&v6("ff02::1")) && !is_multicast(&v6("fe80::1")));
        assert!(is_link_local(&v6("febf::1")) && !is_link_local(&v6("fec0::1")));
        assert!(is_broadcast(&Address::v4([255; 4])));
        assert!(!is_broadcast(&v6(
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
        )));
    }

    #[test]
    fn routers_forward_no_packets_of_these_ranges_and_those_around_them() {
        let refused = [
            ["0.0.0.0", "0.255.255.255"],
            ["127.0.0.0", "127.255.255.255"],
            ["224.0.0.0", "239.255.255.255"],
            ["255.255.255.255", "255.255.255.255"],
        ];
        let v4 = |text: &str| {
            let address: std::net::Ipv4Addr = text.parse().unwrap();
            address.to_bits()
        };
        let of_bits = |bits: u32| Address::v4(bits.to_be_bytes());
        for [first, last] in refused.map(|ends| ends.map(v4)) {
            assert!(!is_forwardable(&of_bits(first)) && !is_forwardable(&of_bits(last)));
            let around = [first.checked_sub(1), last.checked_add(1)];
            for bits in around.into_iter().flatten() {
                assert!(is_forwardable(&of_bits(bits)), "{bits:#x}");
            }
        }
        for refused in ["::", "::1", "ff02::1", "ffff::", "fe80::1", "febf::1"] {
            assert!(!is_forwardable(&v6(refused)), "{refused}");
        }
        for usual in [
            "::2", "1::", "1::1", "fe7f::1", "fec0::1", "feff::", "fd00::1",
        ] {
            assert!(is_forwardable(&v6(usual)), "{usual}");
        }
        assert!(is_forwardable(&Address::v4([169, 254, 0, 1])), "Linux does");
    }

    #[test]
    fn a_link_local_address_contains_the_mac_address() {
        let mac = Mac::new([0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
        assert_eq!(link_local_of(mac), v6("fe80::11:22ff:fe33:4455"));
        let universal = Mac::new([0x00, 0, 0x5e, 0, 0x53, 1]);
        assert_eq!(link_local_of(universal), v6("fe80::200:5eff:fe00:5301"));
    }

    #[test]
    fn a_subnet_has_one_broadcast_address() {
        let member = Address::v4([192, 0, 2, 9]);
        let is = |bytes, prefix_len| is_subnet_broadcast(&Address::v4(bytes), &member, prefix_len);
        assert!(is([192, 0, 2, 255], 24) && is([192, 0, 2, 15], 28) && is([192, 0, 2, 11], 30));
        assert!(!is([192, 0, 2, 254], 24) && !is([192, 0, 3, 255], 24) && !is([192, 0, 2, 31], 28));
        assert!(
            !is([192, 0, 2, 9], 31) && !is([192, 0, 2, 9], 32),
            "RFC 3021"
        );
        assert!(!is_subnet_broadcast(&v6("fd00::ff"), &v6("fd00::1"), 24));
        assert!(!is_subnet_broadcast(&v6("::c000:2ff"), &member, 24));
    }

    #[test]
    fn a_common_prefix_is_counted_across_words() {
        assert_eq!(common_prefix(&v6("2001:db8::1"), &v6("2001:db8::1")), 128);
        assert_eq!(common_prefix(&v6("2001:db8::1"), &v6("2001:db9::1")), 31);
        assert_eq!(common_prefix(&v6("2001:db8::1"), &v6("2001:db8::2")), 126);
    }

    #[test]
    fn a_subnet_ends_where_its_prefix_does() {
        let member = Address::v4([192, 0, 2, 1]);
        let is_in = |bytes, prefix_len| same_subnet(&Address::v4(bytes), &member, prefix_len);
        assert!(is_in([192, 0, 2, 77], 24) && !is_in([192, 0, 3, 77], 24));
        assert!(is_in([192, 0, 2, 1], 32) && !is_in([192, 0, 2, 0], 32));
        assert!(is_in([8, 8, 8, 8], 0));
        assert!(!same_subnet(&v6("::c000:201"), &member, 0));
    }
}
