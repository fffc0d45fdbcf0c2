//! Packets that netfilter would translate: the datapath translates them likewise.

use abi::{Address, Direction, EndpointFlags, Mac, Port, SettingsFlags, Tuple, protocol};

use super::{accept_translated, beside_rules};
use crate::bypass::tests::{UPLINK, set_time_to_live};
use crate::outcome::Verdict;
use crate::simulator::example::{
    FAMILIES, INTERFACE, OTHER_INTERFACE, OTHER_POD, bridge_mac, friend, gateway, mac, node,
    other_mac, other_pod, pod, remote,
};
use crate::simulator::frame::{Body, Frame, TO, flag};
use crate::simulator::{JIFFY, Place, Simulator};

/// An address that no host has: other software translates packets to it.
fn service() -> [Address; 2] {
    let v6 = std::net::Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x10);
    [Address::v4([10, 96, 0, 10]), Address::v6(v6.octets())]
}

/// An address and a port.
type End = (Address, u16);

fn tuple((source, source_port): End, (destination, destination_port): End) -> Tuple {
    Tuple {
        source,
        destination,
        source_port: Port::new(source_port),
        destination_port: Port::new(destination_port),
        protocol: protocol::TCP,
        reserved: [0; 3],
    }
}

fn address_of_node(family: usize) -> Address {
    node()[family]
}

fn frame(from: End, to: End, macs: [Mac; 2], flags: u8) -> Vec<u8> {
    let body = Body::Tcp(from.1, to.1, flags, b"payload".to_vec());
    let [sender, receiver] = macs;
    let frame = Frame::new(from.0, to.0, body).from_to(sender, receiver);
    frame.bytes()
}

/// Returns a frame that a router has forwarded.
fn routed(from: End, to: End, macs: [Mac; 2]) -> Vec<u8> {
    let mut bytes = frame(from, to, macs, flag::ACK);
    let ttl = if bytes[12] == 8 { bytes[22] } else { bytes[21] };
    set_time_to_live(&mut bytes, ttl - 1);
    bytes
}

/// Ends of a connection of the pod to a service, and of the other pod that serves it.
fn to_service(family: usize) -> [End; 3] {
    [
        (pod()[family], 40_000),
        (service()[family], 80),
        (other_pod()[family], 8080),
    ]
}

/// A node that has accepted packets of the pod to a service of the other pod, and such a packet.
fn node_with_service(family: usize) -> (Simulator, Vec<u8>) {
    let [client, service, server] = to_service(family);
    let mut node = beside_rules();
    accept_translated(&mut node, tuple(client, service), tuple(client, server));
    (
        node,
        frame(client, service, [mac(), bridge_mac()], flag::ACK),
    )
}

#[test]
fn packets_to_a_service_are_translated_and_routed_to_the_pod_that_serves_it() {
    for family in FAMILIES {
        let [client, _, server] = to_service(family);
        let (mut node, packet) = node_with_service(family);
        let translated = routed(client, server, [bridge_mac(), other_mac()]);
        for packets in 1..=4 {
            let (verdict, bytes) = node.run(Place::FromPod, INTERFACE, &packet);
            assert_eq!(verdict, Verdict::RedirectPeer(OTHER_INTERFACE));
            assert_eq!(bytes, translated);
            let counters = &node.world.counters;
            assert_eq!(counters[&(OTHER_POD, Direction::Ingress)].packets, packets);
        }
        assert_eq!(node.world.memory.hits, 3);
    }
}

#[test]
fn replies_of_a_service_on_the_same_bridge_get_its_address_and_nothing_else() {
    for family in FAMILIES {
        let [client, service, server] = to_service(family);
        let mut node = beside_rules();
        accept_translated(&mut node, tuple(server, client), tuple(service, client));
        let macs = [other_mac(), mac()];
        let packet = frame(server, client, macs, flag::ACK);
        let translated = frame(service, client, macs, flag::ACK);
        for _ in 0..3 {
            let (verdict, bytes) = node.run(Place::FromPod, OTHER_INTERFACE, &packet);
            assert_eq!(verdict, Verdict::RedirectPeer(INTERFACE));
            assert_eq!(bytes, translated);
        }
        assert_eq!(node.world.memory.hits, 2);
    }
}

