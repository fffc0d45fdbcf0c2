//! Tests of the bypass: which packets are redirected past bridge and netfilter, and which take the
//! stack.

use abi::{Direction, DropReason, EndpointFlags, Mac, SettingsFlags, UplinkFlags};

use crate::outcome::Verdict;
use crate::simulator::example::{
    BRIDGE, FAMILIES, HOSTPORT, INTERFACE, OTHER_INTERFACE, OTHER_POD, POD, bridge_mac, friend,
    gateway, mac, node, other_mac, other_pod, pod, remote, world,
};
use crate::simulator::frame::{Body, Frame, flag};
use crate::simulator::{Place, Simulator, World};

/// Interface index of an uplink that is not also a pod's veth, unlike [`INTERFACE`].
pub(crate) const UPLINK: u32 = 30;

pub(crate) fn open_node() -> World {
    let mut world = world();
    world.settings.flags |= SettingsFlags::BYPASS;
    for pod in &mut world.pods {
        pod.flags |= EndpointFlags::BYPASS;
    }
    for endpoint in world.endpoints.values_mut() {
        endpoint.flags &= !EndpointFlags::PUBLISHED;
    }
    let mut uplink = world.uplinks[&INTERFACE];
    uplink.flags |= UplinkFlags::OPEN;
    world.uplinks.insert(UPLINK, uplink);
    for family in FAMILIES {
        world.egress_routes.insert(remote()[family], UPLINK);
    }
    world
}

fn udp() -> Body {
    Body::Udp(40_000, 53, b"payload".to_vec())
}

fn frame(from: abi::Address, to: abi::Address, next: Mac) -> Vec<u8> {
    let mut bytes = Frame::new(from, to, udp()).sent_by(mac()).bytes();
    bytes[..6].copy_from_slice(&next.bytes());
    bytes
}

fn to_neighbour(family: usize) -> Vec<u8> {
    frame(pod()[family], other_pod()[family], other_mac())
}

fn to_world(family: usize) -> Vec<u8> {
    frame(pod()[family], remote()[family], bridge_mac())
}

fn sent(world: World, bytes: &[u8]) -> (Verdict, Vec<u8>, Simulator) {
    let mut simulator = Simulator::new(world);
    let (verdict, after) = simulator.run(Place::FromPod, INTERFACE, bytes);
    (verdict, after, simulator)
}

fn time_to_live(frame: &[u8]) -> u8 {
    frame[if frame[12] == 8 { 22 } else { 21 }]
}

pub(crate) fn set_time_to_live(frame: &mut [u8], ttl: u8) {
    if frame[12] != 8 {
        frame[21] = ttl;
        return;
    }
    let old = frame[22];
    frame[22] = ttl;
    // RFC 1624: the checksum of the header is that of the old one, plus the difference.
    let checksum = u32::from(u16::from_be_bytes([frame[24], frame[25]]));
    let sum = checksum + (u32::from(old) << 8) + 0xffff - (u32::from(ttl) << 8);
    let folded = (((sum & 0xffff) + (sum >> 16)) & 0xffff) as u16;
    frame[24..26].copy_from_slice(&folded.to_be_bytes());
}

/// Returns whether the IPv4 header checksum is correct; IPv6 has none, so it is always true.
fn has_right_header_checksum(frame: &[u8]) -> bool {
    let halves = frame[14..34].chunks_exact(2);
    let sum: u32 = halves
        .map(|half| u32::from(u16::from_be_bytes([half[0], half[1]])))
        .sum();
    frame[12] != 8 || (sum & 0xffff) + (sum >> 16) == 0xffff
}

#[test]
fn bypass_to_a_local_pod_keeps_the_frame_and_counts_its_ingress() {
    for family in FAMILIES {
        let bytes = to_neighbour(family);
        let (verdict, after, simulator) = sent(open_node(), &bytes);
        assert_eq!(verdict, Verdict::RedirectPeer(OTHER_INTERFACE));
        assert_eq!(after, bytes);
        let counted = |pod, direction| simulator.world.counters[&(pod, direction)].packets;
        assert_eq!(counted(POD, Direction::Egress), 1);
        assert_eq!(counted(OTHER_POD, Direction::Ingress), 1);
    }
}

