//! Sampling of drops, and descriptions of valid and cut packets of both families.

use abi::DropHook;
use proptest::prelude::*;

use super::*;
use crate::parse;
use crate::sender::ETHERNET;
use crate::simulator::World;
use crate::simulator::example::{FAMILIES, pod, remote};
use crate::simulator::frame::{Body, Frame, flag};
use crate::work::Headers;

/// Milliseconds between two reports.
const INTERVAL: u64 = 100;
const UNTIL: u64 = 1 << 40;

fn listening(since: u64) -> DropSampling {
    DropSampling {
        until: UNTIL,
        since,
        interval: INTERVAL,
    }
}

fn packet(bytes: Vec<u8>) -> World {
    World {
        packet: bytes,
        ..World::default()
    }
}

fn described(bytes: Vec<u8>, l2_len: u32) -> DroppedPacket {
    let mut found = DroppedPacket {
        hook: DropHook::FromPod as u8,
        ..DroppedPacket::default()
    };
    describe(&packet(bytes), l2_len, &mut found);
    found
}

#[test]
fn no_drop_is_reported_while_the_agent_does_not_listen() {
    let stopped = DropSampling::default();
    assert_eq!(sample(0, 1, 5, &stopped), None);
    let expired = DropSampling {
        until: 5,
        ..listening(0)
    };
    assert_eq!(sample(0, 1, 5, &expired), None);
}

#[test]
fn the_first_drop_after_the_agent_begins_to_listen_is_reported_as_one() {
    let old = sample(0, 7, 1_000, &listening(900)).unwrap();
    assert_eq!(old.count, 1, "the first of all");
    // The agent stops to listen, and begins again within the interval.
    let new = sample(old.state, 5_000, 1_050, &listening(1_040)).unwrap();
    assert_eq!(new.count, 1, "{new:?}");
}

proptest! {
    #[test]
    fn reports_keep_the_interval_and_count_every_drop_between_them(
        steps in prop::collection::vec(0..150_u64, 1..200),
        start in any::<u32>(),
        counted in any::<u32>(),
    ) {
        let (mut state, mut now) = (0, u64::from(start));
        let sampling = listening(now);
        let (mut last, mut since) = (None, 0);
        for (step, packets) in steps.into_iter().zip(u64::from(counted) + 1..) {
            now += step;
            since += 1;
            let Some(sample) = sample(state, packets, now, &sampling) else {
                prop_assert!(last.is_some_and(|at| now - at < INTERVAL), "nothing for an interval");
                continue;
            };
            prop_assert!(last.is_none_or(|at| now - at >= INTERVAL));
            prop_assert_eq!(u64::from(sample.count), since);
            (state, last, since) = (sample.state, Some(now), 0);
        }
    }

    #[test]
    fn any_bytes_are_described_and_the_parser_agrees_where_it_accepts_them(
        bytes in prop::collection::vec(any::<u8>(), 14..120),
        family in 0..2_usize,
        l2_len in prop_oneof![Just(0), Just(ETHERNET)],
    ) {
        let mut bytes = bytes;
        let ethertype = [[8, 0], [0x86, 0xdd]][family];
        bytes[12..14].copy_from_slice(&ethertype);
        let at = l2_len as usize;
        if let Some(first) = bytes.get_mut(at) {
            *first = [0x45, 0x60][family];
        }
        let found = described(bytes.clone(), l2_len);
        let mut headers = Headers::default();
        let parsed = parse::frame(&packet(bytes), l2_len, &mut headers);
        if parsed.is_ok() && headers.version != 0 {
            prop_assert_eq!(found.tuple.source, headers.tuple.source);
            prop_assert_eq!(found.tuple.destination, headers.tuple.destination);
        }
    }
}

#[test]
fn tuples_of_tcp_and_udp_packets_are_described() {
    for family in FAMILIES {
        let (from, to) = (pod()[family], remote()[family]);
        for (body, number) in [
            (Body::Tcp(41_000, 80, flag::SYN, Vec::new()), protocol::TCP),
            (Body::Udp(41_000, 80, b"data".to_vec()), protocol::UDP),
        ] {
            let found = described(Frame::new(from, to, body).bytes(), ETHERNET);
            let expected = Tuple {
                source: from,
                destination: to,
                source_port: Port::new(41_000),
                destination_port: Port::new(80),
                protocol: number,
                reserved: [0; 3],
            };
            assert_eq!(found.tuple, expected);
            assert_eq!(found.flags, Flags::ADDRESSES | Flags::PORTS);
            assert_eq!(found.ethertype, [ETHERTYPE_IPV4, ETHERTYPE_IPV6][family]);
        }
    }
}

#[test]
fn the_packet_that_an_icmp_error_quotes_is_described() {
    for family in FAMILIES {
        let (from, to) = (pod()[family], remote()[family]);
        let quoted = Frame::new(to, from, Body::Udp(53, 41_000, b"data".to_vec())).bytes();
        let icmp_type = [3, 1][family];
        let quote = quoted[ETHERNET as usize..].to_vec();
        let error = Frame::new(from, to, Body::Icmp(icmp_type, 4, [0; 4], quote));
        let found = described(error.bytes(), ETHERNET);
        assert_eq!((found.icmp_type, found.icmp_code), (icmp_type, 4));
        assert_eq!(found.flags, Flags::ADDRESSES | Flags::ICMP | Flags::QUOTED);
        assert_eq!((found.tuple.source, found.tuple.destination), (from, to));
        let inner = &found.quoted;
        assert_eq!((inner.source, inner.destination), (to, from));
        assert_eq!(inner.source_port, Port::new(53));
        assert_eq!(inner.destination_port, Port::new(41_000));
        assert_eq!(inner.protocol, protocol::UDP);
    }
}

#[test]
fn a_frame_that_ends_in_its_header_is_described_as_far_as_it_goes() {
    let frame = Frame::new(pod()[0], remote()[0], Body::Udp(1, 2, b"data".to_vec())).bytes();
    let no_ports = described(frame[..34].to_vec(), ETHERNET);
    assert_eq!(no_ports.flags, Flags::ADDRESSES);
    assert_eq!(no_ports.tuple.source, pod()[0]);
    let no_addresses = described(frame[..33].to_vec(), ETHERNET);
    assert_eq!(no_addresses.flags, 0);
    assert_eq!(no_addresses.ethertype, ETHERTYPE_IPV4);
}
