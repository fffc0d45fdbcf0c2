//! Tests of packets to addresses of pod subnets that no pod has.

use abi::{DropReason, PrefixClass, SettingsFlags};

use crate::bypass::tests::{UPLINK, open_node};
use crate::outcome::Verdict;
use crate::simulator::example::{
    BRIDGE, FAMILIES, INTERFACE, bridge_mac, gateway, mac, no_pod, node, other_mac, other_pod, pod,
    remote,
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

fn from_pod(world: &World, frame: Frame, next: abi::Mac) -> Verdict {
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
