//! Tests of network policies: which packets pass which hooks.

mod random;

use abi::{
    Address, DropReason, EndpointFlags, PolicyRule, Port, PrefixKey, RuleSets, SettingsFlags,
    UplinkFlags, protocol,
};

use crate::outcome::Verdict;
use crate::simulator::example::{
    self, BRIDGE, FAMILIES, HOSTPORT, INTERFACE, OTHER_INTERFACE, OTHER_POD, POD, POD_PORT,
    bridge_mac, friend, gateway, mac, node, other_mac, other_pod, pod, remote,
};
use crate::simulator::frame::flag::{ACK, SYN};
use crate::simulator::frame::{Body, Frame};
use crate::simulator::{Place, Simulator, World};

const SYN_ACK: u8 = SYN | ACK;
const REFUSED: Verdict = Verdict::Drop(DropReason::NetworkPolicy);
/// A rule set without rules, and others.
const NOTHING: u32 = 900;
const TO_OTHER: u32 = 901;
const FROM_POD: u32 = 902;
/// Identities.
const IDENTITY_OF_POD: u32 = 1;
const IDENTITY_OF_OTHER: u32 = 2;
/// A port of a pod's client.
const CLIENT: u16 = 40_000;

/// How the node carries packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Stack,
    Bypass,
}

const WAYS: [Way; 2] = [Way::Stack, Way::Bypass];

/// Addresses of a service, which netfilter translates.
fn service() -> [Address; 2] {
    let v6: std::net::Ipv6Addr = "fd00:96::10".parse().unwrap();
    [Address::v4([10, 96, 0, 10]), Address::v6(v6.octets())]
}

/// Returns a node with these rule sets of the first and second pod: ingress and egress.
fn node_with(way: Way, sets: [(u32, u32); 2]) -> Simulator {
    let mut world = example::world();
    world.settings.flags |= SettingsFlags::POLICIES;
    world.uplinks.get_mut(&INTERFACE).unwrap().flags |= UplinkFlags::OPEN;
    if way == Way::Bypass {
        world.settings.flags |= SettingsFlags::BYPASS;
        for slot in [POD, OTHER_POD] {
            world.pods[slot as usize].flags |= EndpointFlags::BYPASS;
        }
    }
    for (slot, (ingress, egress)) in [POD, OTHER_POD].into_iter().zip(sets) {
        let sets = RuleSets {
            generation: 40 + slot,
            ingress,
            egress,
        };
        if (ingress, egress) != (0, 0) {
            world.rule_sets.insert(slot, sets);
        }
    }
    for family in FAMILIES {
        for address in [remote(), friend(), service()] {
            world.egress_routes.insert(address[family], INTERFACE);
        }
        for (addresses, identity) in [(pod(), IDENTITY_OF_POD), (other_pod(), IDENTITY_OF_OTHER)] {
            let key = PrefixKey {
                prefix_len: 128,
                address: addresses[family],
            };
            world.identities.insert(key, identity);
        }
    }
    for number in [protocol::TCP, protocol::UDP] {
        allow(&mut world, TO_OTHER, IDENTITY_OF_OTHER, number);
        allow(&mut world, FROM_POD, IDENTITY_OF_POD, number);
    }
    Simulator::new(world)
}

/// Allows [`POD_PORT`] of a protocol.
fn allow(world: &mut World, rules: u32, identity: u32, number: u8) {
    let rule = PolicyRule {
        rules,
        identity,
        protocol: number,
        reserved: 0,
        port: Port::new(POD_PORT),
    };
    world.policy_rules.insert((PolicyRule::BITS, rule));
}

/// Sends a frame from one pod to the other, through bridge or stack if it is not redirected.
fn deliver(simulator: &mut Simulator, frame: &Frame) -> Verdict {
    let is_first = pod().contains(&frame.source);
    let (from, to) = if is_first {
        (INTERFACE, OTHER_INTERFACE)
    } else {
        (OTHER_INTERFACE, INTERFACE)
    };
    let sent = send(simulator, frame);
    if sent == Verdict::Pass {
        receive(simulator, from, to, frame)
    } else {
        sent
    }
}

