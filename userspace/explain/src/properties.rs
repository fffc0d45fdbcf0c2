//! Explanations decide as the simulator does, which decides as the loaded programs do.

use abi::{Address, EndpointFlags, Port, SettingsFlags, Tuple, UplinkFlags, protocol};
use proptest::prelude::*;
use verdict::Verdict;
use verdict::simulator::example::{
    FAMILIES, HOSTPORT, OTHER_POD, OWN_HOSTPORT, POD, POD_PORT, friend, gateway, no_pod, node,
    other_pod, pod, remote,
};
use verdict::simulator::{Place, Simulator, World};

use crate::frame;
use crate::testing::{FAR_POD, UPLINK, far_pod, interface_of, question, snapshot, world};
use crate::{Node, Outcome, Question, Sender, explain, sender_of};

const PLACES: [Place; 4] = [
    Place::FromPod,
    Place::ToPod,
    Place::UplinkIn,
    Place::UplinkOut,
];

/// Returns a node with properties of these bits.
fn node_of(bits: u16) -> World {
    let mut world = world();
    let has = |bit: u16| bits & (1 << bit) != 0;
    for (bit, flag) in [
        (0, SettingsFlags::BYPASS),
        (1, SettingsFlags::EXIT_CHECK),
        (2, SettingsFlags::DUPLICATES),
    ] {
        world.settings.flags |= if has(bit) { flag } else { 0 };
    }
    let mut flags = if has(0) { EndpointFlags::BYPASS } else { 0 };
    for (bit, flag) in [
        (3, EndpointFlags::SAME_BRIDGE),
        (
            4,
            EndpointFlags::SAME_BRIDGE | EndpointFlags::INGRESS_ISOLATED,
        ),
        (5, EndpointFlags::PUBLISHED_ONLY),
        (6, EndpointFlags::PUBLISHED_ONLY | EndpointFlags::INTERNAL),
        (7, EndpointFlags::ISOLATED),
    ] {
        flags |= if has(bit) { flag } else { 0 };
    }
    for slot in [POD, OTHER_POD, FAR_POD] {
        world.pods[slot as usize].flags |= flags;
    }
    if has(8) {
        world.pods[OTHER_POD as usize].flags &= !EndpointFlags::SPOOF_CHECK;
    }
    if has(9) {
        world.flow_capacity = 4;
    }
    if has(10) {
        world.settings.flow_quota = 1;
    }
    if let Some(uplink) = world.uplinks.get_mut(&UPLINK) {
        uplink.flags = if has(11) { 0 } else { UplinkFlags::OPEN };
        uplink.l2_len = if has(12) { 0 } else { 14 };
    }
    if has(13) {
        world.pods[OTHER_POD as usize].generation += 1;
    }
    if has(14) {
        let limit = abi::Limit::new(8_000, 100, world.pods[POD as usize].generation);
        world.limit(POD, abi::Direction::Egress, limit);
    }
    world
}

fn addresses(family: usize) -> Vec<Address> {
    let mut all: Vec<Address> = [
        pod(),
        pod(),
        other_pod(),
        no_pod(),
        node(),
        gateway(),
        remote(),
        remote(),
        friend(),
    ]
    .map(|both| both[family])
    .into();
    if family == 0 {
        all.push(far_pod());
        all.extend([[127, 0, 0, 1], [224, 0, 0, 1], [255; 4], [0; 4]].map(Address::v4));
    } else {
        let odd = ["::1", "ff02::1", "fe80::2", "::"];
        all.extend(odd.map(|text| {
            let v6: std::net::Ipv6Addr = text.parse().unwrap();
            Address::v6(v6.octets())
        }));
    }
    all
}

prop_compose! {
    fn tuples()(
        family in 0..FAMILIES.len(),
        from: prop::sample::Index,
        to: prop::sample::Index,
        number in prop::sample::select(vec![
            protocol::TCP, protocol::TCP, protocol::UDP, protocol::SCTP, protocol::ICMP, 47,
        ]),
        source_port in prop::sample::select(vec![40_000, 40_001, HOSTPORT, POD_PORT]),
        destination_port in prop::sample::select(vec![
            443, HOSTPORT, HOSTPORT, OWN_HOSTPORT, POD_PORT, 40_000,
        ]),
    ) -> Tuple {
        let all = addresses(family);
        let is_icmp = number == protocol::ICMP;
        let has_ports = !is_icmp && number != 47;
        Tuple {
            source: all[from.index(all.len())],
            destination: all[to.index(all.len())],
            source_port: if has_ports || is_icmp { Port::new(source_port) } else { Port::NONE },
            destination_port: if has_ports { Port::new(destination_port) } else { Port::NONE },
            protocol: if is_icmp && family == 1 { protocol::ICMPV6 } else { number },
            ..Tuple::default()
        }
    }
}

