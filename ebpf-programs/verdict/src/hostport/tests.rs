//! Tests of packets from outside that routers never forward, and of addresses that the node and a
//! pod both have.

use abi::{Address, DropReason, Mac, Port, PrefixClass, Tuple, protocol};

use crate::bypass::tests::{UPLINK, open_node};
use crate::node::Socket;
use crate::outcome::Verdict;
use crate::simulator::example::{
    FAMILIES, HOSTPORT, INTERFACE, bridge_mac, mac, node, other_pod, pod, remote,
};
use crate::simulator::frame::{Body, Frame, flag};
use crate::simulator::{Place, Simulator, World};

fn v6(text: &str) -> Address {
    let address: std::net::Ipv6Addr = text.parse().unwrap();
    Address::v6(address.octets())
}

/// Sources that the kernel never forwards, with whether nothing may ever come from them.
fn refused_sources() -> [Vec<(Address, bool)>; 2] {
    let v4 = [
        ([0, 0, 0, 0], false),
        ([0, 1, 2, 3], true),
        ([127, 0, 0, 1], true),
        ([224, 0, 0, 1], true),
        ([255, 255, 255, 255], true),
    ];
    let v6_sources = [
        ("::", false),
        ("fe80::1", false),
        ("::1", true),
        ("ff02::1", true),
    ];
    [
        v4.map(|(bytes, always)| (Address::v4(bytes), always))
            .into(),
        v6_sources.map(|(text, always)| (v6(text), always)).into(),
    ]
}

fn question(port: u16) -> Body {
    Body::Udp(7_000, port, b"question".to_vec())
}

/// The node with and without the fast path.
fn nodes() -> [World; 2] {
    let mut closed = open_node();
    closed.settings.flags = 0;
    [open_node(), closed]
}

fn received(simulator: &mut Simulator, bytes: &[u8]) -> Verdict {
    simulator.run(Place::UplinkIn, UPLINK, bytes).0
}

#[test]
fn sources_that_are_never_forwarded_reach_no_hostport_and_open_no_flow() {
    for world in nodes() {
        let mut simulator = Simulator::new(world);
        for family in FAMILIES {
            for (source, _) in &refused_sources()[family] {
                let frame = Frame::new(*source, node()[family], question(HOSTPORT)).bytes();
                let verdict = received(&mut simulator, &frame);
                assert_eq!(verdict, Verdict::Drop(DropReason::Martian), "{source:?}");
            }
        }
        assert!(simulator.world.flows.is_empty());
    }
}

#[test]
fn sources_that_are_never_forwarded_reach_no_pod_past_the_stack() {
    for world in nodes() {
        let mut simulator = Simulator::new(world);
        for family in FAMILIES {
            for (source, _) in &refused_sources()[family] {
                let frame = Frame::new(*source, pod()[family], question(53)).bytes();
                for _ in 0..3 {
                    let verdict = received(&mut simulator, &frame);
                    assert_eq!(verdict, Verdict::Drop(DropReason::Martian), "{source:?}");
                }
            }
        }
        assert!(simulator.world.flows.is_empty());
    }
}

#[test]
fn broadcast_addresses_of_the_uplinks_subnets_are_no_sources() {
    for world in nodes() {
        let mut simulator = Simulator::new(world);
        let broadcast = Address::v4([192, 0, 2, 255]);
        for (to, port) in [(node()[0], HOSTPORT), (pod()[0], 53)] {
            let frame = Frame::new(broadcast, to, question(port)).bytes();
            let verdict = received(&mut simulator, &frame);
            assert_eq!(verdict, Verdict::Drop(DropReason::Martian));
        }
        assert!(simulator.world.flows.is_empty());
    }
}

/// DHCP, duplicate address detection and group membership reports have no source yet.
#[test]
fn packets_of_hosts_without_an_address_reach_the_nodes_own_stack() {
    let mut simulator = Simulator::new(open_node());
    let unspecified = Address::v4([0; 4]);
    let frames = [
        Frame::new(
            unspecified,
            Address::v4([255; 4]),
            Body::Udp(68, 67, vec![1; 240]),
        ),
        Frame::new(
            unspecified,
            Address::v4([224, 0, 0, 22]),
            Body::Other(2, vec![0x22; 16]),
        ),
        Frame::new(
            v6("::"),
            v6("ff02::1:ff00:1"),
            Body::Icmp(135, 0, [0; 4], vec![0; 16]),
        ),
        Frame::new(
            v6("fe80::7"),
            v6("ff02::16"),
            Body::Icmp(143, 0, [0; 4], vec![0; 20]),
        ),
        Frame::new(v6("fe80::7"), v6("fe80::1"), question(546)),
    ];
    for frame in frames {
        let group = Mac::new([0x33, 0x33, 0, 0, 0, 1]);
        let frame = frame.from_to(Mac::new([2, 0, 0, 0, 0, 5]), group).bytes();
        assert_eq!(received(&mut simulator, &frame), Verdict::Pass);
    }
}