fn send(simulator: &mut Simulator, frame: &Frame) -> Verdict {
    let is_other = other_pod().contains(&frame.source);
    let from = if is_other { OTHER_INTERFACE } else { INTERFACE };
    simulator.run(Place::FromPod, from, &frame.bytes()).0
}

fn receive(simulator: &mut Simulator, by: u32, at: u32, frame: &Frame) -> Verdict {
    simulator.world.ingress_interface = by;
    simulator.run(Place::ToPod, at, &frame.bytes()).0
}

fn passes(verdict: Verdict) -> bool {
    !matches!(verdict, Verdict::Drop(_))
}

/// Returns a frame of the first pod to an address.
fn of_pod(family: usize, to: Address, body: Body) -> Frame {
    let by = if other_pod().contains(&to) {
        other_mac()
    } else {
        bridge_mac()
    };
    Frame::new(pod()[family], to, body).from_to(mac(), by)
}

/// Returns a frame of the second pod to the first.
fn of_other(family: usize, body: Body) -> Frame {
    Frame::new(other_pod()[family], pod()[family], body).from_to(other_mac(), mac())
}

fn tcp(from: u16, to: u16, flags: u8) -> Body {
    Body::Tcp(from, to, flags, Vec::new())
}

fn udp(from: u16, to: u16) -> Body {
    Body::Udp(from, to, b"data".to_vec())
}

#[test]
fn a_connection_between_pods_needs_a_rule_of_each_that_has_policies() {
    let cases = [
        ([(0, 0), (0, 0)], true),
        ([(0, TO_OTHER), (0, 0)], true),
        ([(0, NOTHING), (0, 0)], false),
        ([(NOTHING, 0), (0, NOTHING)], true),
        ([(0, 0), (FROM_POD, 0)], true),
        ([(0, 0), (NOTHING, 0)], false),
        ([(0, TO_OTHER), (FROM_POD, 0)], true),
        ([(0, TO_OTHER), (NOTHING, 0)], false),
        ([(0, NOTHING), (FROM_POD, 0)], false),
        ([(NOTHING, TO_OTHER), (FROM_POD, NOTHING)], true),
    ];
    for ((sets, is_allowed), way) in cases
        .into_iter()
        .flat_map(|case| WAYS.map(|way| (case, way)))
    {
        for family in FAMILIES {
            for body in [tcp(CLIENT, POD_PORT, SYN), udp(CLIENT, POD_PORT)] {
                let mut simulator = node_with(way, sets);
                let frame = of_pod(family, other_pod()[family], body);
                let verdict = deliver(&mut simulator, &frame);
                assert_eq!(passes(verdict), is_allowed, "{way:?} {sets:?} {verdict:?}");
            }
        }
    }
}

#[test]
fn another_port_or_protocol_is_refused() {
    for way in WAYS {
        for family in FAMILIES {
            let mut simulator = node_with(way, [(0, TO_OTHER), (0, 0)]);
            for body in [
                tcp(CLIENT, POD_PORT + 1, SYN),
                udp(CLIENT, POD_PORT + 1),
                udp(POD_PORT, CLIENT),
                Body::echo_request(&pod()[family], 7),
                Body::Other(47, vec![0; 8]),
            ] {
                let frame = of_pod(family, other_pod()[family], body);
                assert_eq!(deliver(&mut simulator, &frame), REFUSED, "{way:?}");
            }
        }
    }
}

#[test]
fn a_rule_for_all_addresses_and_protocols_allows_everything() {
    for family in FAMILIES {
        let mut simulator = node_with(Way::Stack, [(0, NOTHING), (0, 0)]);
        let all = PolicyRule {
            rules: NOTHING,
            ..PolicyRule::default()
        };
        simulator.world.policy_rules.insert((PolicyRule::ALL, all));
        for body in [udp(1, 2), Body::echo_request(&pod()[family], 7)] {
            let frame = of_pod(family, other_pod()[family], body);
            assert_eq!(deliver(&mut simulator, &frame), Verdict::Pass);
        }
    }
}

