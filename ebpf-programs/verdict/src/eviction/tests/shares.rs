//! Tests of fair shares of the flow table: between pods, and between a pod and clients outside.

use abi::maps::OUTSIDE_ACCOUNTS;
use abi::{Address, Direction, Mac};

use super::*;
use crate::simulator::example::{Both, HOSTPORT, POD_PORT};

/// First slot of the pods that fill the table.
const GREEDY: u32 = 10;

fn address_of(slot: u32) -> Both {
    let host = u8::try_from(slot).unwrap();
    let v6 = [0xfd, 0, 0, 0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host];
    [Address::v4([10, 88, 0, host]), Address::v6(v6)]
}

/// Returns a node with `pods` more pods, from slot [`GREEDY`] on, and places for `flows` flows.
fn node_with(pods: u32, flows: usize, quota: u32) -> Simulator {
    let mut world = world();
    for slot in GREEDY..GREEDY + pods {
        let mac = Mac::new([2, 0, 0, 0, 1, u8::try_from(slot).unwrap()]);
        example::add_pod(&mut world, slot, &address_of(slot), mac, 100 + slot);
    }
    world.flow_capacity = 2 * flows;
    world.settings.flow_quota = quota;
    Simulator::new(world)
}

fn ask(simulator: &mut Simulator, slot: u32, port: u16) -> Verdict {
    let [from, _] = address_of(slot);
    let frame = Frame::new(from, remote()[0], Body::Udp(port, 53, vec![]));
    simulator.run(Place::UplinkOut, INTERFACE, &frame.bytes()).0
}

/// Opens a flow that lasts for two seconds.
fn keep(simulator: &mut Simulator, slot: u32, port: u16) -> Verdict {
    let verdict = ask(simulator, slot, port);
    simulator.world.now += 2;
    ask(simulator, slot, port);
    answer(simulator, port);
    simulator.world.now -= 2;
    verdict
}

/// Fills the table with lasting flows of `pods` pods in turns.
fn filled(pods: u32, flows: u16) -> Simulator {
    let mut simulator = node_with(pods, flows.into(), 0);
    for flow in 0..flows {
        let slot = GREEDY + u32::from(flow) % pods;
        assert_eq!(keep(&mut simulator, slot, 10_000 + flow), Verdict::Pass);
    }
    simulator.world.now += 10;
    simulator
}

/// A SYN of a client to the first pod's hostport.
fn knock(simulator: &mut Simulator, client: [u8; 4], port: u16) -> Verdict {
    let body = Body::Tcp(port, HOSTPORT, flag::SYN, vec![]);
    let frame = Frame::new(Address::v4(client), node()[0], body);
    simulator.run(Place::UplinkIn, INTERFACE, &frame.bytes()).0
}

/// A connection of a client to the first pod's hostport; returns the verdicts of its packets.
fn dial(simulator: &mut Simulator, client: [u8; 4], port: u16) -> [Verdict; 3] {
    let client_address = Address::v4(client);
    let syn = knock(simulator, client, port);
    let body = Body::Tcp(POD_PORT, port, flag::SYN | flag::ACK, vec![]);
    let frame = Frame::new(example::pod()[0], client_address, body);
    let answer = simulator.run(Place::UplinkOut, INTERFACE, &frame.bytes()).0;
    let body = Body::Tcp(port, HOSTPORT, flag::ACK, vec![]);
    let frame = Frame::new(client_address, node()[0], body);
    let ack = simulator.run(Place::UplinkIn, INTERFACE, &frame.bytes()).0;
    [syn, answer, ack]
}

fn live(simulator: &Simulator, account: u32) -> i64 {
    simulator.world.live.get(&account).copied().unwrap_or(0)
}

#[test]
fn a_table_full_of_lasting_flows_of_some_pods_has_places_for_others() {
    let mut simulator = filled(4, 400);
    for port in 0..50 {
        assert_eq!(connect(&mut simulator, 2_000 + port), Verdict::Pass);
        let dialled = dial(&mut simulator, [198, 51, 100, 9], 3_000 + port);
        assert_eq!(dialled, [Verdict::Pass; 3]);
    }
    assert_eq!(live(&simulator, POD), 50);
    assert_eq!(live(&simulator, OUTSIDE_ACCOUNTS + POD), 50);
    let left: Vec<_> = (GREEDY..GREEDY + 4)
        .map(|slot| live(&simulator, slot))
        .collect();
    assert_eq!(left, [75; 4], "each has given the same number");
}