#[test]
fn bypass_to_the_world_takes_the_routes_interface_and_decrements_ttl() {
    for family in FAMILIES {
        let bytes = to_world(family);
        let (verdict, after, _) = sent(open_node(), &bytes);
        assert_eq!(verdict, Verdict::RedirectNeigh(UPLINK));
        assert_eq!(time_to_live(&after), time_to_live(&bytes) - 1);
        assert!(has_right_header_checksum(&after));
    }
}

#[test]
fn without_the_bypass_flag_all_packets_take_the_stack() {
    for family in FAMILIES {
        for bytes in [to_neighbour(family), to_world(family)] {
            let mut closed = open_node();
            closed.settings.flags = 0;
            assert_eq!(sent(closed, &bytes).0, Verdict::Pass);
            let mut special = open_node();
            special.pods[POD as usize].flags &= !EndpointFlags::BYPASS;
            assert_eq!(sent(special, &bytes).0, Verdict::Pass);
        }
    }
}

#[test]
fn packets_that_need_the_stack_are_not_redirected() {
    for family in FAMILIES {
        let mut dying = to_world(family);
        set_time_to_live(&mut dying, 1);
        assert_eq!(sent(open_node(), &dying).0, Verdict::Pass, "its last hop");

        for (interface, bytes) in [
            (UPLINK, to_world(family)),
            (OTHER_INTERFACE, to_neighbour(family)),
        ] {
            let mut narrow = open_node();
            narrow.mtus.insert(interface, 30);
            assert_eq!(sent(narrow, &bytes).0, Verdict::Pass, "too long");
        }

        let mut unrouted = open_node();
        unrouted.egress_routes.clear();
        assert_eq!(sent(unrouted, &to_world(family)).0, Verdict::Pass);

        let mut unknown = open_node();
        unknown.uplinks.clear();
        assert_eq!(sent(unknown, &to_world(family)).0, Verdict::Pass);

        let mut closed = open_node();
        closed
            .uplinks
            .entry(UPLINK)
            .and_modify(|uplink| uplink.flags = 0);
        assert_eq!(sent(closed, &to_world(family)).0, Verdict::Pass, "closed");

        let mut raw = open_node();
        if let Some(uplink) = raw.uplinks.get_mut(&UPLINK) {
            uplink.l2_len = 0;
        }
        assert_eq!(sent(raw, &to_world(family)).0, Verdict::Pass, "no Ethernet");

        let to_node = frame(pod()[family], gateway()[family], bridge_mac());
        assert_eq!(
            sent(open_node(), &to_node).0,
            Verdict::Pass,
            "the node's own"
        );

        let foreign = Mac::new([2, 9, 9, 9, 9, 9]);
        for to in [other_pod()[family], remote()[family]] {
            let bytes = frame(pod()[family], to, foreign);
            assert_eq!(sent(open_node(), &bytes).0, Verdict::Pass, "for another");
        }
    }
}

#[test]
fn packets_to_a_pod_on_another_bridge_or_a_removed_pod_take_the_stack() {
    for family in FAMILIES {
        let bytes = to_neighbour(family);
        let mut elsewhere = open_node();
        elsewhere.pods[OTHER_POD as usize].network = BRIDGE + 1;
        assert_eq!(sent(elsewhere, &bytes).0, Verdict::Pass);
        let mut gone = open_node();
        gone.pods[OTHER_POD as usize].generation += 1;
        assert_eq!(sent(gone, &bytes).0, Verdict::Pass);
    }
}

#[test]
fn a_spoofed_packet_is_dropped_and_not_redirected() {
    for family in FAMILIES {
        let bytes = frame(remote()[family], other_pod()[family], other_mac());
        assert!(matches!(sent(open_node(), &bytes).0, Verdict::Drop(_)));
    }
}