#[test]
fn answers_pass_and_nothing_else_in_their_direction() {
    for way in WAYS {
        for family in FAMILIES {
            // Each pod may only do its part of connections from the first to the second.
            let sets = [(NOTHING, TO_OTHER), (FROM_POD, NOTHING)];
            let mut simulator = node_with(way, sets);
            for (opening, answer) in [
                (tcp(CLIENT, POD_PORT, SYN), tcp(POD_PORT, CLIENT, SYN_ACK)),
                (udp(CLIENT, POD_PORT), udp(POD_PORT, CLIENT)),
            ] {
                let answer = of_other(family, answer);
                assert_eq!(deliver(&mut simulator, &answer), REFUSED, "{way:?}");
                let opening = of_pod(family, other_pod()[family], opening);
                assert!(passes(deliver(&mut simulator, &opening)), "{way:?}");
                assert!(passes(deliver(&mut simulator, &answer)), "{way:?}");
            }
            for body in [
                tcp(POD_PORT, CLIENT, SYN),
                tcp(POD_PORT, CLIENT + 1, ACK),
                udp(POD_PORT, CLIENT + 1),
                udp(POD_PORT + 1, CLIENT),
            ] {
                assert_eq!(
                    deliver(&mut simulator, &of_other(family, body)),
                    REFUSED,
                    "{way:?}"
                );
            }
        }
    }
}

#[test]
fn one_record_lets_both_ends_exchange_answers_and_no_other_pod() {
    for way in WAYS {
        for family in FAMILIES {
            let sets = [(NOTHING, TO_OTHER), (FROM_POD, NOTHING)];
            let mut simulator = node_with(way, sets);
            let opening = of_pod(family, other_pod()[family], udp(CLIENT, POD_PORT));
            assert!(passes(deliver(&mut simulator, &opening)), "{way:?}");
            let records: Vec<_> = simulator.world.policy_flows.values().collect();
            let ends = records.iter().map(|it| (it.opener, it.acceptor));
            assert_eq!(ends.collect::<Vec<_>>(), [(POD, OTHER_POD)], "{way:?}");
            for record in simulator.world.policy_flows.values_mut() {
                (record.opener, record.acceptor) = (record.acceptor, record.opener);
            }
            let answer = of_other(family, udp(POD_PORT, CLIENT));
            assert_eq!(deliver(&mut simulator, &answer), REFUSED, "{way:?}");
        }
    }
}

#[test]
fn echo_replies_are_answers() {
    for family in FAMILIES {
        let mut simulator = node_with(Way::Bypass, [(NOTHING, TO_OTHER), (0, NOTHING)]);
        let rule = PolicyRule {
            rules: TO_OTHER,
            identity: IDENTITY_OF_OTHER,
            ..PolicyRule::default()
        };
        simulator.world.policy_rules.insert((PolicyRule::ALL, rule));
        let address = pod()[family];
        let reply = of_other(family, Body::echo_reply(&address, 7));
        assert_eq!(deliver(&mut simulator, &reply), REFUSED);
        let request = Body::echo_request(&address, 7);
        let request = of_pod(family, other_pod()[family], request);
        assert!(passes(deliver(&mut simulator, &request)));
        assert!(passes(deliver(&mut simulator, &reply)));
    }
}

#[test]
fn a_connection_ends_when_its_rule_goes() {
    for way in WAYS {
        for family in FAMILIES {
            let mut simulator = node_with(way, [(NOTHING, TO_OTHER), (FROM_POD, NOTHING)]);
            let to = other_pod()[family];
            let opening = of_pod(family, to, tcp(CLIENT, POD_PORT, SYN));
            assert!(passes(deliver(&mut simulator, &opening)));
            let data = of_pod(family, to, tcp(CLIENT, POD_PORT, ACK));
            assert!(passes(deliver(&mut simulator, &data)));
            simulator
                .world
                .policy_rules
                .retain(|(_, rule)| rule.rules != FROM_POD);
            assert_eq!(deliver(&mut simulator, &data), REFUSED, "{way:?}");
        }
    }
}

