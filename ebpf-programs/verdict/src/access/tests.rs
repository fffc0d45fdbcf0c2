//! Tests of closed networks: two pods in networks of their own, the world, and the node.

use abi::{
    Address, Direction, DropReason, EndpointFlags, Hostport, HostportKey, Mac, Network, Port,
    TrustedLinkKey, Tuple, protocol,
};
use proptest::prelude::*;

use crate::bypass::tests::{UPLINK, open_node};
use crate::node::Socket;
use crate::outcome::Verdict;
use crate::simulator::example::{
    BRIDGE, FAMILIES, HOSTPORT, INTERFACE, OTHER_INTERFACE, OTHER_POD, POD, POD_PORT, bridge_mac,
    friend, gateway, mac, no_pod, node, other_mac, other_pod, pod, remote,
};
use crate::simulator::frame::{Body, Frame, flag};
use crate::simulator::{Place, Simulator};

/// Interface index of the second pod's bridge.
const OTHER_BRIDGE: u32 = 21;
/// Interface index of a bridge of other software.
const FOREIGN: u32 = 22;

const DIRECT: u32 = EndpointFlags::PUBLISHED_ONLY;
const INTERNAL: u32 = EndpointFlags::PUBLISHED_ONLY | EndpointFlags::INTERNAL;

/// Returns a node where the second pod is on a bridge of its own. `flags` are those of the first
/// pod's network, `other` those of the second one's.
fn two_networks(flags: u32, other: u32) -> Simulator {
    let mut world = open_node();
    let [v4, v6] = no_pod();
    let network = Network {
        v4,
        v6,
        mac: Mac::new([2, 0, 0, 0, 0, 9]),
        ..Network::default()
    };
    world.networks.insert(OTHER_BRIDGE, network);
    world.pods[POD as usize].flags |= flags;
    world.pods[OTHER_POD as usize].flags |= other;
    world.pods[OTHER_POD as usize].network = OTHER_BRIDGE;
    Simulator::new(world)
}

/// Returns a node with both pods on one bridge, which has these flags.
fn one_network(flags: u32) -> Simulator {
    let mut world = open_node();
    for slot in [POD, OTHER_POD] {
        world.pods[slot as usize].flags |= flags;
    }
    Simulator::new(world)
}

fn udp(from: u16, to: u16) -> Body {
    Body::Udp(from, to, b"payload".to_vec())
}

fn sent_by_pod(simulator: &mut Simulator, to: Address, body: Body) -> Verdict {
    let from = pod()[usize::from(!to.is_v4())];
    let frame = Frame::new(from, to, body).from_to(mac(), bridge_mac());
    simulator.run(Place::FromPod, INTERFACE, &frame.bytes()).0
}

fn sent_by_other(simulator: &mut Simulator, to: Address, body: Body) -> Verdict {
    let from = other_pod()[usize::from(!to.is_v4())];
    let frame = Frame::new(from, to, body).from_to(other_mac(), bridge_mac());
    let (verdict, _) = simulator.run(Place::FromPod, OTHER_INTERFACE, &frame.bytes());
    verdict
}

fn from_world(simulator: &mut Simulator, to: Address, body: Body) -> Verdict {
    let from = remote()[usize::from(!to.is_v4())];
    let bytes = Frame::new(from, to, body).bytes();
    simulator.run(Place::UplinkIn, UPLINK, &bytes).0
}

/// Returns why a packet was dropped; `None` where it was not.
fn reason_of(verdict: Verdict) -> Option<DropReason> {
    match verdict {
        Verdict::Drop(reason) => Some(reason),
        Verdict::Pass
        | Verdict::RedirectPeer(_)
        | Verdict::RedirectNeigh(_)
        | Verdict::Redirect(_)
        | Verdict::Consume => None,
    }
}

fn dropped(reason: DropReason) -> Verdict {
    Verdict::Drop(reason)
}