#[test]
fn hostport_packets_and_replies_are_redirected_from_uplink_to_pod() {
    for family in FAMILIES {
        let mut simulator = Simulator::new(open_node());
        let body = Body::Udp(7_000, HOSTPORT, b"question".to_vec());
        let bytes = Frame::new(remote()[family], node()[family], body).bytes();
        let (verdict, after) = simulator.run(Place::UplinkIn, UPLINK, &bytes);
        assert_eq!(verdict, Verdict::RedirectPeer(INTERFACE));
        assert_eq!(after[..6], mac().bytes());
        assert_eq!(after[6..12], bridge_mac().bytes());
        assert_eq!(time_to_live(&after), time_to_live(&bytes) - 1);
        assert!(has_right_header_checksum(&after));

        let (_, out) = simulator.run(Place::UplinkOut, UPLINK, &to_world(family));
        assert_ne!(out, to_world(family));
        let reply = Body::Udp(53, 40_000, b"answer".to_vec());
        let bytes = Frame::new(remote()[family], node()[family], reply).bytes();
        let (verdict, after) = simulator.run(Place::UplinkIn, UPLINK, &bytes);
        assert_eq!(verdict, Verdict::RedirectPeer(INTERFACE));
        assert_eq!(after[..6], mac().bytes());
        let counters = &simulator.world.counters[&(POD, Direction::Ingress)];
        assert_eq!(counters.packets, 2);
    }
}

#[test]
fn packets_to_a_pods_own_address_are_redirected_where_no_flow_is_needed() {
    let enters = |world: World, body: &Body, family: usize| {
        let mut simulator = Simulator::new(world);
        let frame = Frame::new(friend()[family], pod()[family], body.clone()).bytes();
        let (verdict, after) = simulator.run(Place::UplinkIn, UPLINK, &frame);
        assert!(simulator.world.flows.is_empty());
        (verdict, after)
    };
    let delivered = Verdict::RedirectPeer(INTERFACE);
    let segment = Body::Tcp(40_000, 80, flag::ACK, Vec::new());
    for family in FAMILIES {
        let mut world = open_node();
        world.egress_routes.insert(friend()[family], UPLINK);
        for body in [&udp(), &segment, &Body::echo_request(&pod()[family], 7)] {
            let (verdict, after) = enters(world.clone(), body, family);
            assert_eq!(verdict, delivered);
            assert_eq!(after[..12], [mac().bytes(), bridge_mac().bytes()].concat());
        }
        let mut published = world.clone();
        for endpoint in published.endpoints.values_mut() {
            endpoint.flags |= EndpointFlags::PUBLISHED;
        }
        assert_eq!(enters(published, &segment, family).0, Verdict::Pass);
        let mut internal = world.clone();
        internal.pods[POD as usize].flags |= EndpointFlags::INTERNAL;
        assert_eq!(enters(internal, &segment, family).0, Verdict::Pass);
        let mut beside_rules = world.clone();
        beside_rules.settings.flags &= !SettingsFlags::BYPASS;
        assert_eq!(enters(beside_rules, &udp(), family).0, Verdict::Pass);
    }
    let mut elsewhere = open_node();
    elsewhere.egress_routes.insert(friend()[0], UPLINK + 1);
    let unproven = enters(elsewhere, &udp(), 0).0;
    assert_eq!(unproven, Verdict::Pass, "replies leave by another link");
}

/// Without a matching reverse path only the stack can decide, by its `rp_filter`, whether the
/// source is valid.
#[test]
fn packets_that_fail_the_reverse_path_check_take_the_stack() {
    let asked = |source| {
        let body = Body::Udp(7_000, HOSTPORT, b"question".to_vec());
        Frame::new(source, node()[0], body).bytes()
    };
    let elsewhere = abi::Address::v4([198, 51, 100, 9]);
    for (source, verdict) in [
        (remote()[0], Verdict::RedirectPeer(INTERFACE)),
        (elsewhere, Verdict::Pass),
    ] {
        let mut world = open_node();
        world.egress_routes.insert(elsewhere, UPLINK + 1);
        let mut simulator = Simulator::new(world);
        for _ in 0..3 {
            let (found, _) = simulator.run(Place::UplinkIn, UPLINK, &asked(source));
            assert_eq!(found, verdict, "{source:?}");
        }
    }
}