#[test]
fn the_longest_idle_flow_of_the_greediest_pod_gives_way() {
    let mut simulator = node_with(2, 14, 1_024);
    let [small, large] = [GREEDY, GREEDY + 1];
    for port in 0..4 {
        keep(&mut simulator, small, 10_000 + port);
    }
    for port in 0..10 {
        keep(&mut simulator, large, 11_000 + port);
    }
    simulator.world.now += 5;
    for port in (0..10).filter(|port| *port != 6) {
        ask(&mut simulator, large, 11_000 + port);
    }
    assert_eq!(send(&mut simulator, POD, 9_000), Verdict::Pass);
    let keys = simulator.world.flows.keys();
    let mut ports = keys.map(|key| key.source_port.number());
    assert!(ports.all(|port| port != 11_006), "another flow was evicted");
    assert_eq!((live(&simulator, small), live(&simulator, large)), (4, 9));
}

/// Otherwise two pods would evict each other's connections in turns.
#[test]
fn a_pod_takes_no_lasting_flow_of_a_pod_with_about_as_many() {
    let mut simulator = node_with(1, 41, 1_024);
    for port in 0..21 {
        keep(&mut simulator, GREEDY, 10_000 + port);
    }
    for port in 0..20 {
        assert_eq!(connect(&mut simulator, 2_000 + port), Verdict::Pass);
    }
    let full = Verdict::Drop(DropReason::FlowTableFull);
    for port in 0..20 {
        let refused = tcp(&mut simulator, 3_000 + port, flag::SYN, false);
        assert_eq!(refused, full);
    }
    assert_eq!((live(&simulator, GREEDY), live(&simulator, POD)), (21, 20));
}

/// Short exchanges of a pod with few flows stay as long as another pod has many.
#[test]
fn a_pod_with_few_flows_loses_none_to_others_while_one_has_many() {
    let mut simulator = filled(2, 400);
    for port in 0..20 {
        assert_eq!(send(&mut simulator, POD, 2_000 + port), Verdict::Pass);
        answer(&mut simulator, 2_000 + port);
    }
    for port in 0..10 {
        assert_eq!(send(&mut simulator, OTHER_POD, 3_000 + port), Verdict::Pass);
        let dialled = dial(&mut simulator, [198, 51, 100, 9], 4_000 + port);
        assert_eq!(dialled, [Verdict::Pass; 3]);
    }
    assert_eq!(
        (live(&simulator, POD), live(&simulator, OTHER_POD)),
        (20, 10)
    );
}

#[test]
fn flows_from_outside_have_a_budget_of_their_own() {
    let mut simulator = with_quota(20);
    for port in 0..20 {
        assert_eq!(connect(&mut simulator, 1_000 + port), Verdict::Pass);
    }
    for host in 1..=200 {
        let verdict = knock(&mut simulator, [203, 0, 113, host], 5_000);
        assert_eq!(verdict, Verdict::Pass);
    }
    let accounts = [POD, OUTSIDE_ACCOUNTS + POD];
    assert_eq!(accounts.map(|account| live(&simulator, account)), [20, 20]);
    for port in 0..20 {
        close(&mut simulator, 1_000 + port);
    }
    assert_eq!(connect(&mut simulator, 2_000), Verdict::Pass);
}

#[test]
fn connections_to_a_hostport_succeed_beside_forged_ones_at_the_quota() {
    let mut simulator = with_quota(64);
    for round in 0..100_u8 {
        for forged in 1..=25 {
            let verdict = knock(&mut simulator, [203, 0, round, forged], 5_000);
            assert_eq!(verdict, Verdict::Pass);
        }
        // Fewer than the budget, so that all may stay open.
        if round % 2 == 0 {
            let dialled = dial(&mut simulator, [198, 51, 100, 9], 3_000 + u16::from(round));
            assert_eq!(dialled, [Verdict::Pass; 3]);
        }
    }
    assert_eq!(live(&simulator, OUTSIDE_ACCOUNTS + POD), 64);
    let kept = simulator.world.flows.keys();
    let client = Address::v4([198, 51, 100, 9]);
    assert_eq!(kept.filter(|key| key.source == client).count(), 50);
}

