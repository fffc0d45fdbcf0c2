//! Kinds of ICMP errors, and source addresses that a client must not have.

use std::net::IpAddr;

use e2e::{GATEWAYS, WORLD};

use super::system::{PODS, node_address, pod_address};

/// The MTUs of "too big" errors in traces: none of a link.
pub(super) const FORGED_MTUS: [[u8; 4]; 2] = [[0, 0, 0x05, 0x14], [0, 0, 0x05, 0x00]];

/// Type and code of every ICMP error of a family, and the four bytes behind the checksum.
pub(super) fn errors(six: bool) -> Vec<([u8; 2], [u8; 4])> {
    let none = [0; 4];
    if six {
        let mut all = (0..=6).map(|code| ([1, code], none)).collect::<Vec<_>>();
        all.extend([([2, 0], [0, 0, 0x05, 0x14]), ([2, 0], [0, 0, 0x05, 0x00])]);
        all.extend([([3, 0], none), ([3, 1], none)]);
        all.extend((0..=2).map(|code| ([4, code], [0, 0, 0, 6])));
        all
    } else {
        let mut all = (0..=15)
            .filter(|code| *code != 4)
            .map(|code| ([3, code], none))
            .collect::<Vec<_>>();
        all.extend([([3, 4], [0, 0, 0x05, 0x14]), ([3, 4], [0, 0, 0, 0])]);
        all.extend([([4, 0], none), ([11, 0], none), ([11, 1], none)]);
        all.extend((0..=2).map(|code| ([12, code], [9, 0, 0, 0])));
        all
    }
}

/// Returns source addresses that a client must not have.
pub(super) fn martians(six: bool) -> Vec<IpAddr> {
    let family = usize::from(six);
    let texts: &[&str] = if six {
        &[
            "::1",
            "::",
            "ff02::5",
            "ff05::1",
            "fe80::5",
            "::ffff:192.0.2.9",
        ]
    } else {
        &[
            "127.0.0.1",
            "0.0.0.0",
            "224.0.0.5",
            "255.255.255.255",
            "240.0.0.1",
            "169.254.1.1",
            "192.0.2.255",
        ]
    };
    let mut all = texts
        .iter()
        .map(|text| text.parse().expect("the addresses are valid"))
        .collect::<Vec<_>>();
    all.extend((0..2).map(|number| node_address(number, six)));
    all.extend((0..PODS.len()).map(|number| pod_address(number, six)));
    all.extend([GATEWAYS[family], WORLD[family]]);
    all
}
