//! Random events on a node with flow cache and one without.

use abi::{EndpointFlags, SettingsFlags};
use proptest::prelude::*;

use super::{
    Twins, node_with_friend, pods_answer, tcp, to_friend, to_hostport, to_neighbour, to_world, udp,
};
use crate::bypass::tests::UPLINK;
use crate::outcome::Verdict;
use crate::simulator::example::{
    HOSTPORT, INTERFACE, OTHER_INTERFACE, OTHER_POD, POD_PORT, bridge_mac, friend, mac, node,
    other_mac, other_pod, pod, remote,
};
use crate::simulator::frame::{Body, Frame, answer_to_uplink, flag};
use crate::simulator::{Place, World};

/// An event on a node.
#[derive(Clone, Debug)]
enum Event {
    Out(usize, u16, u8),
    Back(usize),
    Neighbour(usize, u16, u8),
    FromNeighbour(usize, u16, u8),
    Hostport(usize, u16, u8),
    FriendToHostport(usize, u16, u8),
    FromFriend(usize, u16, u8),
    ToFriend(usize, u16, u8),
    DialHostport(usize, u16, u8),
    Wait(u64),
    Sweep,
    TableChange(u8),
}

fn event() -> impl Strategy<Value = Event> {
    let family = || 0..2_usize;
    let port = || 40_000..40_003_u16;
    // Flags 0 stand for UDP.
    let body = || prop_oneof![4 => Just(0_u8), 6 => Just(flag::ACK), 2 => Just(flag::SYN), 1 => Just(flag::FIN | flag::ACK), 1 => Just(flag::RST)];
    prop_oneof![
        6 => (family(), port(), body()).prop_map(|(family, port, body)| Event::Out(family, port, body)),
        6 => (0..8_usize).prop_map(Event::Back),
        4 => (family(), port(), body()).prop_map(|(family, port, body)| Event::Neighbour(family, port, body)),
        4 => (family(), port(), body()).prop_map(|(family, port, body)| Event::FromNeighbour(family, port, body)),
        6 => (family(), port(), body()).prop_map(|(family, port, body)| Event::Hostport(family, port, body)),
        3 => (family(), port(), body()).prop_map(|(family, port, body)| Event::FriendToHostport(family, port, body)),
        4 => (family(), port(), body()).prop_map(|(family, port, body)| Event::FromFriend(family, port, body)),
        4 => (family(), port(), body()).prop_map(|(family, port, body)| Event::ToFriend(family, port, body)),
        3 => (family(), port(), body()).prop_map(|(family, port, body)| Event::DialHostport(family, port, body)),
        2 => (0..100_000_000_u64).prop_map(Event::Wait),
        1 => Just(Event::Wait(70_000_000_000)),
        1 => Just(Event::Sweep),
        1 => any::<u8>().prop_map(Event::TableChange),
    ]
}

fn body(source: u16, destination: u16, kind: u8) -> Body {
    match kind {
        0 => udp(source, destination),
        flags => tcp(source, destination, flags),
    }
}

/// The [`change`] that publishes pods, or ends that.
pub(super) const PUBLISHED: u8 = 2;

/// Returns whether pods are published: the agent writes no hostport of a pod that is not.
fn is_published(world: &World) -> bool {
    let mut endpoints = world.endpoints.values();
    endpoints.any(|it| it.flags & EndpointFlags::PUBLISHED != 0)
}

/// Changes one table; the same change applied twice restores it.
pub(super) fn change(world: &mut World, which: u8) {
    let pod = world.pods.get_mut(OTHER_POD as usize).expect("a pod");
    match which % 8 {
        6 => world.settings.flags ^= SettingsFlags::EXIT_CHECK,
        7 => {
            for address in remote() {
                if world.egress_routes.remove(&address).is_none() {
                    world.egress_routes.insert(address, UPLINK);
                }
            }
        }
        0 => world.settings.flags ^= SettingsFlags::BYPASS,
        1 => pod.generation ^= 1,
        PUBLISHED => {
            for endpoint in world.endpoints.values_mut() {
                endpoint.flags ^= EndpointFlags::PUBLISHED;
            }
        }
        3 => pod.flags ^= EndpointFlags::BYPASS,
        4 => {
            for address in node() {
                if !world.locals.remove(&address) {
                    world.locals.insert(address);
                }
            }
        }
        _ => {
            if world.mtus.remove(&OTHER_INTERFACE).is_none() {
                world.mtus.insert(OTHER_INTERFACE, 40);
            }
        }
    }
}

