//! Tests of MASQUERADE: source address and port of a pod's flow.

use abi::{Address, Port, Settings, Source, Uplink};
use proptest::prelude::*;

use super::{TRIES, port_candidate, source_v4, source_v6};

fn address(text: &str) -> Address {
    match text.parse().unwrap() {
        std::net::IpAddr::V4(address) => Address::v4(address.octets()),
        std::net::IpAddr::V6(address) => Address::v6(address.octets()),
    }
}

fn uplink(sources: &[(&str, u32)]) -> Uplink {
    let mut uplink = Uplink::default();
    for (row, (text, prefix_len)) in uplink.sources.iter_mut().zip(sources) {
        *row = Source {
            address: address(text),
            prefix_len: *prefix_len,
            reserved: 0,
        };
    }
    uplink
}

#[test]
fn ipv4_source_is_the_first_address_on_the_next_hops_subnet_or_else_the_first() {
    let uplink = uplink(&[
        ("2001:db8::1", 64),
        ("192.0.2.1", 24),
        ("198.51.100.1", 25),
        ("198.51.100.2", 25),
    ]);
    for (next_hop, expected) in [
        ("192.0.2.254", "192.0.2.1"),
        ("198.51.100.126", "198.51.100.1"),
        ("198.51.100.129", "192.0.2.1"),
        ("203.0.113.1", "192.0.2.1"),
        ("fe80::1", "192.0.2.1"),
    ] {
        assert_eq!(
            source_v4(&uplink, &address(next_hop)),
            Some(address(expected))
        );
    }
}

#[test]
fn ipv6_source_has_the_longest_common_prefix_with_the_destination() {
    let uplink = uplink(&[
        ("fe80::9", 64),
        ("192.0.2.1", 24),
        ("fd00::1", 64),
        ("2001:db8:1::1", 64),
        ("2001:db8:2::1", 64),
        ("2001:db8:2::2", 64),
    ]);
    for (destination, expected) in [
        ("2001:db8:2:3::9", "2001:db8:2::1"),
        // Bits after the prefix do not count: the first of the two is chosen.
        ("2001:db8:2::2", "2001:db8:2::1"),
        ("2001:db8:1:ffff::9", "2001:db8:1::1"),
        ("fd00:99::1", "fd00::1"),
        ("2600::1", "2001:db8:1::1"),
    ] {
        assert_eq!(
            source_v6(&uplink, &address(destination)),
            Some(address(expected))
        );
    }
}

#[test]
fn an_uplink_without_addresses_of_a_family_has_no_source() {
    let only_v6 = uplink(&[("2001:db8::1", 64)]);
    assert_eq!(source_v4(&only_v6, &address("192.0.2.1")), None);
    let only_v4 = uplink(&[("192.0.2.1", 24), ("fe80::1", 64)]);
    assert_eq!(source_v6(&only_v4, &address("2001:db8::1")), None);
    assert_eq!(source_v4(&Uplink::default(), &address("192.0.2.1")), None);
}

proptest! {
    #[test]
    fn port_candidates_are_the_packets_own_port_and_then_ports_of_the_range(
        attempt in 1..TRIES, own: u16, random: u32, a in 1..=u16::MAX, b in 1..=u16::MAX,
    ) {
        let settings = Settings { port_low: a.min(b), port_high: a.max(b), ..Settings::default() };
        let own = Port::new(own);
        prop_assert_eq!(port_candidate(0, own, random, &settings), Some(own));
        if let Some(port) = port_candidate(attempt, own, random, &settings) {
            prop_assert!((settings.port_low..=settings.port_high).contains(&port.number()));
        }
    }

    #[test]
    fn an_unset_port_range_is_the_default_one(random: u32) {
        let port = port_candidate(1, Port::NONE, random, &Settings::default()).unwrap().number();
        prop_assert!(port >= 32_768);
    }
}

#[test]
fn both_ends_of_the_port_range_are_reached() {
    let settings = Settings {
        port_low: 100,
        port_high: 101,
        ..Settings::default()
    };
    let ports = [0, u32::MAX].map(|random| {
        let port = port_candidate(1, Port::NONE, random, &settings);
        port.unwrap().number()
    });
    assert_eq!(ports, [100, 101]);
}

/// After the random candidates no port repeats, and a short range is tried completely.
#[test]
fn the_last_port_candidates_cover_a_short_range() {
    for (low, high) in [(40_000, 40_000), (40_000, 40_009), (1_024, u16::MAX)] {
        let settings = Settings {
            port_low: low,
            port_high: high,
            ..Settings::default()
        };
        for random in [0, 0x8123_4567, u32::MAX] {
            let mut ports: Vec<u16> = (16..TRIES)
                .map_while(|n| port_candidate(n, Port::NONE, random, &settings))
                .map(Port::number)
                .collect();
            let all = ports.len();
            ports.sort_unstable();
            ports.dedup();
            assert_eq!(ports.len(), all, "a port comes twice");
            let range = usize::from(high - low) + 1;
            assert_eq!(all, range.min(TRIES as usize - 16));
        }
    }
}
