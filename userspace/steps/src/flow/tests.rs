//! Tests of flows from flow table entries as the datapath writes them.

use abi::Port;

use super::*;

fn tuple(source: (&str, u16), destination: (&str, u16), protocol: u8) -> Tuple {
    let address = |text: &str| match text.parse().unwrap() {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    };
    Tuple {
        source: address(source.0),
        destination: address(destination.0),
        source_port: Port::new(source.1),
        destination_port: Port::new(destination.1),
        protocol,
        reserved: [0; 3],
    }
}

/// Both entries of a flow that is 50 seconds old.
fn pair(from: Tuple, to: Tuple, flags: u32, pod: u32) -> [(Tuple, Flow); 2] {
    let flow = |translated, flags, last_seen, packets| Flow {
        translated,
        flags,
        seen: Seen::PACKET | Seen::ACK,
        created: 100,
        last_seen,
        pod,
        generation: 7,
        packets,
        bytes: packets * 100,
        ..Flow::default()
    };
    [
        (from, flow(to, flags | FlowFlags::ORIGINAL, 120, 3)),
        (to.reverse(), flow(from.reverse(), flags, 140, 2)),
    ]
}

fn outward() -> [(Tuple, Flow); 2] {
    let from = tuple(("10.88.0.2", 40_000), ("198.51.100.7", 443), protocol::TCP);
    let to = tuple(("192.0.2.1", 50_001), ("198.51.100.7", 443), protocol::TCP);
    pair(from, to, FlowFlags::SNAT, 1)
}

fn inward() -> [(Tuple, Flow); 2] {
    let from = tuple(
        ("2001:db8::7", 33_000),
        ("2001:db8::1", 8080),
        protocol::UDP,
    );
    let to = tuple(("2001:db8::7", 33_000), ("fd00:88::3", 80), protocol::UDP);
    pair(from, to, FlowFlags::DNAT, 2)
}

fn table(pairs: impl IntoIterator<Item = [(Tuple, Flow); 2]>) -> FlowTable {
    FlowTable {
        entries: pairs.into_iter().flatten().collect(),
        now: 150,
        ..FlowTable::default()
    }
}

#[test]
fn two_flow_entries_make_one_flow_with_both_tuples_and_counters() {
    let flows = table([outward()]).flows().collect::<Vec<_>>();
    let ends = |source: &str, destination: &str| FlowEndpoints {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
    };
    let expected = LiveFlow {
        pod: 1,
        generation: 7,
        peer_pod: None,
        kind: FlowKind::Masqueraded,
        protocol: protocol::TCP,
        original: ends("10.88.0.2:40000", "198.51.100.7:443"),
        translated: ends("192.0.2.1:50001", "198.51.100.7:443"),
        state: FlowState::Established,
        path: FlowPath::Stack(0),
        age: Some(50),
        idle: Some(10),
        sent: Some(Traffic {
            packets: 3,
            bytes: 300,
        }),
        replied: Some(Traffic {
            packets: 2,
            bytes: 200,
        }),
    };
    assert_eq!(flows, [expected]);
}

#[test]
fn a_flow_entry_without_its_reply_entry_is_no_flow() {
    for half in [0, 1] {
        let mut table = table([]);
        table.entries.extend([outward()[half]]);
        assert_eq!(table.flows().count(), 0);
    }
    // The entry in its reply direction belongs to another flow.
    let mut torn = table([outward()]);
    let [_, (key, _)] = outward();
    torn.entries.get_mut(&key).unwrap().translated = key;
    assert_eq!(torn.flows().count(), 0);
}

#[test]
fn a_flow_filter_matches_pods_peers_and_ports_of_either_side() {
    let table = table([outward(), inward()]);
    let pods = |slot, generation| FlowFilter {
        pods: Some([(slot, generation)].into()),
        ..FlowFilter::default()
    };
    let peer = |peer: &str| FlowFilter {
        peer: Some(peer.parse().unwrap()),
        ..FlowFilter::default()
    };
    let port = |port| FlowFilter {
        port: Some(port),
        ..FlowFilter::default()
    };
    let protocols = |protocols: &[u8]| FlowFilter {
        protocols: Some(protocols.iter().copied().collect()),
        ..FlowFilter::default()
    };
    for (filter, taken) in [
        (FlowFilter::default(), 2),
        (protocols(&[protocol::TCP]), 1),
        (protocols(&[protocol::TCP, protocol::UDP]), 2),
        (protocols(&[protocol::ICMP]), 0),
        (pods(1, 7), 1),
        (pods(1, 8), 0),
        (peer("198.51.100.7"), 1),
        (peer("2001:db8::7"), 1),
        (peer("2001:db8::1"), 0),
        (port(50_001), 1),
        (port(8080), 1),
        (port(80), 1),
        (port(81), 0),
    ] {
        let flows = table.flows().filter(|flow| filter.matches(flow));
        assert_eq!(flows.count(), taken, "{filter:?}");
    }
}