#[test]
fn no_packet_from_outside_is_for_the_loopback() {
    for world in nodes() {
        let mut simulator = Simulator::new(world);
        for (source, loopback) in [
            (remote()[0], Address::v4([127, 0, 0, 1])),
            (remote()[1], v6("::1")),
        ] {
            for port in [HOSTPORT, 5353] {
                let frame = Frame::new(source, loopback, question(port)).bytes();
                let verdict = received(&mut simulator, &frame);
                assert_eq!(verdict, Verdict::Drop(DropReason::Martian));
            }
        }
    }
}

/// The destination becomes the node's after the flow has begun, and before.
#[test]
fn an_address_of_the_node_and_of_a_pod_is_the_nodes() {
    for family in FAMILIES {
        let frame = Frame::new(remote()[family], pod()[family], question(53)).bytes();
        let mut before = open_node();
        before.locals.insert(pod()[family]);
        let mut simulator = Simulator::new(before);
        for _ in 0..3 {
            assert_eq!(received(&mut simulator, &frame), Verdict::Pass);
        }
        assert!(simulator.world.flows.is_empty());

        let mut simulator = Simulator::new(open_node());
        received(&mut simulator, &frame);
        assert_ne!(received(&mut simulator, &frame), Verdict::Pass);
        simulator.world.locals.insert(pod()[family]);
        simulator.world.flows_were_changed();
        for _ in 0..3 {
            assert_eq!(received(&mut simulator, &frame), Verdict::Pass);
        }
    }
}

#[test]
fn packets_from_an_address_of_the_node_and_of_a_pod_are_not_masqueraded() {
    for family in FAMILIES {
        let mut world = open_node();
        world.locals.insert(pod()[family]);
        let body = Body::Tcp(40_000, 443, flag::SYN, Vec::new());
        let frame = Frame::new(pod()[family], remote()[family], body);
        let mut simulator = Simulator::new(world);
        let bytes = frame.bytes();
        let (verdict, after) = simulator.run(Place::UplinkOut, UPLINK, &bytes);
        assert_eq!((verdict, after), (Verdict::Pass, bytes));
        // Sent by the pod: the stack drops it, and nothing goes past the stack.
        let bytes = frame.from_to(mac(), bridge_mac()).bytes();
        let (verdict, _) = simulator.run(Place::FromPod, INTERFACE, &bytes);
        assert_eq!(verdict, Verdict::Pass);
        assert!(simulator.world.flows.values().all(|flow| flow.pod == 0));
    }
}

#[test]
fn icmp_errors_with_a_pods_or_an_invalid_source_reach_no_pod() {
    for family in FAMILIES {
        let mut simulator = Simulator::new(open_node());
        let query = Body::Udp(40_000, 53, b"query".to_vec());
        let out = Frame::new(pod()[family], remote()[family], query);
        let (_, wire) = simulator.run(Place::UplinkOut, UPLINK, &out.bytes());
        let unreachable = [3, 1][family];
        let error = |source| {
            let body = Body::Icmp(unreachable, 3, [0; 4], wire[14..].to_vec());
            Frame::new(source, node()[family], body).bytes()
        };
        let spoofed = Verdict::Drop(DropReason::SpoofedFromOutside);
        let mut cases = vec![
            (other_pod()[family], spoofed),
            (remote()[family], Verdict::Pass),
        ];
        let invalid = refused_sources()[family].clone().into_iter();
        cases.extend(
            invalid
                .filter(|(_, always)| *always)
                .map(|(source, _)| (source, Verdict::Drop(DropReason::Martian))),
        );
        for (source, expected) in cases {
            let bytes = error(source);
            let (verdict, after) = simulator.run(Place::UplinkIn, UPLINK, &bytes);
            assert_eq!(verdict, expected, "{source:?}");
            assert_eq!(after != bytes, expected == Verdict::Pass, "{source:?}");
        }
    }
}

