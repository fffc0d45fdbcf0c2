//! Tests of packets to addresses of pod subnets that no pod has.

use abi::{DropReason, Mac, PrefixClass, SettingsFlags};

use crate::bypass::tests::{UPLINK, open_node};
use crate::outcome::Verdict;
use crate::simulator::example::{
    BRIDGE, FAMILIES, INTERFACE, OTHER_INTERFACE, bridge_mac, gateway, mac, no_pod, node,
    other_mac, other_pod, pod, remote,
};
use crate::simulator::frame::{Body, Frame, flag};
use crate::simulator::{Place, Simulator, World};

const UNKNOWN: Verdict = Verdict::Drop(DropReason::UnknownPod);

/// The node with and without the fast path, and with and without the check for other links. The
/// kernel would forward packets to all addresses of the pods' subnets.
fn nodes() -> Vec<World> {
    let flags = [0, SettingsFlags::BYPASS].map(|flag| [flag, flag | SettingsFlags::EXIT_CHECK]);
    let node = |flags| {
        let mut world = open_node();
        world.settings.flags = flags;
        for class in world.prefixes.values_mut() {
            if *class & PrefixClass::PODS != 0 {
                *class |= PrefixClass::COMPLETE;
            }
        }
        for family in FAMILIES {
            for address in [pod(), other_pod(), no_pod()] {
                world.egress_routes.insert(address[family], BRIDGE);
            }
        }
        world
    };
    flags.into_iter().flatten().map(node).collect()
}

fn bodies() -> [Body; 3] {
    [
        Body::Udp(40_000, 53, b"probe".to_vec()),
        Body::Tcp(40_000, 53, flag::SYN, vec![]),
        Body::Other(47, b"probe".to_vec()),
    ]
}

fn from_pod(world: &World, frame: Frame, next: Mac) -> Verdict {
    let mut bytes = frame.sent_by(mac()).bytes();
    bytes[..6].copy_from_slice(&next.bytes());
    let mut simulator = Simulator::new(world.clone());
    let (first, _) = simulator.run(Place::FromPod, INTERFACE, &bytes);
    let (second, _) = simulator.run(Place::FromPod, INTERFACE, &bytes);
    assert_eq!(first, second, "the cache agrees");
    first
}

fn from_outside(world: &World, frame: &Frame) -> Verdict {
    let mut simulator = Simulator::new(world.clone());
    simulator.run(Place::UplinkIn, UPLINK, &frame.bytes()).0
}

#[test]
fn packets_to_addresses_without_a_pod_are_dropped_where_all_are_known() {
    for world in nodes() {
        for family in FAMILIES {
            for body in bodies() {
                let [own, from, to] = [pod(), remote(), no_pod()].map(|both| both[family]);
                let frame = Frame::new(own, to, body.clone());
                assert_eq!(from_pod(&world, frame, bridge_mac()), UNKNOWN);
                let frame = Frame::new(from, to, body);
                assert_eq!(from_outside(&world, &frame), UNKNOWN);
            }
        }
    }
}

#[test]
fn packets_pass_to_pods_to_the_node_and_to_neighbours_on_the_bridge() {
    for world in nodes() {
        for family in FAMILIES {
            for body in bodies() {
                let frame = |from, to| Frame::new(from, to, body.clone());
                let own = pod()[family];
                for to in [other_pod(), gateway(), node(), remote()] {
                    let verdict = from_pod(&world, frame(own, to[family]), bridge_mac());
                    assert!(!matches!(verdict, Verdict::Drop(_)), "{verdict:?}");
                }
                // The bridge forwards the frame, and the node does not resolve the address.
                let verdict = from_pod(&world, frame(own, no_pod()[family]), other_mac());
                assert_eq!(verdict, Verdict::Pass);
                for to in [other_pod(), node(), gateway()] {
                    let frame = frame(remote()[family], to[family]);
                    let verdict = from_outside(&world, &frame);
                    assert!(!matches!(verdict, Verdict::Drop(_)), "{verdict:?}");
                }
            }
        }
    }
}

