//! Tests of the clock hand, of flow quotas and of eviction, on the simulated node.

use abi::{Direction, DropReason, FlowFlags, Timeouts};
use proptest::prelude::*;

use crate::flow::LONG_IDLE;
use crate::outcome::Verdict;
use crate::simulator::example::{self, INTERFACE, OTHER_POD, POD, node, remote, world};
use crate::simulator::frame::{Body, Frame, flag};
use crate::simulator::{Place, Simulator};

fn small(entries: usize) -> Simulator {
    let mut world = world();
    world.flow_capacity = entries;
    Simulator::new(world)
}

/// Returns a node with this flow quota for every pod.
fn with_quota(flows: u32) -> Simulator {
    let mut simulator = Simulator::new(world());
    simulator.world.settings.flow_quota = flows;
    simulator
}

fn send(simulator: &mut Simulator, pod: u32, port: u16) -> Verdict {
    let source = match pod {
        POD => example::pod()[0],
        _ => example::other_pod()[0],
    };
    let frame = Frame::new(source, remote()[0], Body::Udp(port, 53, vec![]));
    simulator.run(Place::UplinkOut, INTERFACE, &frame.bytes()).0
}

fn answer(simulator: &mut Simulator, port: u16) {
    let frame = Frame::new(remote()[0], node()[0], Body::Udp(53, port, vec![]));
    simulator.run(Place::UplinkIn, INTERFACE, &frame.bytes());
}

fn flows_of(simulator: &Simulator, pod: u32) -> i64 {
    let own = simulator
        .world
        .flows
        .values()
        .filter(|flow| flow.pod == pod && flow.flags & FlowFlags::ORIGINAL != 0);
    i64::try_from(own.count()).unwrap()
}

#[test]
fn the_flow_quota_limits_one_pod_and_not_the_other() {
    let mut simulator = with_quota(3);
    for port in 1..=3 {
        assert_eq!(connect(&mut simulator, port), Verdict::Pass);
    }
    let refused = Verdict::Drop(DropReason::FlowQuota);
    assert_eq!(send(&mut simulator, POD, 4), refused);
    let known = tcp(&mut simulator, 3, flag::ACK, false);
    assert_eq!(known, Verdict::Pass, "a flow it has");
    assert_eq!(send(&mut simulator, OTHER_POD, 4), Verdict::Pass);
    simulator.world.pods[POD as usize].flow_quota = 4;
    assert_eq!(connect(&mut simulator, 4), Verdict::Pass, "its own quota");
    assert_eq!(send(&mut simulator, POD, 5), refused);
}

#[test]
fn the_clock_hand_removes_dead_flows_without_a_sweep() {
    let mut simulator = small(200);
    for round in 0..20_u16 {
        for port in 0..50 {
            let verdict = send(&mut simulator, POD, 1_000 + round * 50 + port);
            assert_eq!(verdict, Verdict::Pass);
        }
        simulator.world.now += Timeouts::default().udp_single;
    }
    let waiting = simulator.world.turns.len();
    assert!(waiting <= 100, "{waiting} wait for their turn");
}

#[test]
fn the_clock_hand_rests_until_the_oldest_clock_entry_is_due() {
    let mut simulator = Simulator::new(world());
    let waiting = |simulator: &Simulator| {
        simulator
            .world
            .turns
            .iter()
            .map(|turn| turn.key.source_port.number())
            .collect::<Vec<_>>()
    };
    for port in 1_000..1_020 {
        send(&mut simulator, POD, port);
    }
    let in_order: Vec<u16> = (1_000..1_020).collect();
    assert_eq!(waiting(&simulator), in_order, "no clock entry was checked");
    simulator.world.now += Timeouts::default().udp_single;
    send(&mut simulator, POD, 1_020);
    assert_eq!(waiting(&simulator), (1_002..=1_020).collect::<Vec<_>>());
}

/// Otherwise a new flow of the pod could be refused although some of its flows are dead.
#[test]
fn the_clock_hand_does_not_rest_for_a_pod_at_half_its_flow_quota() {
    let mut simulator = with_quota(20);
    for port in 1_000..1_010 {
        send(&mut simulator, POD, port);
    }
    simulator.world.settings.timeouts.udp_single = 1;
    simulator.world.now += 1;
    send(&mut simulator, OTHER_POD, 5_000);
    assert_eq!(flows_of(&simulator, POD), 10);
    for port in 1_010..1_100 {
        assert_eq!(send(&mut simulator, POD, port), Verdict::Pass);
        simulator.world.now += 1;
    }
}

/// Sends a TCP packet of a pod's connection to the world, with these flags; with `back`, in the
/// reply direction.
fn tcp(simulator: &mut Simulator, port: u16, flags: u8, back: bool) -> Verdict {
    let (place, frame) = if back {
        let body = Body::Tcp(443, port, flags, vec![]);
        (Place::UplinkIn, Frame::new(remote()[0], node()[0], body))
    } else {
        let body = Body::Tcp(port, 443, flags, vec![]);
        let pod = example::pod()[0];
        (Place::UplinkOut, Frame::new(pod, remote()[0], body))
    };
    simulator.run(place, INTERFACE, &frame.bytes()).0
}