#[test]
fn the_reverse_path_is_looked_up_once_a_second_for_each_flow() {
    let mut simulator = Simulator::new(open_node());
    simulator.world.memory.disabled = true;
    let enter = |simulator: &mut Simulator, port| {
        let body = Body::Udp(port, HOSTPORT, b"question".to_vec());
        let bytes = Frame::new(remote()[0], node()[0], body).bytes();
        simulator.run(Place::UplinkIn, UPLINK, &bytes).0
    };
    let past = Verdict::RedirectPeer(INTERFACE);
    assert_eq!(enter(&mut simulator, 7_000), past);
    simulator
        .world
        .egress_routes
        .insert(remote()[0], UPLINK + 1);
    assert_eq!(enter(&mut simulator, 7_000), past, "in the same second");
    assert_eq!(enter(&mut simulator, 7_001), Verdict::Pass, "a new one");
    simulator.world.now += 1;
    for _ in 0..2 {
        assert_eq!(enter(&mut simulator, 7_000), Verdict::Pass);
    }
    simulator.world.egress_routes.insert(remote()[0], UPLINK);
    assert_eq!(
        enter(&mut simulator, 7_000),
        past,
        "the reverse path is looked up again at once"
    );
}

#[test]
fn flows_share_one_reverse_path_lookup() {
    let mut simulator = Simulator::new(open_node());
    simulator.world.memory.disabled = true;
    simulator.world.settings.flags |= SettingsFlags::ROUTES_BY_ADDRESS;
    let enter = |simulator: &mut Simulator, port| {
        let body = Body::Udp(port, HOSTPORT, b"question".to_vec());
        let bytes = Frame::new(remote()[0], node()[0], body).bytes();
        simulator.run(Place::UplinkIn, UPLINK, &bytes).0
    };
    for port in [7_000, 7_001] {
        assert_eq!(
            enter(&mut simulator, port),
            Verdict::RedirectPeer(INTERFACE)
        );
    }
    simulator
        .world
        .egress_routes
        .insert(remote()[0], UPLINK + 1);
    simulator.world.now += 1;
    for port in [7_001, 7_000, 7_000] {
        assert_eq!(enter(&mut simulator, port), Verdict::Pass, "{port}");
    }
}

#[test]
fn frames_of_a_vlan_take_the_bridge() {
    for family in FAMILIES {
        for bytes in [to_neighbour(family), to_world(family)] {
            let mut simulator = Simulator::new(open_node());
            for tagged in [false, true, false, false, true, true] {
                simulator.world.tagged = tagged;
                let (verdict, after) = simulator.run(Place::FromPod, INTERFACE, &bytes);
                assert_eq!(verdict == Verdict::Pass, tagged);
                assert_eq!(after == bytes, tagged || bytes[..6] == other_mac().bytes());
            }
            let mut forged = bytes;
            forged[6] ^= 2;
            let (verdict, _) = simulator.run(Place::FromPod, INTERFACE, &forged);
            assert_eq!(verdict, Verdict::Drop(DropReason::SpoofedMac));
        }
    }
}

#[test]
fn packets_longer_than_the_route_mtu_take_the_stack() {
    for family in FAMILIES {
        let bytes = to_world(family);
        let length = u32::try_from(bytes.len()).unwrap() - 14;
        for (short, passes) in [(0, false), (1, true)] {
            let least = length - short;
            for of_route in [false, true] {
                let mut narrow = open_node();
                if of_route {
                    narrow.route_mtu = least;
                } else {
                    narrow.uplinks.get_mut(&UPLINK).unwrap().mtu = least;
                }
                let (verdict, _, _) = sent(narrow, &bytes);
                assert_eq!(verdict == Verdict::Pass, passes, "{family}, {least}");
            }
        }
    }
}

#[test]
fn each_segment_of_a_gso_packet_is_checked_against_the_mtu() {
    for (size, body, header) in [
        (1_000, Body::Udp(1, 2, vec![0; 3_000]), 28),
        (1_000, Body::Tcp(1, 2, flag::ACK, vec![0; 3_000]), 40),
    ] {
        for (least, passes) in [(size + header, false), (size + header - 1, true)] {
            let mut narrow = open_node();
            narrow.route_mtu = least;
            narrow.segments = (3, size);
            let frame = Frame::new(pod()[0], remote()[0], body.clone());
            let bytes = frame.from_to(mac(), bridge_mac()).bytes();
            let (verdict, _, _) = sent(narrow, &bytes);
            assert_eq!(verdict == Verdict::Pass, passes, "{least}");
        }
    }
}