/// Returns the simulator of a snapshot of a node, with the same clock and random numbers.
fn simulator(node: &Node) -> Simulator {
    let mut world = node.world().clone();
    world.memory.disabled = false;
    Simulator::new(world)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// A few packets at random hooks of a random node: each gets the verdict and becomes the packet
    /// that the simulator's hook returns, and a drop is the last decision.
    #[test]
    fn hooks_of_an_explanation_return_what_the_simulator_does(
        bits: u16,
        packets in prop::collection::vec((0..4_usize, tuples(), 0..2_000_usize), 1..4),
    ) {
        let mut node = Node::new(snapshot(&node_of(bits)));
        let mut simulator = simulator(&node);
        for (place, tuple, length) in packets {
            let place = PLACES[place];
            let macs = [node.world().mac, verdict::simulator::example::mac()];
            let has_ethernet = bits & (1 << 12) == 0 || matches!(place, Place::FromPod | Place::ToPod);
            let packet = Question { length, ..question(Sender::World, tuple) };
            let bytes = frame::build(&packet, false, has_ethernet.then_some(macs));
            node.start_packet(false);
            // The simulator has one MAC address for all links.
            simulator.world.mac = node.facts.links[&interface_of(place)].mac;
            let trace = node.run(place, interface_of(place), bytes.clone());
            let (verdict, packet) = simulator.run(place, interface_of(place), &bytes);
            prop_assert_eq!(trace.run.verdict, verdict);
            prop_assert_eq!(trace.frame, packet);
            prop_assert_eq!(&node.world().flows, &simulator.world.counted_flows());
            if let Verdict::Drop(reason) = verdict {
                let last = trace.steps.last().expect("a drop is a decision");
                prop_assert!(last.ends && last.text.contains(reason.name()), "{:?}", last);
            } else {
                prop_assert!(trace.steps.iter().all(|step| !step.ends));
            }
        }
    }

    /// Whole explanations: the outcome is that of the last hook, and the first hook of a pod's
    /// packet returns what the simulator does.
    #[test]
    fn the_outcome_of_an_explanation_is_that_of_its_last_hook(bits: u16, tuple in tuples()) {
        let world = node_of(bits);
        let facts = snapshot(&world);
        let sender = sender_of(&facts.tables, &tuple.source);
        let mut node = Node::new(facts);
        let mut simulator = simulator(&node);
        let explanation = explain(&mut node, &question(sender, tuple));
        for leg in std::iter::once(&explanation.request).chain(&explanation.answer) {
            let dropped = leg.hooks.iter().find_map(|run| match run.verdict {
                Verdict::Drop(reason) => Some((run.place, reason)),
                Verdict::Pass
                | Verdict::RedirectPeer(_)
                | Verdict::RedirectNeigh(_)
                | Verdict::Redirect(_)
                | Verdict::Consume => None,
            });
            let outcome = if let Outcome::Dropped { place, reason } = leg.outcome {
                Some((place, reason))
            } else {
                None
            };
            prop_assert_eq!(dropped, outcome);
            prop_assert!(leg.steps.last().is_some_and(|step| step.ends));
            let ends = leg.steps.iter().filter(|step| step.ends).count();
            prop_assert_eq!(ends, 1, "{:#?}", leg.steps);
        }
        if let (Sender::Pod(slot), Some(first)) = (sender, explanation.request.hooks.first()) {
            prop_assert_eq!(first.place, Place::FromPod);
            let pod = world.pods[slot as usize];
            simulator.world.mac = node.facts.links[&pod.interface].mac;
            for to in [world.networks[&pod.network].mac, pod.mac, verdict::simulator::example::mac(),
                verdict::simulator::example::other_mac()] {
                let bytes = frame::build(&question(sender, tuple), false, Some([to, pod.mac]));
                let mut simulator = simulator.clone();
                if simulator.run(Place::FromPod, pod.interface, &bytes).0 == first.verdict {
                    return Ok(());
                }
            }
            let is_group = explanation.request.sent.destination.bytes()[12] >= 224
                || explanation.request.sent.destination.bytes()[0] == 255;
            prop_assert!(is_group, "no frame of the pod gets {:?}", first);
        }
    }
}