/// Else a host outside could raise the drops of any pod, and hide those of another one.
#[test]
fn a_dropped_error_is_not_counted_for_the_pod_whose_flow_it_quotes() {
    for family in FAMILIES {
        let mut simulator = two_networks(0, DIRECT);
        let [own, other, node, remote] =
            [pod(), other_pod(), node(), remote()].map(|both| both[family]);
        let sent = Frame::new(own, remote, udp(5_000, 53)).bytes();
        let (_, masqueraded) = simulator.run(Place::UplinkOut, UPLINK, &sent);
        assert_ne!(masqueraded, sent);
        let quote = Frame::new(node, remote, udp(5_000, 53)).packet();
        let kind = [(3, 1), (1, 0)][family];
        let body = Body::Icmp(kind.0, kind.1, [0; 4], quote);
        let verdict = from_world(&mut simulator, other, body);
        assert_eq!(verdict, dropped(DropReason::DirectAccess));
        let counters = &simulator.world.counters;
        let dropped = |pod| {
            let of = counters.get(&(pod, Direction::Ingress));
            of.map_or(0, |counted| counted.dropped_packets)
        };
        assert_eq!((dropped(POD), dropped(OTHER_POD)), (0, 1));
    }
}

#[test]
fn without_direct_access_the_world_reaches_published_ports_only() {
    for family in FAMILIES {
        let to = pod()[family];
        let bodies = [
            Body::Tcp(5_000, POD_PORT, flag::SYN, Vec::new()),
            Body::Tcp(5_000, POD_PORT, flag::ACK, Vec::new()),
            udp(5_000, POD_PORT),
            Body::echo_request(&to, 7),
            Body::echo_reply(&to, 7),
            Body::Other(47, vec![0; 16]),
        ];
        for body in bodies {
            for (flags, reason) in [
                (0, None),
                (DIRECT, Some(DropReason::DirectAccess)),
                (INTERNAL, Some(DropReason::InternalNetwork)),
            ] {
                let mut simulator = two_networks(flags, 0);
                let verdict = from_world(&mut simulator, to, body.clone());
                assert_eq!(reason_of(verdict), reason, "{body:?}");
            }
        }
        for flags in [DIRECT, INTERNAL] {
            let mut simulator = two_networks(flags, 0);
            let body = udp(5_000, HOSTPORT);
            let verdict = from_world(&mut simulator, node()[family], body);
            assert_eq!(reason_of(verdict), None);
            let reply = udp(POD_PORT, 5_000);
            let verdict = sent_by_pod(&mut simulator, remote()[family], reply);
            assert_eq!(verdict, Verdict::RedirectNeigh(UPLINK));
        }
    }
}

/// Publishes a port of a pod's own addresses, for UDP.
fn publish_at_own_address(simulator: &mut Simulator, port: u16) {
    let generation = simulator.world.pods[POD as usize].generation;
    for address in pod() {
        let key = HostportKey::new(address, Port::new(port), protocol::UDP);
        let own = Hostport {
            address,
            port: Port::new(port),
            pod: POD,
            generation,
            ..Hostport::default()
        };
        simulator.world.hostports.insert(key, own);
    }
}

#[test]
fn a_routed_address_is_reached_by_its_published_ports_and_by_echo_requests() {
    let routed = [EndpointFlags::ROUTED_V4, EndpointFlags::ROUTED_V6];
    for family in FAMILIES {
        let one = pod()[family];
        let world = |flags| {
            let mut simulator = two_networks(flags, 0);
            publish_at_own_address(&mut simulator, 53);
            // Routed addresses are not masqueraded.
            let masqueraded = EndpointFlags::MASQUERADE_V4 | EndpointFlags::MASQUERADE_V6;
            simulator.world.pods[POD as usize].flags &= !masqueraded;
            for endpoint in simulator.world.endpoints.values_mut() {
                endpoint.flags &= !masqueraded;
            }
            simulator
        };
        let published = udp(5_000, 53);
        let closed = [
            udp(5_000, 54),
            Body::Tcp(5_000, 53, flag::SYN, Vec::new()),
            Body::echo_reply(&one, 7),
            Body::Other(47, vec![0; 16]),
        ];
        let simulator = &mut world(DIRECT | routed[family]);
        for body in [published.clone(), Body::echo_request(&one, 7)] {
            assert_eq!(reason_of(from_world(simulator, one, body.clone())), None);
            assert_eq!(reason_of(sent_by_other(simulator, one, body)), None);
        }
        for body in closed {
            let simulator = &mut world(DIRECT | routed[family]);
            for verdict in [
                from_world(simulator, one, body.clone()),
                sent_by_other(simulator, one, body),
            ] {
                assert_eq!(verdict, dropped(DropReason::DirectAccess));
            }
        }
        // The reply leaves with the address of the pod.
        let (from, to) = (pod()[family], remote()[family]);
        let reply = Frame::new(from, to, udp(53, 5_000)).bytes();
        let (verdict, after) = simulator.run(Place::UplinkOut, UPLINK, &reply);
        assert_eq!((verdict, after), (Verdict::Pass, reply));
        // The flag is that of the family, the row that of a pod that is still there.
        let other_family = DIRECT | routed[1 - family];
        for (flags, generation) in [(other_family, 0), (DIRECT, 0), (DIRECT | routed[family], 1)] {
            let mut simulator = world(flags);
            for own in simulator.world.hostports.values_mut() {
                own.generation += generation;
            }
            let verdict = from_world(&mut simulator, one, published.clone());
            assert_eq!(verdict, dropped(DropReason::DirectAccess));
        }
    }
}

