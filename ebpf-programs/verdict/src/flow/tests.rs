//! Tests of the flow table's entries: creation, lookup, reopening and expiry.

use abi::{Address, Flow, FlowFlags, Port, Seen, Timeouts, Tuple, protocol};
use proptest::prelude::*;

use super::{Terms, is_expired, is_finished, timeout};
use crate::work::{Hook, Pair};

pub(crate) fn tuple() -> impl Strategy<Value = Tuple> {
    let address = prop_oneof![
        any::<[u8; 4]>().prop_map(Address::v4),
        any::<[u8; 16]>().prop_map(Address::v6),
    ];
    (address.clone(), address, any::<[u16; 2]>(), any::<u8>()).prop_map(
        |(source, destination, [source_port, destination_port], protocol)| Tuple {
            source,
            destination,
            source_port: Port::new(source_port),
            destination_port: Port::new(destination_port),
            protocol,
            reserved: [0; 3],
        },
    )
}

proptest! {
    #[test]
    fn each_entry_of_a_pair_finds_the_other(from in tuple(), to in tuple(), out: bool) {
        let mut pair = Pair::default();
        let hook = if out { Hook::UplinkOut } else { Hook::UplinkIn };
        let terms = Terms { hook, flags: FlowFlags::SNAT, uplink: 3, account: 4, pod: 4, generation: 5, now: 6 };
        pair.fill(&from, &to, &terms);
        let (original, reply) = (&pair.original, &pair.reply);
        prop_assert_eq!(original.flow.translated, to);
        prop_assert_eq!(reply.key, original.flow.translated.reverse());
        prop_assert_eq!(original.key, reply.flow.translated.reverse());
        prop_assert!(original.flow.flags & FlowFlags::ORIGINAL != 0);
        prop_assert!(reply.flow.flags & FlowFlags::ORIGINAL == 0);
        prop_assert!(original.flow.flags & hook.flag() != 0);
        prop_assert!(reply.flow.flags & hook.flag() == 0);
        for flow in [&original.flow, &reply.flow] {
            prop_assert_eq!((flow.uplink, flow.pod, flow.generation), (3, 4, 5));
            prop_assert_eq!((flow.created, flow.last_seen, flow.seen), (6, 6, 0));
        }
    }

    #[test]
    fn a_flow_lives_exactly_as_long_as_its_later_direction(
        a in 0..10_000_u32,
        b in 0..10_000_u32,
        protocol: u8,
        seen: [u32; 2],
    ) {
        let timeouts = Timeouts::default();
        let at = |last_seen, seen| Flow { last_seen, seen, ..Flow::default() };
        let (one, other) = (at(a, seen[0]), at(b, seen[1]));
        let end = a.max(b) + timeout(seen[0], seen[1], protocol, &timeouts);
        for (one, other) in [(&one, &other), (&other, &one)] {
            prop_assert!(!is_expired(one, other, protocol, &timeouts, end - 1));
            prop_assert!(is_expired(one, other, protocol, &timeouts, end));
        }
    }
}

#[test]
fn a_clock_that_went_back_expires_no_flow() {
    let flow = Flow {
        last_seen: 100,
        ..Flow::default()
    };
    let timeouts = Timeouts::default();
    assert!(!is_expired(&flow, &flow, protocol::UDP, &timeouts, 90));
}

#[test]
fn each_kind_of_flow_has_its_own_idle_timeout() {
    let t = Timeouts::default();
    let (packet, none) = (Seen::PACKET, 0);
    let (asks, agrees) = (packet | Seen::SYN, packet | Seen::SYN | Seen::ACK);
    let cases = [
        (packet, none, protocol::TCP, t.tcp_opening),
        (asks, agrees, protocol::TCP, t.tcp_opening),
        (agrees, agrees, protocol::TCP, t.tcp_established),
        (packet | Seen::FIN, packet, protocol::TCP, t.tcp_closing),
        (packet, packet | Seen::FIN, protocol::TCP, t.tcp_closing),
        (
            packet | Seen::FIN,
            packet | Seen::RST,
            protocol::TCP,
            t.tcp_reset,
        ),
        (packet, none, protocol::UDP, t.udp_single),
        (packet, packet, protocol::UDP, t.udp_stream),
        (packet, packet, protocol::ICMP, t.icmp),
        (packet, packet, protocol::ICMPV6, t.icmp),
        (packet, packet, 47, t.other),
    ];
    for (one, other, protocol, expected) in cases {
        assert_eq!(timeout(one, other, protocol, &t), expected);
        assert_eq!(timeout(other, one, protocol, &t), expected);
    }
}

#[test]
fn finished_flows_are_recognised_by_protocol_and_idle_time() {
    let packet = Seen::PACKET;
    let (asks, agrees) = (packet | Seen::SYN, packet | Seen::SYN | Seen::ACK);
    let done = agrees | Seen::FIN;
    let over = |protocol, seen: [u32; 2], lasted: u32, silent: u32| {
        let flow = |seen| Flow {
            seen,
            created: 100,
            last_seen: 100 + lasted,
            ..Flow::default()
        };
        let [one, other] = seen.map(flow);
        let now = 100 + lasted + silent;
        let is = is_finished(&one, &other, protocol, now);
        assert_eq!(is_finished(&other, &one, protocol, now), is);
        is
    };
    assert!(over(protocol::TCP, [done, done], 0, 0), "closed");
    assert!(over(protocol::TCP, [agrees, agrees | Seen::RST], 0, 0));
    assert!(!over(protocol::TCP, [done, agrees], 9, 9), "half closed");
    assert!(!over(protocol::TCP, [agrees, agrees], 0, 80_000));
    assert!(!over(protocol::TCP, [asks, agrees], 0, 4));
    assert!(over(protocol::TCP, [asks, agrees], 0, 5), "never opened");
    assert!(!over(protocol::UDP, [packet, packet], 1, 4));
    assert!(over(protocol::UDP, [packet, packet], 1, 5), "answered");
    assert!(over(protocol::UDP, [packet, 0], 0, 5), "never answered");
    assert!(!over(protocol::UDP, [packet, packet], 2, 29), "it goes on");
}
