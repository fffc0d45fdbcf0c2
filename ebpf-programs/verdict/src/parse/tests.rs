//! Tests of the parser: valid, truncated and malicious frames.

use abi::{Address, DropReason, Port, Seen, protocol};
use proptest::prelude::*;

use super::frame;
use crate::simulator::World;
use crate::simulator::example::{FAMILIES, pod, remote};
use crate::simulator::frame::{Body, Frame, flag};
use crate::work::{Content, Fragment, Headers, Transport};

fn parse(l2_len: u32, bytes: &[u8]) -> (Result<Content, DropReason>, Headers) {
    let world = World {
        packet: bytes.to_vec(),
        ..World::default()
    };
    let mut headers = Headers::default();
    let content = frame(&world, l2_len, &mut headers);
    (content, headers)
}

fn bodies(sample: &Address) -> [(Body, Transport, u16, u16); 6] {
    [
        (Body::Tcp(1, 2, flag::SYN, vec![0; 5]), Transport::Tcp, 1, 2),
        (Body::Udp(1, 2, vec![0; 5]), Transport::Udp, 1, 2),
        (Body::Sctp(1, 2, vec![0; 4]), Transport::Sctp, 1, 2),
        (Body::echo_request(sample, 9), Transport::EchoRequest, 9, 0),
        (Body::echo_reply(sample, 9), Transport::EchoReply, 0, 9),
        (Body::Other(47, vec![0; 3]), Transport::Portless, 0, 0),
    ]
}

#[test]
fn every_protocol_gives_its_tuple() {
    for family in FAMILIES {
        let (source, destination) = (pod()[family], remote()[family]);
        for (body, transport, source_port, destination_port) in bodies(&source) {
            let frame = Frame::new(source, destination, body.clone());
            for (l2_len, bytes) in [(14, frame.bytes()), (0, frame.packet())] {
                let (content, headers) = parse(l2_len, &bytes);
                assert_eq!(content, Ok(Content::Ip));
                assert_eq!(headers.transport, transport);
                assert_eq!(headers.tuple.source, source);
                assert_eq!(headers.tuple.destination, destination);
                assert_eq!(headers.tuple.source_port, Port::new(source_port));
                assert_eq!(headers.tuple.destination_port, Port::new(destination_port));
                assert_eq!(headers.tuple.protocol, body.protocol(&source));
                assert_eq!(headers.length as usize, frame.packet().len());
            }
        }
    }
}

#[test]
fn tcp_flags_are_parsed() {
    for (flags, seen) in [
        (flag::SYN, Seen::SYN),
        (flag::SYN | flag::ACK, Seen::SYN | Seen::ACK),
        (flag::FIN | flag::ACK, Seen::FIN | Seen::ACK),
        (flag::RST, Seen::RST),
        (0x28, 0),
    ] {
        let frame = Frame::new(pod()[0], remote()[0], Body::Tcp(1, 2, flags, vec![]));
        let (_, headers) = parse(14, &frame.bytes());
        assert_eq!(headers.seen, Seen::PACKET | seen);
    }
}

#[test]
fn a_packet_cut_anywhere_is_malformed_or_foreign() {
    for family in FAMILIES {
        let source = pod()[family];
        for (body, ..) in bodies(&source) {
            let bytes = Frame::new(source, remote()[family], body).bytes();
            for length in 0..bytes.len() {
                let (content, _) = parse(14, &bytes[..length]);
                if length < 14 {
                    assert_eq!(content, Ok(Content::Foreign));
                } else {
                    assert_eq!(content, Err(DropReason::Malformed), "{length} bytes");
                }
            }
        }
    }
}

#[test]
fn padding_of_an_ethernet_frame_is_not_part_of_the_packet() {
    for family in FAMILIES {
        let frame = Frame::new(pod()[family], remote()[family], Body::Udp(1, 2, vec![]));
        let mut bytes = frame.bytes();
        bytes.extend([0; 20]);
        assert_eq!(parse(14, &bytes).0, Ok(Content::Ip));
    }
    // A transport header beyond the packet's end does not count.
    let mut bytes = Frame::new(pod()[0], remote()[0], Body::Other(6, vec![0; 4])).bytes();
    bytes.extend([0; 40]);
    assert_eq!(parse(14, &bytes).0, Err(DropReason::Malformed));
}

#[test]
fn a_header_that_contradicts_itself_is_malformed() {
    let good = Frame::new(pod()[0], remote()[0], Body::Udp(1, 2, vec![0; 8])).bytes();
    for (at, value) in [(14, 0x65), (14, 0x44), (14, 0x4f), (17, 19), (16, 0xff)] {
        let mut bytes = good.clone();
        bytes[at] = value;
        assert_eq!(parse(14, &bytes).0, Err(DropReason::Malformed), "at {at}");
    }
}

#[test]
fn a_big_tcp_packet_has_no_ip_length() {
    for family in FAMILIES {
        let body = Body::Tcp(1, 2, flag::ACK, vec![0; 100]);
        let mut bytes = Frame::new(pod()[family], remote()[family], body).bytes();
        let field = if family == 0 { 16 } else { 18 };
        bytes[field..field + 2].fill(0);
        assert_eq!(parse(14, &bytes).0, Err(DropReason::Malformed));
        bytes.resize(80_000, 0);
        assert_eq!(parse(14, &bytes).0, Ok(Content::Ip));
    }
}

#[test]
fn first_and_later_fragments_are_distinguished() {
    for family in FAMILIES {
        let frame = Frame::new(
            pod()[family],
            remote()[family],
            Body::Udp(7, 8, vec![0; 40]),
        );
        let [first, later] = frame.fragments(0xabc, 16);
        let (content, headers) = parse(14, &first);
        assert_eq!(content, Ok(Content::Ip));
        assert_eq!(headers.fragment, Fragment::First);
        assert_eq!(headers.tuple.source_port, Port::new(7));
        let (content, other) = parse(14, &later);
        assert_eq!(content, Ok(Content::Ip));
        assert_eq!(other.fragment, Fragment::Later);
        assert_eq!(other.tuple.source_port, Port::NONE);
        assert_eq!(other.tuple.protocol, protocol::UDP);
        assert_eq!(other.identification, headers.identification);
    }
}

#[test]
fn an_ipv4_mapped_ipv6_address_is_a_martian() {
    let [_, _, _, last] = pod()[0].words();
    let mut bytes = Frame::new(pod()[1], remote()[1], Body::Udp(1, 2, vec![])).bytes();
    bytes[22..38].copy_from_slice(&Address::from_v4_word(last).bytes());
    assert_eq!(parse(14, &bytes).0, Err(DropReason::Martian));
}

proptest! {
    #[test]
    fn no_bytes_at_all_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(14, &bytes);
        let _ = parse(0, &bytes);
    }

    #[test]
    fn a_frame_with_any_bytes_changed_does_not_make_the_parser_panic(
        family in 0..2_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let body = Body::Tcp(1, 2, flag::SYN, vec![0; 60]);
        let mut frame = Frame::new(pod()[family], remote()[family], body);
        frame.options = vec![(60, vec![0; 6])];
        let mut bytes = frame.bytes();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let (content, headers) = parse(14, &bytes);
        if content == Ok(Content::Ip) && headers.fragment != Fragment::Later
            && headers.transport == Transport::Tcp {
            prop_assert!(headers.l4 as usize + 20 <= bytes.len());
        }
    }
}