#[test]
fn every_port_is_reached_by_a_link_that_the_network_trusts() {
    for family in FAMILIES {
        let to = pod()[family];
        for (network, interface, reason) in [
            (BRIDGE, UPLINK, None),
            (OTHER_BRIDGE, UPLINK, Some(DropReason::DirectAccess)),
            (BRIDGE, UPLINK + 1, Some(DropReason::DirectAccess)),
        ] {
            let mut simulator = two_networks(DIRECT, 0);
            let key = TrustedLinkKey { network, interface };
            simulator.world.trusted_links.insert(key, 1);
            for body in [udp(5_000, POD_PORT), Body::echo_request(&to, 7)] {
                let verdict = from_world(&mut simulator, to, body);
                assert_eq!(reason_of(verdict), reason);
            }
        }
    }
}

/// The address is one to which the pod is not masqueraded, so nothing but the closed network needs
/// a flow.
#[test]
fn replies_from_outside_enter_a_network_without_direct_access_by_the_flow_of_the_request() {
    for family in FAMILIES {
        let (us, them) = (pod()[family], friend()[family]);
        let reply = Frame::new(them, us, udp(53, 5_000)).bytes();
        let mut simulator = two_networks(DIRECT, 0);
        let early = simulator.run(Place::UplinkIn, UPLINK, &reply).0;
        assert_eq!(early, dropped(DropReason::DirectAccess));
        let request = Frame::new(us, them, udp(5_000, 53)).bytes();
        for _ in 0..2 {
            let (verdict, after) = simulator.run(Place::UplinkOut, UPLINK, &request);
            assert_eq!((verdict, after), (Verdict::Pass, request.clone()));
            let verdict = simulator.run(Place::UplinkIn, UPLINK, &reply).0;
            assert_eq!(reason_of(verdict), None);
        }
        let other = Frame::new(them, us, udp(54, 5_000)).bytes();
        let late = simulator.run(Place::UplinkIn, UPLINK, &other).0;
        assert_eq!(late, dropped(DropReason::DirectAccess));
        simulator = two_networks(0, 0);
        simulator.run(Place::UplinkOut, UPLINK, &request);
        assert!(
            simulator.world.flows.is_empty(),
            "an open network needs no flow"
        );
    }
}

#[test]
fn pods_of_other_networks_reach_published_ports_of_a_closed_network_only() {
    for family in FAMILIES {
        let (one, other) = (pod()[family], other_pod()[family]);
        for (flags, reason) in [
            (DIRECT, DropReason::DirectAccess),
            (INTERNAL, DropReason::InternalNetwork),
        ] {
            let mut simulator = two_networks(flags, 0);
            for body in [udp(5_000, POD_PORT), Body::echo_request(&one, 7)] {
                let verdict = sent_by_other(&mut simulator, one, body);
                assert_eq!(verdict, dropped(reason));
            }
            let verdict = sent_by_other(&mut simulator, node()[family], udp(5_000, HOSTPORT));
            assert_eq!(verdict, Verdict::RedirectPeer(INTERFACE));
            // A pod of an internal network has no route to the client, and sees its gateway.
            let seen = if flags == INTERNAL {
                gateway()[family]
            } else {
                other
            };
            let verdict = sent_by_pod(&mut simulator, seen, udp(POD_PORT, 5_000));
            assert_eq!(verdict, Verdict::RedirectPeer(OTHER_INTERFACE));
        }
    }
}