#[test]
fn flow_states_derive_from_the_packets_of_both_directions() {
    const BOTH: u32 = Seen::PACKET;
    for (one, other, protocol, state) in [
        (BOTH | Seen::SYN, 0, protocol::TCP, "opening"),
        (BOTH | Seen::SYN, BOTH | Seen::ACK, protocol::TCP, "opening"),
        (
            BOTH | Seen::ACK,
            BOTH | Seen::ACK,
            protocol::TCP,
            "established",
        ),
        (BOTH, BOTH | Seen::FIN, protocol::TCP, "closing"),
        (BOTH | Seen::FIN, BOTH | Seen::RST, protocol::TCP, "reset"),
        (BOTH, 0, protocol::UDP, "single"),
        (BOTH, BOTH, protocol::UDP, "stream"),
        (BOTH, BOTH, protocol::ICMP, "icmp"),
        (BOTH, 0, protocol::ICMPV6, "icmp"),
        (BOTH, BOTH, 47, "other"),
    ] {
        assert_eq!(FlowState::of(one, other, protocol).name(), state);
        assert_eq!(FlowState::of(other, one, protocol).name(), state);
    }
}

#[test]
fn flow_states_agree_with_the_datapaths_timeouts() {
    let timeouts = abi::Timeouts::default();
    let of_state = |state| match state {
        FlowState::Opening => timeouts.tcp_opening,
        FlowState::Established => timeouts.tcp_established,
        FlowState::Closing => timeouts.tcp_closing,
        FlowState::Reset => timeouts.tcp_reset,
        FlowState::Single => timeouts.udp_single,
        FlowState::Stream => timeouts.udp_stream,
        FlowState::Icmp => timeouts.icmp,
        FlowState::Other => timeouts.other,
        FlowState::Socket(state) => panic!("no flow table entry has the state {state:?}"),
    };
    // All bits but `RESET_SUSPECTED`, which shortens the timeout of an established flow.
    let bits = (0..512_u32).filter(|bits| bits & Seen::RESET_SUSPECTED == 0);
    for protocol in [
        protocol::TCP,
        protocol::UDP,
        protocol::ICMP,
        protocol::ICMPV6,
        47,
    ] {
        for (one, other) in bits
            .clone()
            .flat_map(|one| bits.clone().map(move |it| (one, it)))
        {
            let chosen = verdict::flow::timeout(one, other, protocol, &timeouts);
            assert_eq!(of_state(FlowState::of(one, other, protocol)), chosen);
        }
    }
}

#[test]
fn the_path_of_a_flow_is_the_decision_about_its_connection() {
    let [(original, flow), _] = outward();
    let decided = |decision, expires, tuple| {
        let mut table = table([outward()]);
        let offloaded = Offloaded {
            decision,
            expires,
            ..Offloaded::default()
        };
        table.offloaded = [(tuple, offloaded)].into();
        table.flows().next().unwrap().path
    };
    let accepted = Offloaded::ACCEPTED;
    assert_eq!(decided(accepted, 151, original), FlowPath::Offloaded);
    assert_eq!(decided(accepted, 150, original), FlowPath::Stack(0), "void");
    assert_eq!(decided(accepted, 151, flow.translated), FlowPath::Offloaded);
    assert_eq!(
        decided(Offloaded::UNREPLIED, 151, original),
        FlowPath::Offloaded
    );
    assert_eq!(
        decided(Offloaded::BEHIND_NAT, 151, original),
        FlowPath::Stack(0)
    );
    assert_eq!(decided(3, 151, original), FlowPath::Stack(3));
    let mut table = table([outward()]);
    table.bypasses = true;
    assert_eq!(table.flows().next().unwrap().path, FlowPath::Bypass);
}