#[test]
fn an_icmp_error_about_a_hostport_passes_only_with_a_flow_or_a_socket() {
    for family in FAMILIES {
        let mut simulator = Simulator::new(open_node());
        let (own, client) = (node()[family], remote()[family]);
        let error = |from: Address, from_port: u16, to_port: u16| {
            let sent = Frame::new(from, client, Body::Udp(from_port, to_port, vec![7; 40]));
            let (icmp_type, code) = [(3, 4), (2, 0)][family];
            let quote = sent.packet()[..[28, 48][family]].to_vec();
            Frame::new(
                client,
                own,
                Body::Icmp(icmp_type, code, [0, 0, 5, 0], quote),
            )
            .bytes()
        };
        let dropped = Verdict::Drop(DropReason::ErrorWithoutFlow);
        for (from, port, expected) in [
            (own, HOSTPORT, dropped),
            (own, HOSTPORT + 1, Verdict::Pass),
            // An address that the node does not have has no hostports.
            (other_pod()[family], HOSTPORT, Verdict::Pass),
        ] {
            let bytes = error(from, port, 7_000);
            let (verdict, after) = simulator.run(Place::UplinkIn, UPLINK, &bytes);
            assert_eq!(verdict, expected, "{from:?} {port}");
            assert_eq!(after, bytes, "no quote is translated");
        }
        // A fragment without ports quotes no hostport, whatever its bytes are.
        let headless = {
            let mut bytes = error(own, HOSTPORT, 7_000);
            if family == 0 {
                let quote = 14 + 20 + 8;
                bytes[quote + 6..quote + 8].copy_from_slice(&[0, 9]);
            }
            bytes
        };
        let expected = [Verdict::Pass, dropped][family];
        let (verdict, _) = simulator.run(Place::UplinkIn, UPLINK, &headless);
        assert_eq!(verdict, expected);

        let about_socket = error(own, HOSTPORT, 7_001);
        let reply = Tuple {
            source: client,
            destination: own,
            source_port: Port::new(7_001),
            destination_port: Port::new(HOSTPORT),
            protocol: protocol::UDP,
            ..Tuple::default()
        };
        simulator.world.sockets.insert(reply, Socket::Connected);
        let (verdict, _) = simulator.run(Place::UplinkIn, UPLINK, &about_socket);
        assert_eq!(verdict, Verdict::Pass, "the node's own socket");

        let opening = Frame::new(client, own, question(HOSTPORT));
        received(&mut simulator, &opening.bytes());
        let about_flow = error(own, HOSTPORT, 7_000);
        let (verdict, after) = simulator.run(Place::UplinkIn, UPLINK, &about_flow);
        assert_eq!(verdict, Verdict::Pass, "the flow's");
        assert_ne!(after, about_flow, "the quote is translated");
    }
}

/// A switch may add a trailer. The quote ends with the packet.
#[test]
fn the_trailer_of_a_frame_is_no_part_of_a_quote() {
    let mut simulator = Simulator::new(open_node());
    let (own, client) = (node()[0], remote()[0]);
    let opening = Body::Tcp(7_000, HOSTPORT, flag::SYN, vec![]);
    received(&mut simulator, &Frame::new(client, own, opening).bytes());
    let reply = Frame::new(
        own,
        client,
        Body::Tcp(HOSTPORT, 7_000, flag::ACK, vec![7; 40]),
    );
    let quote = reply.packet()[..28].to_vec();
    let error = Frame::new(client, own, Body::Icmp(3, 4, [0, 0, 5, 0], quote)).bytes();
    let (_, plain) = simulator.run(Place::UplinkIn, UPLINK, &error);
    assert_ne!(plain, error, "the quote is translated");
    let trailer = [0xa5; 20];
    let framed = [&error[..], &trailer].concat();
    let (verdict, after) = simulator.run(Place::UplinkIn, UPLINK, &framed);
    assert_eq!(verdict, Verdict::Pass);
    assert_eq!(after, [&plain[..], &trailer].concat());
}

#[test]
fn frames_for_another_machine_are_left_to_the_stack() {
    for family in FAMILIES {
        let mut simulator = Simulator::new(open_node());
        let other = Mac::new([2, 0, 0, 0, 0, 0xee]);
        let sender = Mac::new([2, 0, 0, 0, 0, 5]);
        for to in [node()[family], pod()[family]] {
            let frame = Frame::new(remote()[family], to, question(HOSTPORT));
            for _ in 0..3 {
                let bytes = frame.clone().from_to(sender, other).bytes();
                let (verdict, after) = simulator.run(Place::UplinkIn, UPLINK, &bytes);
                assert_eq!((verdict, after), (Verdict::Pass, bytes));
            }
        }
        assert!(simulator.world.flows.is_empty());
        // To all machines: the kernel does not forward it, so it does not go past the kernel.
        let frame = Frame::new(remote()[family], node()[family], question(HOSTPORT));
        let bytes = frame.from_to(sender, Mac::new([0xff; 6])).bytes();
        assert_eq!(received(&mut simulator, &bytes), Verdict::Pass);
    }
}