#[test]
fn a_pod_without_direct_access_gets_replies_from_other_networks_to_its_own_requests() {
    for family in FAMILIES {
        let (one, other) = (pod()[family], other_pod()[family]);
        let mut simulator = two_networks(DIRECT, 0);
        let pairs = [
            (udp(5_000, 53), udp(53, 5_000)),
            (Body::echo_request(&one, 7), Body::echo_reply(&one, 7)),
        ];
        for (request, reply) in pairs {
            let early = sent_by_other(&mut simulator, one, reply.clone());
            assert_eq!(early, dropped(DropReason::DirectAccess));
            let verdict = sent_by_pod(&mut simulator, other, request);
            assert_eq!(verdict, Verdict::Pass);
            let verdict = sent_by_other(&mut simulator, one, reply);
            assert_eq!(verdict, Verdict::Pass);
        }
        let verdict = sent_by_other(&mut simulator, one, udp(53, 5_001));
        assert_eq!(verdict, dropped(DropReason::DirectAccess));
    }
}

#[test]
fn pods_of_one_closed_network_reach_each_other() {
    for family in FAMILIES {
        for flags in [DIRECT, INTERNAL] {
            let mut simulator = one_network(flags);
            let to = other_pod()[family];
            let frame = Frame::new(pod()[family], to, udp(5_000, 53)).from_to(mac(), other_mac());
            let (verdict, _) = simulator.run(Place::FromPod, INTERFACE, &frame.bytes());
            assert_eq!(verdict, Verdict::RedirectPeer(OTHER_INTERFACE));
            let verdict = sent_by_pod(&mut simulator, to, udp(5_000, 54));
            assert_eq!(verdict, Verdict::Pass, "through the gateway");
        }
    }
}

#[test]
fn packets_of_an_internal_network_reach_its_gateway_and_no_other_place() {
    let metadata = Address::v4([169, 254, 169, 254]);
    for family in FAMILIES {
        let mut simulator = two_networks(INTERNAL, 0);
        let gateway = gateway()[family];
        assert_eq!(
            sent_by_pod(&mut simulator, gateway, udp(1, 53)),
            Verdict::Pass
        );
        let mut elsewhere = vec![remote()[family], friend()[family], other_pod()[family]];
        elsewhere.extend([node()[family]]);
        elsewhere.extend([metadata].into_iter().filter(|_| family == 0));
        for to in elsewhere {
            for body in [
                udp(1, 53),
                Body::echo_request(&to, 7),
                Body::Other(47, vec![0; 16]),
            ] {
                let verdict = sent_by_pod(&mut simulator, to, body);
                assert_eq!(verdict, dropped(DropReason::InternalNetwork), "{to:?}");
            }
        }
        // The bridge hands frames to the host's end of the veth to the node as well.
        let to = remote()[family];
        let own = Mac::new([2, 0, 0, 0, 0, 0x77]);
        simulator.world.mac = own;
        let frame = Frame::new(pod()[family], to, udp(1, 53)).from_to(mac(), own);
        let (verdict, _) = simulator.run(Place::FromPod, INTERFACE, &frame.bytes());
        assert_eq!(verdict, dropped(DropReason::InternalNetwork));
        // A neighbour on the bridge that is no pod of ours.
        let neighbour = Mac::new([2, 0, 0, 0, 0, 0x78]);
        let frame = Frame::new(pod()[family], to, udp(1, 53)).from_to(mac(), neighbour);
        let (verdict, _) = simulator.run(Place::FromPod, INTERFACE, &frame.bytes());
        assert_eq!(verdict, Verdict::Pass);
    }
}

#[test]
fn an_internal_pod_reaches_hostports_of_its_own_network_only() {
    for family in FAMILIES {
        // Port 8080 is the first pod's, and the second pod is internal.
        let to = node()[family];
        let mut simulator = two_networks(0, INTERNAL);
        let verdict = sent_by_other(&mut simulator, to, udp(5_000, HOSTPORT));
        assert_eq!(verdict, dropped(DropReason::InternalNetwork));
        let mut simulator = one_network(INTERNAL);
        let verdict = sent_by_other(&mut simulator, to, udp(5_000, HOSTPORT));
        assert_eq!(verdict, Verdict::RedirectPeer(INTERFACE));
    }
}

