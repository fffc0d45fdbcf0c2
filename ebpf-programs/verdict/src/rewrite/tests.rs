//! Tests of translation: there and back, with checksums compared to a full recomputation.

use abi::{Address, Port, Tuple};
use proptest::prelude::*;

use super::packet;
use crate::parse;
use crate::simulator::World;
use crate::simulator::frame::{Body, Frame};
use crate::work::Headers;

fn addresses(v6: bool) -> BoxedStrategy<[Address; 4]> {
    if v6 {
        // The first byte excludes IPv4-mapped IPv6 addresses.
        any::<[[u8; 15]; 4]>()
            .prop_map(|all| {
                all.map(|rest| {
                    let mut bytes = [0x20; 16];
                    bytes[1..].copy_from_slice(&rest);
                    Address::v6(bytes)
                })
            })
            .boxed()
    } else {
        any::<[[u8; 4]; 4]>()
            .prop_map(|all| all.map(Address::v4))
            .boxed()
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Tcp,
    Udp,
    Unchecked,
    Request,
    Reply,
    UdpLite,
    Dccp,
    Other,
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Tcp),
        Just(Kind::Udp),
        Just(Kind::Unchecked),
        Just(Kind::Request),
        Just(Kind::Reply),
        Just(Kind::UdpLite),
        Just(Kind::Dccp),
        Just(Kind::Other),
    ]
}

fn body(kind: Kind, v6: bool, ports: [u16; 2], payload: &[u8]) -> Body {
    let [source, destination] = ports;
    let payload = payload.to_vec();
    let echo = |icmp_type, identifier: u16| {
        let [a, b] = identifier.to_be_bytes();
        Body::Icmp(icmp_type, 0, [a, b, 1, 2], payload.clone())
    };
    match kind {
        Kind::Tcp => Body::Tcp(source, destination, 0x10, payload),
        Kind::Udp => Body::Udp(source, destination, payload),
        Kind::Unchecked => Body::UdpUnchecked(source, destination, payload),
        Kind::Request => echo(if v6 { 128 } else { 8 }, source),
        Kind::Reply => echo(if v6 { 129 } else { 0 }, destination),
        Kind::UdpLite => Body::Other(136, [&[0; 12], &payload[..]].concat()),
        Kind::Dccp => Body::Other(33, [&[0; 12], &payload[..]].concat()),
        Kind::Other => Body::Other(47, payload),
    }
}

fn tuple(headers: &Headers, addresses: [Address; 2], ports: [u16; 2]) -> Tuple {
    Tuple {
        source: addresses[0],
        destination: addresses[1],
        source_port: Port::new(ports[0]),
        destination_port: Port::new(ports[1]),
        ..headers.tuple
    }
}

fn translated(bytes: &[u8], to: impl FnOnce(&Headers) -> Tuple) -> Vec<u8> {
    let mut world = World {
        packet: bytes.to_vec(),
        ..World::default()
    };
    let mut headers = Headers::default();
    parse::frame(&world, 14, &mut headers).unwrap();
    packet(&mut world, &headers, &to(&headers)).unwrap();
    world.packet
}

proptest! {
    #[test]
    fn a_translated_packet_is_the_one_its_new_sender_would_have_sent(
        (v6, all) in any::<bool>().prop_flat_map(|v6| (Just(v6), addresses(v6))),
        kind in kind(),
        old: [u16; 2],
        new: [u16; 2],
        payload in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let [a, b, c, d] = all;
        let before = Frame::new(a, b, body(kind, v6, old, &payload));
        let after = Frame::new(c, d, body(kind, v6, new, &payload));
        let there = translated(&before.bytes(), |headers| tuple(headers, [c, d], new));
        prop_assert_eq!(&there, &after.bytes());
        let back = translated(&there, |headers| tuple(headers, [a, b], old));
        prop_assert_eq!(back, before.bytes());
    }
}