/// Other software may have the addresses, or the node's own stack: broadcast and anycast addresses.
#[test]
fn packets_pass_where_not_all_addresses_are_known_or_nothing_is_resolved() {
    for mut world in nodes() {
        let mut local = world.clone();
        local.egress_routes.clear();
        for class in world.prefixes.values_mut() {
            *class &= !PrefixClass::COMPLETE;
        }
        for family in FAMILIES {
            let [own, from, to] = [pod(), remote(), no_pod()].map(|both| both[family]);
            for body in bodies() {
                for world in [&world, &local] {
                    let frame = Frame::new(own, to, body.clone());
                    assert_eq!(from_pod(world, frame, bridge_mac()), Verdict::Pass);
                    let frame = Frame::new(from, to, body.clone());
                    assert_eq!(from_outside(world, &frame), Verdict::Pass);
                }
            }
        }
    }
}

/// Payloads that fit the other pod's link, and that do not.
const LENGTHS: [usize; 2] = [100, 1_000];
/// MTU of the other pod's link.
const MTU: u32 = 500;

/// Returns the MAC addresses to which frames with these payloads are passed, which the pod has sent
/// to the other pod directly, fragments included.
fn next_hops(world: &World, family: usize, length: usize) -> Vec<Mac> {
    let body = Body::Udp(40_000, 53, vec![7; length]);
    let frame = Frame::new(pod()[family], other_pod()[family], body).from_to(mac(), other_mac());
    let mut simulator = Simulator::new(world.clone());
    let mut frames = vec![frame.bytes(), frame.bytes()];
    frames.extend(frame.fragments(7, 64));
    frames
        .iter()
        .map(|bytes| {
            let (verdict, bytes) = simulator.run(Place::FromPod, INTERFACE, bytes);
            let passes = matches!(verdict, Verdict::Pass | Verdict::RedirectPeer(_));
            assert!(passes, "{verdict:?}");
            Mac::new(bytes[..6].try_into().expect("a MAC address"))
        })
        .collect()
}

#[test]
fn a_frame_that_exceeds_the_mtu_of_a_pod_on_the_bridge_goes_to_the_node() {
    for mut world in nodes() {
        world.mtus.extend([(OTHER_INTERFACE, MTU), (BRIDGE, MTU)]);
        for family in FAMILIES {
            let [own, of_bridge] = [other_mac(), bridge_mac()];
            // All fragments take one path.
            let small = next_hops(&world, family, LENGTHS[0]);
            assert_eq!(small, [own, own, of_bridge, of_bridge]);
            let large = next_hops(&world, family, LENGTHS[1]);
            assert_eq!(large, [of_bridge; 4]);
        }
    }
}

/// The bridge forwards the frame if the node would not report the MTU, and if the receiver would
/// take what the node forwards for a duplicate.
#[test]
fn a_frame_to_a_pod_on_the_bridge_is_not_changed_where_the_node_reports_nothing() {
    for world in nodes() {
        let mut equal = world.clone();
        let mut unrouted = world.clone();
        let mut wide_route = world.clone();
        let mut promiscuous = world;
        let narrow = [(OTHER_INTERFACE, MTU), (BRIDGE, MTU)];
        equal.mtus.extend(narrow);
        equal.mtus.insert(INTERFACE, MTU);
        unrouted.mtus.extend(narrow);
        unrouted.egress_routes.clear();
        wide_route.mtus.insert(OTHER_INTERFACE, MTU);
        promiscuous.mtus.extend(narrow);
        promiscuous.settings.flags |= SettingsFlags::DUPLICATES;
        for world in [equal, unrouted, wide_route, promiscuous] {
            for family in FAMILIES {
                for length in LENGTHS {
                    assert_eq!(next_hops(&world, family, length), [other_mac(); 4]);
                }
            }
        }
    }
}