#[test]
fn a_connection_that_the_node_opens_by_another_address_is_answered() {
    for family in FAMILIES {
        let (from, to) = (pod()[family], node()[family]);
        let mut simulator = two_networks(INTERNAL, 0);
        let reply = Body::Tcp(80, 5_000, flag::ACK, Vec::new());
        let verdict = sent_by_pod(&mut simulator, to, reply.clone());
        assert_eq!(verdict, dropped(DropReason::InternalNetwork));
        let tuple = Tuple {
            source: from,
            destination: to,
            source_port: Port::new(80),
            destination_port: Port::new(5_000),
            protocol: protocol::TCP,
            ..Tuple::default()
        };
        simulator.world.sockets.insert(tuple, Socket::Connected);
        assert_eq!(sent_by_pod(&mut simulator, to, reply), Verdict::Pass);
    }
}

#[test]
fn an_uplink_lets_no_packet_of_an_internal_pod_out_without_a_flow() {
    for family in FAMILIES {
        for to in [remote()[family], friend()[family]] {
            let frame = Frame::new(pod()[family], to, udp(1, 53)).bytes();
            let mut simulator = two_networks(INTERNAL, 0);
            let (verdict, _) = simulator.run(Place::UplinkOut, UPLINK, &frame);
            assert_eq!(verdict, dropped(DropReason::InternalNetwork));
        }
    }
}

#[test]
fn the_stack_delivers_to_an_internal_pod_from_its_bridge_the_node_and_published_ports_only() {
    for family in FAMILIES {
        let to = pod()[family];
        let routed = |from| {
            let body = udp(5_000, POD_PORT);
            Frame::new(from, to, body)
                .from_to(bridge_mac(), mac())
                .bytes()
        };
        let received = |simulator: &mut Simulator, by, bytes: &[u8]| {
            simulator.world.ingress_interface = by;
            simulator.run(Place::ToPod, INTERFACE, bytes).0
        };
        let from = remote()[family];
        for flags in [0, DIRECT, INTERNAL] {
            let mut simulator = two_networks(flags, 0);
            for by in [FOREIGN, UPLINK, OTHER_INTERFACE, OTHER_BRIDGE] {
                let expected = if flags == INTERNAL {
                    dropped(DropReason::InternalNetwork)
                } else {
                    Verdict::Pass
                };
                assert_eq!(received(&mut simulator, by, &routed(from)), expected);
            }
            for by in [0, BRIDGE] {
                assert_eq!(received(&mut simulator, by, &routed(from)), Verdict::Pass);
            }
            let bridged = Frame::new(from, to, udp(5_000, 80)).from_to(other_mac(), mac());
            let verdict = received(&mut simulator, FOREIGN, &bridged.bytes());
            assert_eq!(verdict, Verdict::Pass);
            from_world(&mut simulator, node()[family], udp(5_000, HOSTPORT));
            let verdict = received(&mut simulator, UPLINK, &routed(from));
            assert_eq!(verdict, Verdict::Pass);
        }
    }
}

fn body() -> impl Strategy<Value = Body> {
    let port = || prop_oneof![Just(POD_PORT), Just(HOSTPORT), any::<u16>()];
    prop_oneof![
        (port(), port(), any::<u8>()).prop_map(|(a, b, flags)| Body::Tcp(a, b, flags, vec![1; 9])),
        (port(), port()).prop_map(|(a, b)| udp(a, b)),
        (port(), port()).prop_map(|(a, b)| Body::Sctp(a, b, vec![0; 8])),
        (any::<u8>(), any::<u8>(), any::<[u8; 4]>()).prop_map(|(kind, code, rest)| Body::Icmp(
            kind,
            code,
            rest,
            vec![0; 40]
        )),
        (any::<u8>(), prop::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(number, bytes)| Body::Other(number, bytes)),
    ]
}

proptest! {
    /// Whatever an internal pod sends to the gateway for another place is dropped, and so is
    /// whatever others send to its own address.
    #[test]
    fn no_packet_leaves_or_enters_an_internal_network_without_a_published_port(
        body in body(),
        family in 0..2_usize,
        place in 0..3_usize,
    ) {
        let mut simulator = two_networks(INTERNAL, 0);
        let to = [remote(), friend(), other_pod()][place][family];
        let verdict = sent_by_pod(&mut simulator, to, body.clone());
        prop_assert!(matches!(verdict, Verdict::Drop(_)), "out: {verdict:?}");
        let verdict = from_world(&mut simulator, pod()[family], body.clone());
        prop_assert!(matches!(verdict, Verdict::Drop(_)), "in: {verdict:?}");
        let verdict = sent_by_other(&mut simulator, pod()[family], body);
        prop_assert!(matches!(verdict, Verdict::Drop(_)), "across: {verdict:?}");
    }
}
