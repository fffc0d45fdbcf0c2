//! Tests of the ingress policy at the receiving pod: the port that a frame came in by decides.

use abi::{Address, DropReason, EndpointFlags, Mac};
use proptest::prelude::*;

use crate::address::link_local_of;
use crate::outcome::Verdict;
use crate::simulator::example::{
    self, BRIDGE, FAMILIES, HOSTPORT, INTERFACE, OTHER_INTERFACE, OTHER_POD, POD, POD_PORT,
    bridge_mac, gateway, mac, node, other_mac, other_pod, pod, remote,
};
use crate::simulator::frame::{Body, Frame};
use crate::simulator::{Place, Simulator};

const SAME: u32 = EndpointFlags::SAME_BRIDGE;
const ALONE: u32 = EndpointFlags::SAME_BRIDGE | EndpointFlags::INGRESS_ISOLATED;
const FORBIDDEN: Verdict = Verdict::Drop(DropReason::IngressPolicy);
/// Interface index of another bridge.
const OTHER_BRIDGE: u32 = 21;

/// Returns the example node with these flags of the two pods, on these bridges.
fn node_with(flags: [u32; 2], bridges: [u32; 2]) -> Simulator {
    let mut world = example::world();
    for (index, slot) in [POD, OTHER_POD].into_iter().enumerate() {
        let pod = &mut world.pods[slot as usize];
        pod.flags |= flags[index];
        pod.network = bridges[index];
    }
    Simulator::new(world)
}

/// Returns the verdict of the second pod's veth on a frame that came in by this link.
fn receive(simulator: &mut Simulator, by: u32, frame: &[u8]) -> Verdict {
    simulator.world.ingress_interface = by;
    simulator.run(Place::ToPod, OTHER_INTERFACE, frame).0
}

fn data(from: Address, to: Address) -> Frame {
    Frame::new(from, to, Body::Udp(1, 2, b"data".to_vec())).from_to(mac(), other_mac())
}

fn v6(text: &str) -> Address {
    let address: std::net::Ipv6Addr = text.parse().unwrap();
    Address::v6(address.octets())
}

#[test]
fn the_policy_at_the_receiver_depends_on_the_flags_of_both_pods() {
    let cases = [
        ([SAME, SAME], true, false),
        ([SAME, ALONE], true, false),
        ([ALONE, ALONE], true, true),
        ([0, ALONE], false, false),
        ([ALONE, 0], false, false),
        ([0, 0], false, false),
    ];
    for (flags, of_two_bridges, of_one) in cases {
        for family in FAMILIES {
            let frame = data(pod()[family], other_pod()[family]).bytes();
            for (bridges, forbidden) in [
                ([BRIDGE, OTHER_BRIDGE], of_two_bridges),
                ([BRIDGE, BRIDGE], of_one),
            ] {
                let mut simulator = node_with(flags, bridges);
                let expected = if forbidden { FORBIDDEN } else { Verdict::Pass };
                // Bridged, and routed by the gateway.
                for by in [INTERFACE, BRIDGE] {
                    assert_eq!(receive(&mut simulator, by, &frame), expected, "{flags:?}");
                }
            }
        }
    }
}