/// Applies the event to both nodes; `left` holds frames that wait for their replies.
fn apply_event(twins: &mut Twins, left: &mut Vec<Vec<u8>>, event: &Event) {
    match *event {
        Event::Out(family, port, kind) => {
            left.extend(twins.send(INTERFACE, &to_world(family, body(port, 53, kind))));
        }
        Event::Back(which) => {
            if let Some(frame) = left.iter().rev().nth(which).cloned() {
                twins.run(Place::UplinkIn, UPLINK, &answer_to_uplink(&frame));
            }
        }
        Event::Neighbour(family, port, kind) => {
            twins.send(INTERFACE, &to_neighbour(family, body(port, 80, kind)));
        }
        Event::FromNeighbour(family, port, kind) => {
            let to = Frame::new(other_pod()[family], pod()[family], body(80, port, kind))
                .from_to(other_mac(), mac());
            twins.send(OTHER_INTERFACE, &to.bytes());
        }
        Event::Hostport(family, port, kind) => {
            let frame = to_hostport(family, body(port, HOSTPORT, kind));
            let (verdict, bytes) = twins.run(Place::UplinkIn, UPLINK, &frame);
            if !matches!(verdict, Verdict::Drop(_)) {
                twins.send(INTERFACE, &pods_answer(&bytes));
            }
        }
        Event::FriendToHostport(family, port, kind) if is_published(&twins.with.world) => {
            let body = body(port, HOSTPORT, kind);
            let frame = Frame::new(friend()[family], node()[family], body).bytes();
            let (verdict, bytes) = twins.run(Place::UplinkIn, UPLINK, &frame);
            if !matches!(verdict, Verdict::Drop(_)) {
                twins.send(INTERFACE, &pods_answer(&bytes));
            }
        }
        Event::FriendToHostport(..) => {}
        Event::FromFriend(family, port, kind) => {
            let body = body(port, POD_PORT, kind);
            let frame = Frame::new(friend()[family], pod()[family], body);
            twins.run(Place::UplinkIn, UPLINK, &frame.bytes());
        }
        Event::ToFriend(family, port, kind) => {
            twins.send(INTERFACE, &to_friend(family, body(POD_PORT, port, kind)));
        }
        Event::DialHostport(family, port, kind) => {
            let body = body(port, HOSTPORT, kind);
            let frame = Frame::new(other_pod()[family], node()[family], body)
                .from_to(other_mac(), bridge_mac());
            twins.send(OTHER_INTERFACE, &frame.bytes());
        }
        Event::Wait(nanoseconds) => twins.wait(nanoseconds),
        Event::Sweep => {
            assert_eq!(twins.with.sweep(), twins.without.sweep());
        }
        Event::TableChange(which) => twins.change(|world| change(world, which)),
    }
}

proptest! {
    #[test]
    fn a_node_with_flow_cache_behaves_as_one_without(
        happenings in prop::collection::vec(event(), 1..120),
        young in prop_oneof![Just(0), Just(3), Just(u64::MAX)],
        busy in any::<bool>(),
        reported in any::<bool>(),
    ) {
        let mut world = node_with_friend();
        if reported {
            world.memory.events_valid_until = u64::MAX;
        }
        (world.memory.cache_threshold, world.memory.tcx_fast_path) = (young, busy);
        let mut twins = Twins::new(world);
        let mut left = Vec::new();
        for event in &happenings {
            apply_event(&mut twins, &mut left, event);
        }
    }
}
