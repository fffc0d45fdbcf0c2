//! Which packets bypass rules of other software, and which connections are reported.

mod foreign_nat;

use abi::{OffloadCandidate, Offloaded, Port, SettingsFlags, Tuple, protocol};

use super::*;
use crate::bypass::tests::{UPLINK, open_node};
use crate::outcome::Verdict;
use crate::simulator::example::{
    FAMILIES, INTERFACE, OTHER_INTERFACE, bridge_mac, friend, mac, other_mac, other_pod, pod,
    remote,
};
use crate::simulator::frame::{Body, Frame, answer_to_uplink, flag};
use crate::simulator::{JIFFY, Place, Simulator};

const RULESETS: u64 = 7;

/// A node beside rules of other software, whose agent offloads connections.
fn beside_rules() -> Simulator {
    let mut world = open_node();
    world.settings.flags &= !SettingsFlags::BYPASS;
    world.settings.flags |= SettingsFlags::OFFLOAD;
    world.memory.events_valid_until = u64::MAX;
    world.memory.rulesets = RULESETS;
    world.memory.cache_threshold = 2;
    Simulator::new(world)
}

fn tcp(flags: u8) -> Body {
    Body::Tcp(40_000, 80, flags, b"payload".to_vec())
}

fn to_world(family: usize, body: Body) -> Vec<u8> {
    let frame = Frame::new(pod()[family], remote()[family], body);
    frame.from_to(mac(), bridge_mac()).bytes()
}

fn to_neighbour(family: usize, body: Body) -> Vec<u8> {
    let frame = Frame::new(pod()[family], other_pod()[family], body);
    frame.from_to(mac(), other_mac()).bytes()
}

fn tuple(family: usize, to: [abi::Address; 2]) -> Tuple {
    Tuple {
        source: pod()[family],
        destination: to[family],
        source_port: Port::new(40_000),
        destination_port: Port::new(80),
        protocol: protocol::TCP,
        reserved: [0; 3],
    }
}

fn accept(node: &mut Simulator, tuple: Tuple) {
    accept_translated(node, tuple, tuple);
}

/// Accepts packets with a tuple that netfilter translates.
fn accept_translated(node: &mut Simulator, tuple: Tuple, translated: Tuple) {
    let accepted = Offloaded {
        rulesets: node.world.memory.rulesets,
        expires: node.world.now + 15,
        decision: Offloaded::ACCEPTED,
        translated,
    };
    node.world.offloaded.insert(tuple, accepted);
}

fn verdict(node: &mut Simulator, packet: &[u8]) -> Verdict {
    node.run(Place::FromPod, INTERFACE, packet).0
}

/// Sends a packet through the stack: through the hook of the pod, and then that of the uplink.
fn leave(node: &mut Simulator, packet: &[u8]) -> Vec<u8> {
    leave_by(node, packet, Verdict::Pass)
}

/// Sends a packet through the hook of the pod, with this verdict, and that of the uplink.
fn leave_by(node: &mut Simulator, packet: &[u8], expected: Verdict) -> Vec<u8> {
    let (verdict, bytes) = node.run(Place::FromPod, INTERFACE, packet);
    assert!(verdict == expected || matches!(verdict, Verdict::Redirect(_)));
    let (verdict, bytes) = node.run_next(Place::UplinkOut, UPLINK, &bytes);
    assert_eq!(verdict, Verdict::Pass);
    bytes
}

#[test]
fn only_packets_of_accepted_connections_bypass_the_stack_beside_rules() {
    for family in FAMILIES {
        for (packet, to, verdict_of_accepted) in [
            (
                to_world(family, tcp(flag::ACK)),
                remote(),
                Verdict::RedirectNeigh(UPLINK),
            ),
            (
                to_neighbour(family, tcp(flag::ACK)),
                other_pod(),
                Verdict::RedirectPeer(OTHER_INTERFACE),
            ),
        ] {
            let mut node = beside_rules();
            assert_eq!(verdict(&mut node, &packet), Verdict::Pass);
            accept(&mut node, tuple(family, to).reverse());
            assert_eq!(
                verdict(&mut node, &packet),
                Verdict::Pass,
                "the other direction"
            );
            accept(&mut node, tuple(family, to));
            assert_eq!(verdict(&mut node, &packet), verdict_of_accepted);
        }
    }
}