/// F7: none of these destinations has a row.
#[test]
fn isolation_holds_for_destinations_that_no_pod_has() {
    let mut simulator = node_with([ALONE, ALONE], [BRIDGE, BRIDGE]);
    let own = link_local_of(mac());
    let [sender, sender_v6] = pod();
    let packets = [
        (own, link_local_of(other_mac()), other_mac()),
        (sender_v6, v6("ff02::1"), Mac::new([0x33, 0x33, 0, 0, 0, 1])),
        (own, v6("ff02::fb"), Mac::new([0x33, 0x33, 0, 0, 0, 0xfb])),
        (sender, Address::v4([255; 4]), Mac::new([0xff; 6])),
        (sender, Address::v4([10, 88, 0, 255]), Mac::new([0xff; 6])),
        (
            sender,
            Address::v4([224, 0, 0, 251]),
            Mac::new([1, 0, 0x5e, 0, 0, 0xfb]),
        ),
        (sender, Address::v4([172, 16, 9, 9]), other_mac()),
        (sender_v6, v6("fd00:99::9"), other_mac()),
    ];
    for (from, to, to_mac) in packets {
        for body in [
            Body::Udp(1, 2, b"data".to_vec()),
            Body::Tcp(1, 2, 2, vec![]),
            Body::echo_request(&from, 1),
            Body::Other(47, vec![0; 8]),
        ] {
            let frame = Frame::new(from, to, body).from_to(mac(), to_mac).bytes();
            assert_eq!(
                receive(&mut simulator, INTERFACE, &frame),
                FORBIDDEN,
                "{to:?}"
            );
        }
    }
    // Other protocols, too.
    let mut frame = data(sender, other_pod()[0]).bytes();
    frame[12..14].copy_from_slice(&[0x88, 0xcc]);
    assert_eq!(receive(&mut simulator, INTERFACE, &frame), FORBIDDEN);
    // An address that only a route of the node leads to.
    let routed = data(sender, Address::v4([172, 16, 9, 9])).bytes();
    assert_eq!(receive(&mut simulator, BRIDGE, &routed), FORBIDDEN);
}

#[test]
fn isolated_pods_reach_the_node_and_the_world_and_are_reached_by_them() {
    let mut simulator = node_with([ALONE, ALONE], [BRIDGE, BRIDGE]);
    for family in FAMILIES {
        for from in [gateway(), node(), remote()] {
            for by in [0, BRIDGE, 99] {
                let frame = data(from[family], other_pod()[family]).bytes();
                assert_eq!(receive(&mut simulator, by, &frame), Verdict::Pass);
            }
        }
        // A pod reaches itself by its gateway.
        let frame = data(other_pod()[family], other_pod()[family]).bytes();
        assert_eq!(receive(&mut simulator, BRIDGE, &frame), Verdict::Pass);
    }
}

/// Returns an ARP packet of the first pod for a target.
fn arp(target: [u8; 4]) -> Vec<u8> {
    let own = mac().bytes();
    let kind = [0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1];
    [
        &[0xff; 6][..],
        &own,
        &kind,
        &own,
        &[10, 88, 0, 2],
        &[0; 6],
        &target,
    ]
    .concat()
}

/// The server of a published port resolves its client's MAC address.
#[test]
fn address_resolution_for_the_receiver_passes_between_isolated_pods() {
    let mut simulator = node_with([ALONE, ALONE], [BRIDGE, BRIDGE]);
    for (target, expected) in [
        ([10, 88, 0, 3], Verdict::Pass),
        ([10, 88, 0, 1], FORBIDDEN),
        ([10, 88, 0, 2], FORBIDDEN),
    ] {
        assert_eq!(receive(&mut simulator, INTERFACE, &arp(target)), expected);
    }
    let (all, link) = (v6("ff02::1"), link_local_of(other_mac()));
    let [_, receiver] = other_pod();
    for (icmp_type, to, target, expected) in [
        (135, v6("ff02::1:ff00:3"), receiver, Verdict::Pass),
        (135, link, link, Verdict::Pass),
        (136, receiver, pod()[1], Verdict::Pass),
        (136, link, pod()[1], Verdict::Pass),
        (135, all, pod()[1], FORBIDDEN),
        (135, v6("ff02::1:ff00:1"), gateway()[1], FORBIDDEN),
        (136, all, pod()[1], FORBIDDEN),
        (133, receiver, receiver, FORBIDDEN),
        (134, receiver, receiver, FORBIDDEN),
        (143, receiver, receiver, FORBIDDEN),
    ] {
        let body = Body::Icmp(icmp_type, 0, [0; 4], target.bytes().to_vec());
        let frame = Frame::new(pod()[1], to, body).bytes();
        let verdict = receive(&mut simulator, INTERFACE, &frame);
        assert_eq!(verdict, expected, "{icmp_type} {target:?}");
    }
}