#[test]
fn packets_to_a_service_outside_are_masqueraded_at_the_uplink() {
    for family in FAMILIES {
        let [client, service, _] = to_service(family);
        let server = (remote()[family], 443);
        let mut node = beside_rules();
        accept_translated(&mut node, tuple(client, service), tuple(client, server));
        let packet = frame(client, service, [mac(), bridge_mac()], flag::ACK);
        for _ in 0..5 {
            let (verdict, bytes) = node.run(Place::FromPod, INTERFACE, &packet);
            assert_eq!(verdict, Verdict::RedirectNeigh(UPLINK));
            assert_eq!(bytes, routed(client, server, [mac(), bridge_mac()]));
            let (verdict, bytes) = node.run_next(Place::UplinkOut, UPLINK, &bytes);
            assert_eq!(verdict, Verdict::Pass);
            let source = (address_of_node(family), 40_000);
            assert_eq!(bytes, routed(source, server, [mac(), bridge_mac()]));
        }
        assert_eq!(node.world.candidates, []);
    }
}

/// Ends of a connection from outside to a port of the node, which netfilter translates to the pod
/// and masquerades: client, node, gateway, pod.
fn to_node_port(family: usize) -> [End; 4] {
    [
        (remote()[family], 50_000),
        (node()[family], 30_080),
        (gateway()[family], 61_000),
        (pod()[family], 8080),
    ]
}

#[test]
fn packets_from_outside_to_a_node_port_are_translated_and_redirected_to_its_pod() {
    for family in FAMILIES {
        let [client, door, gateway, server] = to_node_port(family);
        let mut node = beside_rules();
        // Replies of other software's translation are tracked, which reserves their port.
        let reply = frame(door, client, [TO, mac()], flag::ACK);
        node.run(Place::UplinkOut, UPLINK, &reply);
        let packet = frame(client, door, [mac(), TO], flag::ACK);
        let (verdict, bytes) = node.run(Place::UplinkIn, UPLINK, &packet);
        assert_eq!((verdict, bytes), (Verdict::Pass, packet.clone()));

        accept_translated(&mut node, tuple(client, door), tuple(gateway, server));
        node.world.clock += 200 * JIFFY;
        let hits = node.world.memory.hits;
        for _ in 0..4 {
            let (verdict, bytes) = node.run(Place::UplinkIn, UPLINK, &packet);
            assert_eq!(verdict, Verdict::RedirectPeer(INTERFACE));
            assert_eq!(bytes, routed(gateway, server, [bridge_mac(), mac()]));
        }
        assert!(node.world.memory.hits > hits);
    }
}

#[test]
fn replies_of_a_node_port_leave_with_the_address_of_the_node() {
    for family in FAMILIES {
        let [client, door, gateway, server] = to_node_port(family);
        let mut node = beside_rules();
        accept_translated(&mut node, tuple(server, gateway), tuple(door, client));
        let packet = frame(server, gateway, [mac(), bridge_mac()], flag::ACK);
        for _ in 0..4 {
            let (verdict, bytes) = node.run(Place::FromPod, INTERFACE, &packet);
            assert_eq!(verdict, Verdict::RedirectNeigh(UPLINK));
            let left = routed(door, client, [mac(), bridge_mac()]);
            assert_eq!(bytes, left);
            let (verdict, bytes) = node.run_next(Place::UplinkOut, UPLINK, &bytes);
            assert_eq!((verdict, bytes), (Verdict::Pass, left));
        }
        assert_eq!(node.world.candidates, []);
    }
}

/// Nothing has a flow of ours: netfilter alone translates the service's address.
#[test]
fn a_service_on_another_node_is_translated_in_both_directions() {
    for family in FAMILIES {
        let [client, service, _] = to_service(family);
        let server = (friend()[family], 8080);
        let mut node = beside_rules();
        node.world.egress_routes.insert(friend()[family], UPLINK);
        accept_translated(&mut node, tuple(client, service), tuple(client, server));
        accept_translated(&mut node, tuple(server, client), tuple(service, client));
        let packet = frame(client, service, [mac(), bridge_mac()], flag::ACK);
        let answer = frame(server, client, [TO, TO], flag::ACK);
        for _ in 0..4 {
            let (verdict, bytes) = node.run(Place::FromPod, INTERFACE, &packet);
            assert_eq!(verdict, Verdict::RedirectNeigh(UPLINK));
            let left = routed(client, server, [mac(), bridge_mac()]);
            assert_eq!(bytes, left);
            let (verdict, bytes) = node.run_next(Place::UplinkOut, UPLINK, &bytes);
            assert_eq!((verdict, bytes), (Verdict::Pass, left));
            let (verdict, bytes) = node.run(Place::UplinkIn, UPLINK, &answer);
            assert_eq!(verdict, Verdict::RedirectPeer(INTERFACE));
            assert_eq!(bytes, routed(service, client, [bridge_mac(), mac()]));
        }
        // Three at each hook.
        assert_eq!(node.world.memory.hits, 9);
        assert_eq!(node.world.candidates, []);
        assert!(node.world.flows.is_empty());
    }
}