#[test]
fn packets_that_open_or_close_an_accepted_connection_take_the_stack() {
    let mut node = beside_rules();
    accept(&mut node, tuple(0, remote()));
    for flags in [
        flag::SYN,
        flag::SYN | flag::ACK,
        flag::FIN | flag::ACK,
        flag::RST,
        0,
    ] {
        assert_eq!(verdict(&mut node, &to_world(0, tcp(flags))), Verdict::Pass);
    }
    let packet = to_world(0, tcp(flag::ACK));
    assert_eq!(verdict(&mut node, &packet), Verdict::RedirectNeigh(UPLINK));
}

#[test]
fn a_decision_is_void_after_a_rule_change_its_time_and_the_agents_end() {
    let changes: [fn(&mut Simulator); 5] = [
        |node| node.world.memory.rulesets += 1,
        |node| {
            node.world.now += 15;
            node.world.clock += 15_000_000_000;
        },
        |node| node.world.memory.events_valid_until = 0,
        |node| node.world.settings.flags &= !SettingsFlags::OFFLOAD,
        |node| {
            for offloaded in node.world.offloaded.values_mut() {
                offloaded.decision = Offloaded::ACCEPTED + 1;
            }
        },
    ];
    let packet = to_world(0, tcp(flag::ACK));
    for change in changes {
        let mut node = beside_rules();
        accept(&mut node, tuple(0, remote()));
        assert_ne!(verdict(&mut node, &packet), Verdict::Pass);
        change(&mut node);
        // Cached verdicts last for a second.
        node.world.clock += 250 * JIFFY;
        assert_eq!(verdict(&mut node, &packet), Verdict::Pass);
    }
}

#[test]
fn a_cached_verdict_of_an_accepted_connection_ends_with_a_rule_change() {
    let packet = to_neighbour(0, tcp(flag::ACK));
    let mut node = beside_rules();
    accept(&mut node, tuple(0, other_pod()));
    for _ in 0..3 {
        assert_ne!(verdict(&mut node, &packet), Verdict::Pass);
    }
    assert_eq!(node.world.memory.hits, 2);
    node.world.memory.rulesets += 1;
    assert_eq!(verdict(&mut node, &packet), Verdict::Pass);
}

#[test]
fn connections_that_leave_through_the_stack_are_reported_until_the_agent_decides() {
    let mut node = beside_rules();
    let packet = to_world(0, tcp(flag::ACK));
    let key = tuple(0, remote());
    for _ in 0..5 {
        leave(&mut node, &packet);
    }
    // The first packets of a flow are not reported, and those that hit the flow cache.
    let candidate = OffloadCandidate {
        tuple: key,
        rulesets: RULESETS,
    };
    assert_eq!(std::mem::take(&mut node.world.candidates), [candidate]);
    let refused = Offloaded {
        rulesets: RULESETS,
        expires: node.world.now + 5,
        decision: 0,
        translated: key,
    };
    node.world.offloaded.insert(key, refused);
    for _ in 0..3 {
        node.world.clock += 200 * JIFFY;
        leave(&mut node, &packet);
    }
    assert_eq!(node.world.candidates, []);
    node.world.memory.rulesets += 1;
    leave(&mut node, &packet);
    assert_eq!(node.world.candidates.len(), 1);
}

#[test]
fn some_packets_that_leave_without_a_flow_are_reported() {
    for family in FAMILIES {
        let mut node = beside_rules();
        node.world.egress_routes.insert(friend()[family], UPLINK);
        let packet = |flags| {
            let frame = Frame::new(pod()[family], friend()[family], tcp(flags));
            frame.from_to(mac(), bridge_mac()).bytes()
        };
        for _ in 0..100 {
            leave(&mut node, &packet(flag::SYN));
        }
        assert_eq!(node.world.candidates, []);
        for _ in 0..100 {
            leave(&mut node, &packet(flag::ACK));
        }
        let reported = std::mem::take(&mut node.world.candidates);
        assert!((1..20).contains(&reported.len()), "{}", reported.len());
        let key = tuple(family, friend());
        assert!(reported.iter().all(|candidate| candidate.tuple == key));
        accept(&mut node, key);
        for _ in 0..100 {
            leave_by(
                &mut node,
                &packet(flag::ACK),
                Verdict::RedirectNeigh(UPLINK),
            );
        }
        assert_eq!(node.world.candidates, []);
    }
}