/// The answer to a solicitation is for the pod's own address.
#[test]
fn neighbour_discovery_leaves_an_isolated_pod_for_another_ones_port_to_decide() {
    let mut simulator = node_with([ALONE, ALONE], [BRIDGE, BRIDGE]);
    for (icmp_type, expected) in [
        (135, Verdict::Pass),
        (136, Verdict::Pass),
        (143, FORBIDDEN),
        (128, FORBIDDEN),
    ] {
        let body = Body::Icmp(icmp_type, 0, [0; 4], pod()[1].bytes().to_vec());
        let frame = Frame::new(pod()[1], other_pod()[1], body).from_to(mac(), other_mac());
        let (verdict, _) = simulator.run(Place::FromPod, INTERFACE, &frame.bytes());
        assert_eq!(verdict, expected, "{icmp_type}");
    }
}

/// Packets of a published port that are too long for the receiver's link take the stack.
#[test]
fn packets_of_published_ports_pass_between_isolated_pods_by_the_stack() {
    for family in FAMILIES {
        // The second pod dials the first one's hostport.
        let mut simulator = node_with([ALONE, ALONE], [BRIDGE, BRIDGE]);
        let (client, server) = (other_pod()[family], pod()[family]);
        let dial = Frame::new(
            client,
            node()[family],
            Body::Udp(4_000, HOSTPORT, vec![1; 64]),
        )
        .from_to(other_mac(), bridge_mac());
        let (verdict, _) = simulator.run(Place::FromPod, OTHER_INTERFACE, &dial.bytes());
        assert_eq!(verdict, Verdict::RedirectPeer(INTERFACE));
        let request = Body::Udp(4_000, POD_PORT, vec![1; 64]);
        let reply = Body::Udp(POD_PORT, 4_000, vec![1; 64]);
        let other = Body::Udp(POD_PORT, 4_001, vec![1; 64]);
        simulator.world.ingress_interface = BRIDGE;
        for (place, from, to, body, expected) in [
            (INTERFACE, client, server, request.clone(), Verdict::Pass),
            (
                OTHER_INTERFACE,
                server,
                client,
                reply.clone(),
                Verdict::Pass,
            ),
            (OTHER_INTERFACE, server, client, other, FORBIDDEN),
        ] {
            let frame = Frame::new(from, to, body);
            let (verdict, _) = simulator.run(Place::ToPod, place, &frame.bytes());
            assert_eq!(verdict, expected, "{frame:?}");
        }
        // A flow of a pod that is gone lets nothing pass.
        simulator.world.pods[POD as usize].generation += 1;
        let endpoint = simulator.world.endpoints.get_mut(&server).unwrap();
        endpoint.generation += 1;
        let frame = Frame::new(client, server, request);
        let (verdict, _) = simulator.run(Place::ToPod, INTERFACE, &frame.bytes());
        assert_eq!(verdict, FORBIDDEN);
    }
}

proptest! {
    /// Whatever a frame contains: between isolated ports it is dropped, unless it names the
    /// receiver.
    #[test]
    fn frames_of_any_bytes_do_not_pass_between_isolated_ports(
        ethertype in prop::sample::select(vec![0x0800_u16, 0x86dd, 0x0806, 0x88cc, 0x8100, 0]),
        to in any::<[u8; 6]>(),
        rest in prop::collection::vec(any::<u8>(), 0..100),
        version in any::<bool>(),
    ) {
        let mut frame = [&to[..], &mac().bytes(), &ethertype.to_be_bytes(), &rest].concat();
        if version && let Some(first) = frame.get_mut(14) {
            *first = if ethertype == 0x0800 { 0x45 } else { 0x60 };
        }
        let mut simulator = node_with([ALONE, ALONE], [BRIDGE, BRIDGE]);
        let verdict = receive(&mut simulator, INTERFACE, &frame);
        // Random bytes never name an address of the receiver.
        prop_assert_eq!(verdict, FORBIDDEN);
    }
}