#[test]
fn what_the_stack_must_forward_is_left_to_netfilters_translation() {
    let changes: [fn(&mut Simulator); 4] = [
        |node| node.world.pods[OTHER_POD as usize].flags |= EndpointFlags::SAME_BRIDGE,
        |node| node.world.pods[OTHER_POD as usize].flags |= EndpointFlags::INTERNAL,
        |node| node.world.pods[OTHER_POD as usize].flags &= !EndpointFlags::BYPASS,
        |node| {
            node.world.mtus.insert(OTHER_INTERFACE, 30);
        },
    ];
    for family in FAMILIES {
        for change in changes {
            let (mut node, packet) = node_with_service(family);
            change(&mut node);
            // The second packet may have a cached verdict.
            for _ in 0..2 {
                let (verdict, bytes) = node.run(Place::FromPod, INTERFACE, &packet);
                assert_eq!((verdict, &bytes), (Verdict::Pass, &packet));
            }
        }
    }
}

#[test]
fn packets_of_a_flow_between_pods_that_netfilter_translates_take_the_stack() {
    for family in FAMILIES {
        let [client, _, server] = to_service(family);
        let mut node = beside_rules();
        // Flows to a published pod are tracked.
        for endpoint in node.world.endpoints.values_mut() {
            endpoint.flags |= EndpointFlags::PUBLISHED;
        }
        let other = (server.0, server.1 + 1);
        accept_translated(&mut node, tuple(client, server), tuple(client, other));
        let opening = frame(client, server, [mac(), other_mac()], flag::SYN);
        let (verdict, bytes) = node.run(Place::FromPod, INTERFACE, &opening);
        assert_eq!((verdict, bytes), (Verdict::Pass, opening));
        let packet = frame(client, server, [mac(), other_mac()], flag::ACK);
        for _ in 0..6 {
            let (verdict, bytes) = node.run(Place::FromPod, INTERFACE, &packet);
            assert_eq!((verdict, &bytes), (Verdict::Pass, &packet));
        }
        assert!(!node.world.flows.is_empty());
        assert!(node.world.memory.hits > 0);
    }
}

#[test]
fn a_packet_to_a_service_that_serves_itself_takes_the_stack() {
    let [client, service, _] = to_service(0);
    let mut node = beside_rules();
    let server = (client.0, 8080);
    accept_translated(&mut node, tuple(client, service), tuple(client, server));
    let packet = frame(client, service, [mac(), bridge_mac()], flag::ACK);
    let (verdict, bytes) = node.run(Place::FromPod, INTERFACE, &packet);
    assert_eq!((verdict, bytes), (Verdict::Pass, packet));
}

#[test]
fn a_translation_ends_with_the_decision_and_is_not_applied_to_other_packets() {
    let [client, service, server] = to_service(0);
    let (mut node, packet) = node_with_service(0);
    node.run(Place::FromPod, INTERFACE, &packet);
    // Without rules, all packets bypass the stack, also those that no cache entry can be made for.
    node.world.settings.flags |= SettingsFlags::BYPASS;
    let other_port = (server.0, server.1 + 1);
    let opening = frame(client, other_port, [mac(), other_mac()], flag::SYN);
    let (verdict, bytes) = node.run(Place::FromPod, INTERFACE, &opening);
    assert_eq!(verdict, Verdict::RedirectPeer(OTHER_INTERFACE));
    assert_eq!(bytes, opening);

    let (mut node, packet) = node_with_service(0);
    node.run(Place::FromPod, INTERFACE, &packet);
    for flags in [flag::SYN, flag::FIN | flag::ACK, flag::RST] {
        let packet = frame(client, service, [mac(), bridge_mac()], flags);
        let (verdict, bytes) = node.run(Place::FromPod, INTERFACE, &packet);
        assert_eq!((verdict, bytes), (Verdict::Pass, packet));
    }
    node.world.memory.rulesets += 1;
    for _ in 0..2 {
        node.world.clock += JIFFY;
        let (verdict, bytes) = node.run(Place::FromPod, INTERFACE, &packet);
        assert_eq!((verdict, &bytes), (Verdict::Pass, &packet));
    }
}