/// What the first pod sends to the service, the second gets; and the answers of the second come
/// from the service.
#[test]
fn connections_through_a_service_are_checked_behind_its_translation() {
    let allowed = [(NOTHING, TO_OTHER), (FROM_POD, NOTHING)];
    let cases = [
        (allowed, true),
        ([(NOTHING, NOTHING), (FROM_POD, NOTHING)], false),
        ([(NOTHING, TO_OTHER), (NOTHING, NOTHING)], false),
    ];
    for (sets, is_allowed) in cases {
        for family in FAMILIES {
            for (opening, answer) in [
                (tcp(CLIENT, POD_PORT, SYN), tcp(POD_PORT, CLIENT, SYN_ACK)),
                (udp(CLIENT, POD_PORT), udp(POD_PORT, CLIENT)),
            ] {
                let mut simulator = node_with(Way::Stack, sets);
                let sent = of_pod(family, service()[family], opening.clone());
                assert_eq!(send(&mut simulator, &sent), Verdict::Pass);
                let delivered = of_pod(family, other_pod()[family], opening);
                let verdict = receive(&mut simulator, BRIDGE, OTHER_INTERFACE, &delivered);
                assert_eq!(passes(verdict), is_allowed, "{sets:?}");
                let sent = of_other(family, answer.clone());
                if is_allowed {
                    assert_eq!(send(&mut simulator, &sent), Verdict::Pass);
                    let from = service()[family];
                    let delivered =
                        Frame::new(from, pod()[family], answer).from_to(bridge_mac(), mac());
                    let verdict = receive(&mut simulator, BRIDGE, INTERFACE, &delivered);
                    assert_eq!(verdict, Verdict::Pass, "{sets:?}");
                } else {
                    assert_eq!(deliver(&mut simulator, &sent), REFUSED, "{sets:?}");
                }
            }
        }
    }
}

#[test]
fn what_leaves_the_node_is_checked_at_the_uplink_or_before_a_redirect() {
    for family in FAMILIES {
        for to in [remote(), friend()] {
            let frame = of_pod(family, to[family], udp(CLIENT, POD_PORT));
            let mut simulator = node_with(Way::Bypass, [(0, NOTHING), (0, 0)]);
            assert_eq!(send(&mut simulator, &frame), REFUSED);
            let mut simulator = node_with(Way::Stack, [(0, NOTHING), (0, 0)]);
            assert_eq!(send(&mut simulator, &frame), Verdict::Pass);
            let leave = |simulator: &mut Simulator| {
                let left = simulator.run(Place::UplinkOut, INTERFACE, &frame.bytes());
                left.0
            };
            assert_eq!(leave(&mut simulator), REFUSED);
            assert!(simulator.world.flows.is_empty(), "no flow is opened");
            let key = PrefixKey {
                prefix_len: 128,
                address: to[family],
            };
            simulator.world.identities.insert(key, IDENTITY_OF_OTHER);
            simulator.world.rule_sets.get_mut(&POD).unwrap().egress = TO_OTHER;
            assert_eq!(leave(&mut simulator), Verdict::Pass);
        }
    }
}

#[test]
fn a_published_port_is_checked_with_the_pods_port_and_the_clients_address() {
    for way in WAYS {
        for family in FAMILIES {
            for (is_allowed, rules) in [(true, FROM_POD), (false, NOTHING)] {
                let mut simulator = node_with(way, [(rules, NOTHING), (0, 0)]);
                let key = PrefixKey {
                    prefix_len: 128,
                    address: remote()[family],
                };
                simulator.world.identities.insert(key, IDENTITY_OF_POD);
                let client = udp(CLIENT, HOSTPORT);
                let frame = Frame::new(remote()[family], node()[family], client);
                let (entered, bytes) = simulator.run(Place::UplinkIn, INTERFACE, &frame.bytes());
                let verdict = if entered == Verdict::Pass {
                    simulator.world.ingress_interface = INTERFACE;
                    simulator.run(Place::ToPod, INTERFACE, &bytes).0
                } else {
                    entered
                };
                assert_eq!(passes(verdict), is_allowed, "{way:?} {verdict:?}");
                let answer = of_pod(family, remote()[family], udp(POD_PORT, CLIENT));
                let sent = send(&mut simulator, &answer);
                let left = if sent == Verdict::Pass {
                    let (left, _) = simulator.run(Place::UplinkOut, INTERFACE, &answer.bytes());
                    left
                } else {
                    sent
                };
                assert_eq!(passes(left), is_allowed, "{way:?} {left:?}");
            }
        }
    }
}