#[test]
fn packets_that_have_bypassed_netfilter_are_not_reported() {
    let mut node = beside_rules();
    let packet = to_world(0, tcp(flag::ACK));
    let left = leave(&mut node, &packet);
    for _ in 0..3 {
        leave(&mut node, &packet);
        node.run(Place::UplinkIn, UPLINK, &answer_to_uplink(&left));
    }
    accept(&mut node, tuple(0, remote()));
    node.world.candidates.clear();
    for hands_off in [true, false] {
        node.world.memory.preceded = !hands_off;
        for _ in 0..5 {
            node.world.clock += 200 * JIFFY;
            let (verdict, bytes) = node.run(Place::FromPod, INTERFACE, &packet);
            assert!(matches!(
                verdict,
                Verdict::RedirectNeigh(_) | Verdict::Redirect(_)
            ));
            // The agent has forgotten its decision: a report would be evidence for the next.
            let decided = std::mem::take(&mut node.world.offloaded);
            node.run_next(Place::UplinkOut, UPLINK, &bytes);
            node.world.offloaded = decided;
        }
    }
    assert_eq!(node.world.candidates, []);
}

#[test]
fn some_packets_that_a_pod_receives_through_the_stack_are_reported() {
    let mut node = beside_rules();
    let receive = |node: &mut Simulator, body: Body, times: u32| {
        let packet = to_neighbour(0, body);
        for _ in 0..times {
            let (verdict, _) = node.run(Place::ToPod, OTHER_INTERFACE, &packet);
            assert_eq!(verdict, Verdict::Pass);
        }
        std::mem::take(&mut node.world.candidates).len()
    };
    let ack = || tcp(flag::ACK);
    let received = receive(&mut node, ack(), SAMPLED * 8);
    assert!((2..=14).contains(&received), "{received}");
    assert_eq!(receive(&mut node, tcp(flag::SYN), SAMPLED * 8), 0);
    let in_jiffy = received + receive(&mut node, ack(), SAMPLED * 128);
    assert_eq!(in_jiffy, usize::from(REPORTS));
    node.world.clock += JIFFY;
    assert_ne!(receive(&mut node, ack(), SAMPLED * 8), 0);
    accept(&mut node, tuple(0, other_pod()));
    assert_eq!(receive(&mut node, ack(), SAMPLED * 8), 0);
    node.world.settings.flags &= !SettingsFlags::OFFLOAD;
    node.world.offloaded.clear();
    assert_eq!(receive(&mut node, ack(), SAMPLED * 8), 0);
}

#[test]
fn each_of_many_flows_that_send_in_turns_is_sampled() {
    for flows in [16, 1_000, 4_096, 10_000] {
        let mut sampled = vec![false; flows];
        for number in 0..u32::try_from(flows).unwrap() * SAMPLED * 16 {
            sampled[number as usize % flows] |= is_sampled(number);
        }
        assert!(sampled.iter().all(|it| *it), "{flows} flows");
    }
}

#[test]
fn a_source_leaves_reports_to_others() {
    let mut node = beside_rules();
    let mut reported = |source: [u8; 4], times: u32| {
        let sender = abi::Address::v4(source);
        for _ in 0..times {
            let frame = Frame::new(sender, other_pod()[0], tcp(flag::ACK));
            let packet = frame.from_to(bridge_mac(), other_mac()).bytes();
            node.run(Place::ToPod, OTHER_INTERFACE, &packet);
        }
        std::mem::take(&mut node.world.candidates).len()
    };
    assert_eq!(
        reported([10, 244, 0, 2], SAMPLED * 128),
        usize::from(REPORTS)
    );
    assert_eq!(reported([10, 244, 0, 2], SAMPLED * 8), 0);
    let others = (3..11).map(|last| reported([10, 244, 0, last], SAMPLED * 8));
    let with_reports = others.filter(|count| *count > 0).count();
    assert!(with_reports >= 6, "{with_reports}");
}

#[test]
fn a_flow_without_a_reply_bypasses_the_stack_unless_a_rule_needs_new_connections() {
    let packet = to_world(0, tcp(flag::ACK));
    let mut node = beside_rules();
    accept(&mut node, tuple(0, remote()));
    for offloaded in node.world.offloaded.values_mut() {
        offloaded.decision = Offloaded::UNREPLIED;
    }
    assert_eq!(verdict(&mut node, &packet), Verdict::Pass);
    node.world.settings.flags |= SettingsFlags::OFFLOAD_UNREPLIED;
    node.world.clock += 20 * JIFFY;
    assert_eq!(verdict(&mut node, &packet), Verdict::RedirectNeigh(UPLINK));
}