#[test]
fn a_wrong_header_checksum_is_malformed_before_and_after_the_flow_is_cached() {
    let world = open_node();
    let mut simulator = Simulator::new(world);
    let right = Frame::new(remote()[0], node()[0], question(HOSTPORT)).bytes();
    let mut wrong = right.clone();
    wrong[24] ^= 1;
    let malformed = Verdict::Drop(DropReason::Malformed);
    assert_eq!(received(&mut simulator, &wrong), malformed);
    assert!(simulator.world.flows.is_empty());
    for _ in 0..8 {
        assert_eq!(
            received(&mut simulator, &right),
            Verdict::RedirectPeer(INTERFACE)
        );
        assert_eq!(received(&mut simulator, &wrong), malformed);
    }
    assert!(simulator.world.memory.hits > 0, "the flow is in the cache");
    assert_eq!(simulator.xdp_prefilter(UPLINK, &wrong), malformed);
    assert_eq!(simulator.xdp_prefilter(UPLINK, &right), Verdict::Pass);
}

#[test]
fn pods_send_nothing_past_the_stack_that_is_never_forwarded() {
    let destinations = [
        vec![[0, 0, 0, 0], [0, 1, 2, 3], [224, 0, 0, 9], [255; 4]]
            .into_iter()
            .map(Address::v4)
            .collect::<Vec<_>>(),
        ["::", "ff02::1", "fe80::1"].map(v6).into(),
    ];
    for family in FAMILIES {
        let mut world = open_node();
        for to in &destinations[family] {
            // The kernel's route for these is the default route.
            world.egress_routes.insert(*to, UPLINK);
        }
        let mut simulator = Simulator::new(world);
        for to in &destinations[family] {
            let frame = Frame::new(pod()[family], *to, question(53)).from_to(mac(), bridge_mac());
            let (verdict, _) = simulator.run(Place::FromPod, INTERFACE, &frame.bytes());
            let expected = if to.is_any() || (to.is_v4() && to.bytes()[12] == 0) {
                Verdict::Drop(DropReason::Martian)
            } else {
                Verdict::Pass
            };
            assert_eq!(verdict, expected, "{to:?}");
        }
        let mut wrong = Frame::new(pod()[0], remote()[0], question(53))
            .from_to(mac(), bridge_mac())
            .bytes();
        wrong[24] ^= 1;
        let (verdict, _) = simulator.run(Place::FromPod, INTERFACE, &wrong);
        assert_eq!(verdict, Verdict::Drop(DropReason::Malformed));
    }
}

/// Pods without a spoof check may send from any address, but the kernel forwards only some.
#[test]
fn unchecked_pods_send_nothing_past_the_stack_from_sources_that_are_never_forwarded() {
    for family in FAMILIES {
        let mut world = open_node();
        for pod in &mut world.pods {
            pod.flags &= !abi::EndpointFlags::SPOOF_CHECK;
        }
        let mut simulator = Simulator::new(world);
        for (source, always) in &refused_sources()[family] {
            for to in [remote()[family], node()[family]] {
                let frame = Frame::new(*source, to, question(HOSTPORT));
                let bytes = frame.from_to(mac(), bridge_mac()).bytes();
                let (verdict, _) = simulator.run(Place::FromPod, INTERFACE, &bytes);
                let expected = if *always {
                    Verdict::Drop(DropReason::Martian)
                } else {
                    Verdict::Pass
                };
                assert_eq!(verdict, expected, "{source:?}");
            }
        }
        assert!(simulator.world.flows.is_empty());
    }
}

/// Where pods' own addresses are not masqueraded, no flow is opened for them.
#[test]
fn a_prefix_without_masquerade_changes_nothing_about_refused_sources() {
    let mut world = open_node();
    for class in world.prefixes.values_mut() {
        *class |= PrefixClass::NO_MASQUERADE;
    }
    let mut simulator = Simulator::new(world);
    for family in FAMILIES {
        for (source, _) in &refused_sources()[family] {
            let frame = Frame::new(*source, node()[family], question(HOSTPORT)).bytes();
            let verdict = received(&mut simulator, &frame);
            assert_eq!(verdict, Verdict::Drop(DropReason::Martian), "{source:?}");
        }
    }
}
