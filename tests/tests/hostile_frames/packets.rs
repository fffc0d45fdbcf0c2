//! What packets of pods and packets from outside have in common: addresses, options, wrong lengths.

use std::net::IpAddr;

use super::wire::{ETHERNET, with_header_words, with_length};

/// Returns the address with other last bits, in the subnet of `like`.
pub(crate) fn sibling(like: IpAddr, last: u8) -> IpAddr {
    match like {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            IpAddr::from([a, b, c, last])
        }
        IpAddr::V6(v6) => {
            let mut words = v6.segments();
            words[7] = last.into();
            IpAddr::from(words)
        }
    }
}

/// `EtherTypes` beside IP and ARP, with their usual destinations: LLC with STP, LLC with SNAP,
/// RARP, IPX, 802.1X, MPLS, `PPPoE`, LLDP, PTP, CFM, loopback, and unknown ones.
pub(crate) const FOREIGN: [(u16, [u8; 6]); 17] = [
    (0x0026, [0x01, 0x80, 0xc2, 0, 0, 0]),
    (0x0040, [0xff; 6]),
    (0x8035, [0xff; 6]),
    (0x8137, [0xff; 6]),
    (0x888e, [0x01, 0x80, 0xc2, 0, 0, 3]),
    (0x8847, [0; 6]),
    (0x8848, [0; 6]),
    (0x8863, [0xff; 6]),
    (0x8864, [0; 6]),
    (0x88cc, [0x01, 0x80, 0xc2, 0, 0, 0x0e]),
    (0x88f7, [0x01, 0x1b, 0x19, 0, 0, 0]),
    (0x8902, [0x01, 0x80, 0xc2, 0, 0, 0x30]),
    (0x9000, [0; 6]),
    (0x0000, [0; 6]),
    (0x05dc, [0; 6]),
    (0x88b5, [0xff; 6]),
    (0xffff, [0; 6]),
];

/// IPv4 options or IPv6 extension headers, as in a frame of the simulator.
pub(crate) type Options = Vec<(u8, Vec<u8>)>;

/// IPv4 options: none, padding, router alert, timestamp, record route, and source routes by `hop`.
fn options_v4(hop: [u8; 4]) -> Vec<(&'static str, Options)> {
    let source_route = |kind: u8| {
        let mut bytes = vec![kind, 7, 4];
        bytes.extend(hop);
        bytes.push(0);
        bytes
    };
    vec![
        ("padding", vec![(0, vec![1, 1, 1, 0])]),
        ("router alert", vec![(0, vec![148, 4, 0, 0])]),
        ("timestamp", vec![(0, vec![68, 8, 5, 0, 0, 0, 0, 0])]),
        ("record route", vec![(0, vec![7, 7, 4, 0, 0, 0, 0, 0])]),
        ("loose source route", vec![(0, source_route(131))]),
        ("strict source route", vec![(0, source_route(137))]),
        (
            "an option longer than the header",
            vec![(0, vec![7, 39, 4, 0])],
        ),
        ("forty bytes", vec![(0, vec![1; 40])]),
    ]
}

/// Chains of IPv6 extension headers: hop-by-hop and destination options, routing of type 0 and 4,
/// an atomic fragment, AH, mobility, and chains of them.
fn options_v6(hop: [u8; 16]) -> Vec<(&'static str, Options)> {
    let padding = vec![1, 4, 0, 0, 0, 0];
    let routing = |kind: u8| {
        let mut bytes = vec![kind, 1, 0, 0, 0, 0];
        bytes.extend(hop);
        (43, bytes)
    };
    let options = |number: u8| (number, padding.clone());
    let atomic = (44, vec![0, 0, 0, 0, 0, 9]);
    vec![
        ("hop-by-hop options", vec![options(0)]),
        ("destination options", vec![options(60)]),
        ("routing type 0", vec![routing(0)]),
        ("routing type 4", vec![routing(4)]),
        ("an atomic fragment", vec![atomic.clone()]),
        ("AH", vec![(51, vec![0; 22])]),
        ("mobility", vec![options(135)]),
        ("two of them", vec![options(0), options(60)]),
        (
            "five of them",
            vec![
                options(0),
                options(60),
                options(60),
                options(60),
                options(60),
            ],
        ),
        ("six of them", vec![options(60); 6]),
        ("nine of them", vec![options(60); 9]),
        (
            "options behind a fragment header",
            vec![atomic, options(60)],
        ),
        (
            "hop-by-hop options in second place",
            vec![options(60), options(0)],
        ),
    ]
}

/// Returns options of the family of `hop`, an address that source routes lead to, with their names.
pub(crate) fn options(hop: IpAddr) -> Vec<(&'static str, Options)> {
    match hop {
        IpAddr::V4(v4) => options_v4(v4.octets()),
        IpAddr::V6(v6) => options_v6(v6.octets()),
    }
}

/// Makes a packet malformed.
pub(crate) type Change = fn(Vec<u8>) -> Vec<u8>;

/// Returns what can be wrong with the lengths of a packet.
pub(crate) fn changes() -> [(&'static str, Change); 10] {
    [
        ("length 0", |frame| with_length(frame, 0)),
        ("length 19", |frame| with_length(frame, 19)),
        ("length 28", |frame| with_length(frame, 28)),
        ("length 60000", |frame| with_length(frame, 60_000)),
        ("padding", |frame| [frame, vec![0; 30]].concat()),
        ("no header length", |frame| with_header_words(frame, 0)),
        ("a header of 60 bytes", |frame| with_header_words(frame, 15)),
        ("a cut payload", |frame| frame[..frame.len() - 9].to_vec()),
        ("a cut header", |frame| frame[..ETHERNET + 19].to_vec()),
        ("version 5", |mut frame| {
            frame[ETHERNET] = 0x55;
            frame
        }),
    ]
}