/// Opens a connection with SYN and SYN-ACK, and without the pod's ACK.
fn half_open(simulator: &mut Simulator, port: u16) -> Verdict {
    let verdict = tcp(simulator, port, flag::SYN, false);
    tcp(simulator, port, flag::SYN | flag::ACK, true);
    verdict
}

fn connect(simulator: &mut Simulator, port: u16) -> Verdict {
    let verdict = half_open(simulator, port);
    tcp(simulator, port, flag::ACK, false);
    verdict
}

fn close(simulator: &mut Simulator, port: u16) {
    for back in [false, true] {
        tcp(simulator, port, flag::FIN | flag::ACK, back);
        tcp(simulator, port, flag::ACK, !back);
    }
}

#[test]
fn closed_connections_are_evicted_for_new_ones_of_a_pod_at_its_quota() {
    let mut simulator = with_quota(20);
    for port in 1_000..1_015 {
        assert_eq!(connect(&mut simulator, port), Verdict::Pass);
    }
    for port in 2_000..2_200 {
        assert_eq!(connect(&mut simulator, port), Verdict::Pass, "{port}");
        close(&mut simulator, port);
    }
    for port in 1_000..1_015 {
        simulator.world.now += 1;
        let known = simulator.world.flows.len();
        assert_eq!(tcp(&mut simulator, port, flag::ACK, false), Verdict::Pass);
        assert_eq!(simulator.world.flows.len(), known, "the flow was kept");
    }
}

#[test]
fn an_open_connection_is_not_evicted_for_new_ones() {
    let mut simulator = with_quota(20);
    for port in 1_000..1_020 {
        assert_eq!(connect(&mut simulator, port), Verdict::Pass);
    }
    let refused = Verdict::Drop(DropReason::FlowQuota);
    for port in 2_000..2_050 {
        simulator.world.now += 60;
        assert_eq!(tcp(&mut simulator, port, flag::SYN, false), refused);
    }
    assert_eq!(flows_of(&simulator, POD), 20);
    close(&mut simulator, 1_010);
    let mut tries = 0..4;
    assert!(
        tries.any(|_| connect(&mut simulator, 3_000) == Verdict::Pass),
        "every refused attempt advances the clock hand"
    );
}

/// Other pods' idle connections stay: there is room for the new flow but for its pod's quota.
#[test]
fn idle_connections_give_way_to_new_flows_of_their_pod_at_its_quota() {
    let mut simulator = with_quota(20);
    for port in 1_000..1_020 {
        assert_eq!(connect(&mut simulator, port), Verdict::Pass);
    }
    assert_eq!(send(&mut simulator, OTHER_POD, 9_000), Verdict::Pass);
    let refused = Verdict::Drop(DropReason::FlowQuota);
    simulator.world.now += LONG_IDLE - 1;
    assert_eq!(tcp(&mut simulator, 2_000, flag::SYN, false), refused);
    simulator.world.now += 1;
    for port in 1_000..1_010 {
        tcp(&mut simulator, port, flag::ACK, false);
    }
    for port in 2_000..2_010 {
        let mut tries = 0..4;
        assert!(tries.any(|_| connect(&mut simulator, port) == Verdict::Pass));
    }
    let flows = simulator.world.flows.values();
    let active = flows.filter(|flow| flow.last_seen == simulator.world.now);
    assert!(active.count() >= 20, "active connections were evicted");
}

/// Idle connections give way even to a flow of the pod that has them.
#[test]
fn idle_connections_give_way_in_a_full_table() {
    let mut simulator = small(20);
    for port in 1_000..1_010 {
        assert_eq!(connect(&mut simulator, port), Verdict::Pass);
    }
    let full = Verdict::Drop(DropReason::FlowTableFull);
    simulator.world.now += LONG_IDLE - 1;
    for port in 1_000..1_010 {
        tcp(&mut simulator, port, flag::ACK, true);
        tcp(&mut simulator, port, flag::ACK, false);
    }
    assert_eq!(send(&mut simulator, POD, 2_000), full);
    simulator.world.now += LONG_IDLE;
    assert_eq!(send(&mut simulator, POD, 2_000), Verdict::Pass);
}

#[test]
fn half_open_connections_are_not_kept_for_a_day() {
    let mut simulator = with_quota(20);
    for port in 1_000..1_020 {
        assert_eq!(half_open(&mut simulator, port), Verdict::Pass);
    }
    simulator.world.now += Timeouts::default().tcp_opening;
    simulator.sweep();
    assert_eq!(flows_of(&simulator, POD), 0);
}