/// Clients on the node spend their own quota, not that of the pod that they connect to.
#[test]
fn flows_to_a_hostport_of_another_pod_count_for_the_client() {
    let mut simulator = with_quota(20);
    for port in 5_000..5_100 {
        let body = Body::Udp(port, HOSTPORT, vec![]);
        let mut frame = Frame::new(example::other_pod()[0], node()[0], body);
        frame.ethernet = Some([example::bridge_mac(), example::other_mac()]);
        let bytes = frame.bytes();
        let (verdict, _) = simulator.run(Place::FromPod, example::OTHER_INTERFACE, &bytes);
        assert_eq!(verdict, Verdict::RedirectPeer(INTERFACE));
    }
    assert_eq!(live(&simulator, OTHER_POD), 20);
    let server = [POD, OUTSIDE_ACCOUNTS + POD];
    assert_eq!(server.map(|account| live(&simulator, account)), [0, 0]);
    let counters = simulator.world.counters[&(POD, Direction::Egress)];
    assert_eq!(counters.new_flows, 100);
    let dialled = dial(&mut simulator, [198, 51, 100, 9], 3_000);
    assert_eq!(dialled, [Verdict::Pass; 3]);
    // They end with the client, whose slot another pod may get.
    assert_eq!(simulator.sweep().stale, 0);
    simulator.world.interfaces.remove(&example::OTHER_INTERFACE);
    assert_eq!(simulator.sweep().stale, 20);
    assert_eq!(live(&simulator, OTHER_POD), 0);
}

/// The ports of one address towards one server, all taken by one pod: its flows give way to a pod
/// with few.
#[test]
fn a_pod_that_has_taken_all_ports_leaves_some_to_others() {
    for lasting in [false, true] {
        let mut simulator = node_with(1, 1_000, 0);
        simulator.world.settings.port_low = 50_000;
        simulator.world.settings.port_high = 50_111;
        for port in 50_000..=50_111 {
            if lasting {
                keep(&mut simulator, GREEDY, port);
            } else {
                ask(&mut simulator, GREEDY, port);
            }
        }
        let no_port = Verdict::Drop(DropReason::NoPort);
        if lasting {
            assert_eq!(send(&mut simulator, POD, 50_005), no_port, "all are in use");
            simulator.world.now += 10;
        }
        for port in 50_000..50_010 {
            assert_eq!(send(&mut simulator, POD, port), Verdict::Pass);
        }
        assert_eq!((live(&simulator, GREEDY), live(&simulator, POD)), (102, 10));
    }
}

/// Without an entry in the clock, a flow could not be evicted.
#[test]
fn flows_enter_a_clock_that_is_full_of_removed_ones() {
    let mut simulator = small(40);
    for round in 0..40 {
        for port in 0..10 {
            let port = 1_000 + 10 * round + port;
            assert_eq!(send(&mut simulator, POD, port), Verdict::Pass);
        }
        // The sweep leaves the clock's entries.
        simulator.world.settings.timeouts.udp_single = 0;
        simulator.sweep();
        simulator.world.settings.timeouts = Timeouts::default();
    }
    for port in 9_000..9_020 {
        assert_eq!(send(&mut simulator, POD, port), Verdict::Pass);
    }
    let clock = simulator.world.turns.iter();
    let in_clock = clock.filter(|turn| simulator.world.flows.contains_key(&turn.key));
    assert_eq!(in_clock.count(), 20);
}

proptest! {
    /// A full table evicts flows of an account for itself, or for one with fewer flows. A pod with
    /// far fewer flows than another always finds a place.
    #[test]
    fn a_newcomer_takes_places_from_richer_accounts_only(
        steps in prop::collection::vec((0..6_u32, 0..4_u8, 0..300_u16), 1..400),
        flows in 8..60_usize,
    ) {
        let mut simulator = node_with(6, flows, 0);
        let pods = || GREEDY..GREEDY + 6;
        for (pod, what, port) in steps {
            let slot = GREEDY + pod;
            let before = simulator.world.live.clone();
            let count = |slot: u32| before.get(&slot).copied().unwrap_or(0);
            let was_full = simulator.world.flows.len() == 2 * flows;
            let port = 10_000 + 500 * u16::try_from(pod).unwrap() + port;
            match what {
                0..=1 => {
                    let verdict = ask(&mut simulator, slot, port);
                    let most = pods().map(count).max().unwrap();
                    // In a larger table, all inspected flows may be those of pods with few.
                    if flows <= 32 && most > count(slot) + count(slot) / 8 {
                        prop_assert_eq!(verdict, Verdict::Pass);
                    }
                }
                2 => { keep(&mut simulator, slot, port); }
                _ => answer(&mut simulator, port),
            }
            for other in pods().filter(|other| was_full && *other != slot) {
                let lost = live(&simulator, other) < count(other);
                prop_assert!(!lost || count(other) > count(slot), "{} of {}", other, slot);
            }
        }
    }
}