#[test]
fn the_node_reaches_every_pod_and_gets_answers() {
    for family in FAMILIES {
        let mut simulator = node_with(Way::Stack, [(NOTHING, NOTHING), (0, 0)]);
        let opening = Frame::new(gateway()[family], pod()[family], tcp(CLIENT, POD_PORT, SYN));
        let answer = of_pod(family, gateway()[family], tcp(POD_PORT, CLIENT, SYN_ACK));
        assert_eq!(send(&mut simulator, &answer), REFUSED);
        assert_eq!(
            receive(&mut simulator, 0, INTERFACE, &opening),
            Verdict::Pass
        );
        assert_eq!(send(&mut simulator, &answer), Verdict::Pass);
        // What comes from elsewhere with an address of the node is not the node's own.
        assert_eq!(receive(&mut simulator, 99, INTERFACE, &opening), REFUSED);
    }
}

#[test]
fn a_pod_needs_a_rule_to_reach_the_node() {
    for family in FAMILIES {
        for to in [gateway(), node()] {
            let frame = of_pod(family, to[family], udp(CLIENT, POD_PORT));
            let mut simulator = node_with(Way::Stack, [(0, NOTHING), (0, 0)]);
            assert_eq!(send(&mut simulator, &frame), REFUSED);
        }
    }
}

#[test]
fn what_leaves_by_no_uplink_is_checked_at_the_sender() {
    let mut simulator = node_with(Way::Stack, [(0, NOTHING), (0, 0)]);
    let container = Address::v4([172, 17, 0, 2]);
    simulator.world.egress_routes.insert(container, 77);
    let frame = of_pod(0, container, udp(CLIENT, POD_PORT));
    assert_eq!(send(&mut simulator, &frame), REFUSED);
}

#[test]
fn errors_and_neighbour_discovery_pass() {
    for family in FAMILIES {
        let mut simulator = node_with(Way::Stack, [(NOTHING, NOTHING), (NOTHING, NOTHING)]);
        let quoted = Frame::new(other_pod()[family], pod()[family], udp(1, 2)).packet();
        let (kind, code) = if family == 0 { (3, 3) } else { (1, 4) };
        let body = Body::Icmp(kind, code, [0; 4], quoted);
        let error = of_pod(family, other_pod()[family], body);
        assert_eq!(deliver(&mut simulator, &error), Verdict::Pass);
    }
}

#[test]
fn a_pod_reaches_itself() {
    for way in WAYS {
        for family in FAMILIES {
            let mut simulator = node_with(way, [(NOTHING, NOTHING), (0, 0)]);
            let published = of_pod(family, node()[family], udp(CLIENT, HOSTPORT));
            assert!(passes(send(&mut simulator, &published)), "{way:?}");
            let own = pod()[family];
            let hairpin = Frame::new(own, own, udp(CLIENT, POD_PORT));
            let verdict = receive(&mut simulator, BRIDGE, INTERFACE, &hairpin);
            assert_eq!(verdict, Verdict::Pass, "{way:?}");
        }
    }
}

#[test]
fn rule_sets_of_an_earlier_pod_of_the_slot_do_not_apply() {
    let mut simulator = node_with(Way::Stack, [(0, NOTHING), (0, 0)]);
    simulator.world.rule_sets.get_mut(&POD).unwrap().generation -= 1;
    let frame = of_pod(0, other_pod()[0], udp(CLIENT, POD_PORT));
    assert_eq!(deliver(&mut simulator, &frame), Verdict::Pass);
}