/// As netfilter's early drop: the connection may still be completed, but so may the new one.
#[test]
fn unanswered_flows_give_way_at_once_at_the_quota_of_their_pod() {
    let mut simulator = with_quota(20);
    for port in 1_000..1_010 {
        assert_eq!(connect(&mut simulator, port), Verdict::Pass);
        assert_eq!(send(&mut simulator, OTHER_POD, port), Verdict::Pass);
    }
    for port in 2_000..2_500 {
        assert_eq!(half_open(&mut simulator, port), Verdict::Pass, "{port}");
    }
    let flows = |pod| flows_of(&simulator, pod);
    assert_eq!((flows(POD), flows(OTHER_POD)), (20, 10));
    let established = simulator.world.flows.iter().filter(|(key, flow)| {
        flow.flags & FlowFlags::ORIGINAL != 0 && key.source_port.number() < 2_000
    });
    assert_eq!(established.count(), 20, "all connections are kept");
}

/// A flow that is evicted in the order of arrival would never live for longer than the others
/// need to fill the quota.
#[test]
fn unanswered_flows_are_evicted_at_random() {
    let mut simulator = with_quota(64);
    for port in 1_000..1_128 {
        send(&mut simulator, POD, port);
    }
    let is_kept = |simulator: &Simulator, port| {
        let keys = simulator.world.flows.keys();
        keys.filter(|key| key.destination_port.number() == 53)
            .any(|key| key.source_port.number() == port)
    };
    let mut early = (1_000..1_064).filter(|port| is_kept(&simulator, *port));
    assert!(early.next().is_some(), "an early flow is left");
    let mut late = (1_064..1_128).filter(|port| !is_kept(&simulator, *port));
    assert!(late.next().is_some(), "a late flow was evicted");
}

#[test]
fn answered_udp_flows_are_evicted_for_new_ones_of_a_pod_at_its_quota() {
    let mut simulator = with_quota(20);
    for port in 1_000..1_400 {
        assert_eq!(send(&mut simulator, POD, port), Verdict::Pass, "{port}");
        answer(&mut simulator, port);
        simulator.world.now += u32::from(port % 2 == 0);
    }
}

#[test]
fn a_full_flow_table_evicts_unreplied_flows_of_the_largest_pod() {
    let mut simulator = small(40);
    for port in 0..20 {
        assert_eq!(send(&mut simulator, POD, 1_000 + port), Verdict::Pass);
    }
    answer(&mut simulator, 1_018);
    for port in 0..10 {
        assert_eq!(send(&mut simulator, OTHER_POD, 2_000 + port), Verdict::Pass);
    }
    let flows = |simulator: &Simulator| [POD, OTHER_POD].map(|pod| flows_of(simulator, pod));
    assert_eq!(flows(&simulator), [10, 10]);
    for port in 10..20 {
        assert_eq!(send(&mut simulator, OTHER_POD, 2_000 + port), Verdict::Pass);
    }
    assert_eq!(flows(&simulator), [10, 10], "it takes its own places only");
    let counters = simulator.world.counters[&(POD, Direction::Egress)];
    assert_eq!(counters.evicted_flows, 10);
    answer(&mut simulator, 1_018);
    let flows = simulator.world.counted_flows();
    let replied = flows.values().filter(|flow| flow.packets > 1);
    assert_eq!(replied.count(), 1, "the flow with replies stays");
}

#[test]
fn a_flow_whose_address_or_uplink_is_gone_is_forgotten() {
    let mut simulator = Simulator::new(world());
    assert_eq!(send(&mut simulator, POD, 1_000), Verdict::Pass);
    assert_eq!(simulator.sweep().address_gone, 0);
    let mut without_uplink = simulator.clone();
    simulator.world.locals.remove(&node()[0]);
    assert_eq!(simulator.sweep().address_gone, 1);
    without_uplink.world.uplinks.clear();
    assert_eq!(without_uplink.sweep().address_gone, 1);
}

mod shares;

proptest! {
    /// After any sequence of events, the live flow counter of a pod is the number of its flows.
    #[test]
    fn the_live_flow_counter_of_a_pod_is_exact(
        steps in prop::collection::vec((0..8_u8, 0..40_u16), 1..200),
        entries in 4..60_usize,
        quota in 0..20_u32,
    ) {
        let mut simulator = small(entries);
        simulator.world.settings.flow_quota = quota;
        for (what, port) in steps {
            match what {
                0..=2 => { send(&mut simulator, POD, 1_000 + port); }
                3..=4 => { send(&mut simulator, OTHER_POD, 1_000 + port); }
                5 => answer(&mut simulator, 1_000 + port),
                6 => simulator.world.now += u32::from(port),
                _ => {
                    simulator.sweep();
                    if port == 0 {
                        simulator.world.pods[POD as usize].generation += 1;
                    }
                }
            }
            for pod in [POD, OTHER_POD] {
                let live = simulator.world.live.get(&pod).copied().unwrap_or(0);
                prop_assert_eq!(live, flows_of(&simulator, pod));
                prop_assert!(quota == 0 || live <= i64::from(quota));
            }
        }
    }
}
