//! Tests of the flow cache: a node with it behaves as one without.

use std::fmt::Debug;

use abi::{
    Address, DropReason, EndpointFlags, Family, Flow, HostportKey, Port, SettingsFlags, Tuple,
    protocol,
};

use self::events::{PUBLISHED, change};
use super::MAX_AGE;
use crate::bypass::tests::{UPLINK, open_node};
use crate::node::{Node as _, Socket};
use crate::outcome::Verdict;
use crate::simulator::example::{
    FAMILIES, HOSTPORT, INTERFACE, OTHER_INTERFACE, OTHER_POD, POD, bridge_mac, friend, mac, node,
    other_mac, other_pod, pod, remote,
};
use crate::simulator::frame::{Body, Frame, answer, answer_to_uplink, flag};
use crate::simulator::{JIFFY, Place, Simulator, World};

mod cache_keys;
mod events;
mod high_traffic;
mod lifetimes;
mod new_flows;
mod uplink_handoff;

/// Two nodes that receive the same packets, one with and one without flow cache.
struct Twins {
    with: Simulator,
    without: Simulator,
}

impl Twins {
    fn new(world: World) -> Self {
        let mut without = Simulator::new(world.clone());
        without.world.memory.disabled = true;
        Self {
            with: Simulator::new(world),
            without,
        }
    }

    /// Returns verdict and frame of a packet; fails if the two nodes differ.
    fn run(&mut self, place: Place, interface: u32, bytes: &[u8]) -> (Verdict, Vec<u8>) {
        let run = |node: &mut Simulator| node.run(place, interface, bytes);
        self.both(run, &format!("{place:?} at {interface}: {bytes:02x?}"))
    }

    /// Runs `act` on both nodes and returns its result; fails if results, flows or counters differ.
    fn both<T: PartialEq + Debug>(&mut self, act: impl Fn(&mut Simulator) -> T, what: &str) -> T {
        let (one, other) = (act(&mut self.with), act(&mut self.without));
        assert_eq!(one, other, "{what}");
        assert_eq!(self.with.world.counters, self.without.world.counters);
        assert_eq!(self.with.world.drops, self.without.world.drops);
        assert_eq!(self.with.world.live, self.without.world.live);
        for (one, other) in flows(&self.with).iter().zip(flows(&self.without)) {
            assert_eq!(*one, other);
        }
        assert_eq!(self.with.world.flows.len(), self.without.world.flows.len());
        one
    }

    /// Sends a pod's packet through all hooks; returns the frame if it leaves the node.
    fn send(&mut self, from: u32, bytes: &[u8]) -> Option<Vec<u8>> {
        let what = format!("from {from}: {bytes:02x?}");
        let (left, _, bytes) = self.both(|node| go(node, from, bytes), &what);
        left.then_some(bytes)
    }

    fn change(&mut self, change: impl Fn(&mut World)) {
        change(&mut self.with.world);
        change(&mut self.without.world);
    }

    fn wait(&mut self, nanoseconds: u64) {
        self.change(|world| {
            world.clock += nanoseconds;
            world.now = u32::try_from(world.clock / 1_000_000_000).expect("a short life");
        });
    }

    fn taken(&self) -> u64 {
        self.with.world.memory.hits
    }
}

/// Returns the flows without the time of their last packet, which the flow cache rounds.
fn flows(simulator: &Simulator) -> Vec<(Tuple, Flow)> {
    simulator
        .world
        .counted_flows()
        .into_iter()
        .map(blurred)
        .collect()
}

fn blurred((key, flow): (Tuple, Flow)) -> (Tuple, Flow) {
    let flow = Flow {
        last_seen: 0,
        ..flow
    };
    (key, flow)
}

/// Sends a pod's packet through the hooks; returns whether it leaves, last verdict and frame.
fn go(node: &mut Simulator, from: u32, bytes: &[u8]) -> (bool, Verdict, Vec<u8>) {
    let (verdict, mut bytes) = node.run(Place::FromPod, from, bytes);
    let (verdict, bytes) = match verdict {
        Verdict::Pass if bytes[..6] == bridge_mac().bytes() => {
            node.run(Place::UplinkOut, UPLINK, &bytes)
        }
        Verdict::RedirectNeigh(uplink) => {
            address(&mut bytes, node);
            node.run_next(Place::UplinkOut, uplink, &bytes)
        }
        Verdict::Redirect(uplink) => {
            let after = node.run_next(Place::UplinkOut, uplink, &bytes);
            assert_eq!(after, (Verdict::Pass, bytes), "all is done");
            after
        }
        Verdict::Pass | Verdict::Drop(_) | Verdict::RedirectPeer(_) | Verdict::Consume => {
            return (false, verdict, bytes);
        }
    };
    (verdict == Verdict::Pass, verdict, bytes)
}

/// Writes the MAC addresses as the kernel's redirect does; marked packets have another neighbour.
fn address(frame: &mut [u8], node: &Simulator) {
    let [.., last] = node.next_hop().words();
    let last = last ^ node.world.mark;
    frame[2..6].copy_from_slice(&last.to_ne_bytes());
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
}

fn to_neighbour(family: usize, body: Body) -> Vec<u8> {
    let frame = Frame::new(pod()[family], other_pod()[family], body);
    frame.from_to(mac(), other_mac()).bytes()
}

fn to_world(family: usize, body: Body) -> Vec<u8> {
    let frame = Frame::new(pod()[family], remote()[family], body);
    frame.from_to(mac(), bridge_mac()).bytes()
}

fn to_friend(family: usize, body: Body) -> Vec<u8> {
    let frame = Frame::new(pod()[family], friend()[family], body);
    frame.from_to(mac(), bridge_mac()).bytes()
}

/// Returns the pod's reply, sent through its gateway.
fn pods_answer(delivered: &[u8]) -> Vec<u8> {
    let mut back = answer(delivered);
    back[..6].copy_from_slice(&bridge_mac().bytes());
    back[6..12].copy_from_slice(&mac().bytes());
    back
}

fn to_hostport(family: usize, body: Body) -> Vec<u8> {
    Frame::new(remote()[family], node()[family], body).bytes()
}

fn udp(source: u16, destination: u16) -> Body {
    Body::Udp(source, destination, b"payload".to_vec())
}

fn tcp(source: u16, destination: u16, flags: u8) -> Body {
    Body::Tcp(source, destination, flags, b"payload".to_vec())
}

#[test]
fn the_second_packet_of_each_kind_hits_the_flow_cache() {
    for family in FAMILIES {
        for body in [udp, |from, to| tcp(from, to, flag::ACK)] {
            let mut twins = Twins::new(open_node());
            let out = to_world(family, body(40_000, 53));
            let left = twins.send(INTERFACE, &out).expect("it leaves");
            for bytes in [&out, &out] {
                twins.send(INTERFACE, bytes);
            }
            assert_eq!(twins.taken(), 3, "the uplink's program needs to see a flow");
            for _ in 0..2 {
                let back = answer_to_uplink(&left);
                let (verdict, _) = twins.run(Place::UplinkIn, UPLINK, &back);
                assert_eq!(verdict, Verdict::RedirectPeer(INTERFACE));
                twins.send(INTERFACE, &to_neighbour(family, body(1, 2)));
            }
            assert_eq!(twins.taken(), 5);
        }
    }
}

/// Returns a node whose pods exchange packets with [`friend`] without a flow.
fn node_with_friend() -> World {
    let mut world = open_node();
    for address in friend() {
        world.egress_routes.insert(address, UPLINK);
    }
    world
}

#[test]
fn packets_that_need_no_flow_hit_the_flow_cache_unless_the_pod_is_published() {
    for family in FAMILIES {
        for (published, entering, leaving) in [(false, 2, 4), (true, 0, 2)] {
            let mut twins = Twins::new(node_with_friend());
            if published {
                twins.change(|world| change(world, PUBLISHED));
            }
            let body = |from, to| tcp(from, to, flag::ACK);
            let enter = Frame::new(friend()[family], pod()[family], body(53, 40_000)).bytes();
            for _ in 0..3 {
                twins.run(Place::UplinkIn, UPLINK, &enter);
            }
            assert_eq!(twins.taken(), entering, "{published}");
            for _ in 0..3 {
                let left = twins.send(INTERFACE, &to_friend(family, body(40_000, 53)));
                assert!(left.is_some());
            }
            assert_eq!(twins.taken(), entering + leaving, "{published}");
        }
    }
}

#[test]
fn packets_with_syn_fin_or_rst_do_not_hit_the_flow_cache() {
    for family in FAMILIES {
        let mut twins = Twins::new(open_node());
        let packet = |flags| to_world(family, tcp(40_000, 80, flags));
        for _ in 0..3 {
            twins.send(INTERFACE, &packet(flag::ACK));
        }
        let taken = twins.taken();
        assert!(taken > 0);
        for flags in [flag::SYN, flag::FIN, flag::RST, flag::SYN | flag::ACK, 0] {
            twins.send(INTERFACE, &packet(flags));
            assert_eq!(twins.taken(), taken);
        }
    }
}

#[test]
fn a_packet_with_another_mark_misses_the_flow_cache() {
    let mut twins = Twins::new(open_node());
    for (mark, taken) in [(0, 0), (0, 1), (7, 1), (7, 2)] {
        twins.change(|world| world.mark = mark);
        twins.run(Place::FromPod, INTERFACE, &to_world(0, udp(1, 2)));
        assert_eq!(twins.taken(), taken);
    }
}

#[test]
fn a_larger_packet_and_a_spoofed_one_miss_the_flow_cache() {
    let mut twins = Twins::new(open_node());
    twins.change(|world| {
        world.mtus.insert(OTHER_INTERFACE, 100);
    });
    for _ in 0..2 {
        twins.send(INTERFACE, &to_neighbour(0, udp(1, 2)));
    }
    let large = Body::Udp(1, 2, vec![0; 200]);
    let (verdict, _) = twins.run(Place::FromPod, INTERFACE, &to_neighbour(0, large));
    assert_eq!(
        verdict,
        Verdict::Pass,
        "the stack reports the MTU to the sender"
    );
    let mut forged = to_neighbour(0, udp(1, 2));
    forged[6] ^= 2;
    let (verdict, _) = twins.run(Place::FromPod, INTERFACE, &forged);
    assert_eq!(verdict, Verdict::Drop(DropReason::SpoofedMac));
    assert_eq!(twins.taken(), 1);
}

#[test]
fn the_flow_cache_serves_packets_that_take_the_stack_except_with_exit_check() {
    for guarded in [false, true] {
        let mut world = open_node();
        world.settings.flags &= !SettingsFlags::BYPASS;
        if guarded {
            world.settings.flags |= SettingsFlags::EXIT_CHECK;
        }
        let mut twins = Twins::new(world);
        for _ in 0..2 {
            twins.send(INTERFACE, &to_neighbour(0, udp(1, 2)));
        }
        assert_eq!(twins.taken(), 1);
        for _ in 0..2 {
            twins.send(INTERFACE, &to_world(0, udp(1, 2)));
        }
        assert_eq!(twins.taken(), if guarded { 1 } else { 2 });
    }
}

#[test]
fn a_removed_or_replaced_flow_misses_the_flow_cache() {
    // The pod's hook hits from the second packet on, the uplink's from the third.
    let taken = |twins: &mut Twins| {
        let before = twins.taken();
        let packet = to_world(0, udp(40_000, 53));
        twins.send(INTERFACE, &packet).expect("it leaves");
        twins.taken() - before
    };
    let mut twins = Twins::new(open_node());
    let thrice = |twins: &mut Twins| [taken(twins), taken(twins), taken(twins)];
    assert_eq!(thrice(&mut twins), [0, 1, 2]);
    twins.change(|world| {
        let keys: Vec<Tuple> = world.flows.keys().copied().collect();
        for key in &keys {
            world.remove_flow(key);
        }
    });
    assert_eq!(thrice(&mut twins), [0, 1, 2]);
}

#[test]
fn packets_for_a_socket_of_the_node_are_not_cached() {
    let mut world = open_node();
    world.settings.flags &= !SettingsFlags::BYPASS;
    let asked = Frame::new(other_pod()[0], node()[0], udp(40_000, HOSTPORT));
    let packet = asked.from_to(other_mac(), bridge_mac()).bytes();
    let listens = Tuple {
        source: other_pod()[0],
        destination: node()[0],
        source_port: Port::new(40_000),
        destination_port: Port::new(HOSTPORT),
        protocol: protocol::UDP,
        reserved: [0; 3],
    };
    world.sockets.insert(listens, Socket::Connected);
    let mut twins = Twins::new(world);
    for _ in 0..2 {
        let (verdict, _) = twins.run(Place::FromPod, OTHER_INTERFACE, &packet);
        assert_eq!(verdict, Verdict::Pass);
    }
    twins.change(|world| world.sockets.clear());
    let (verdict, _) = twins.run(Place::FromPod, OTHER_INTERFACE, &packet);
    assert_eq!(verdict, Verdict::RedirectPeer(INTERFACE));
}

/// Fourteen bytes after the start of this packet the bytes look like a second IP header.
#[test]
fn on_links_without_ethernet_no_ip_packet_is_parsed_as_a_frame() {
    const PORT: u16 = 0x1f11;
    let mut world = open_node();
    let published = HostportKey::wildcard(Family::V4, Port::new(HOSTPORT), protocol::UDP);
    let hostport = world.hostports[&published];
    let key = HostportKey::wildcard(Family::V4, Port::new(PORT), protocol::UDP);
    world.hostports.insert(key, hostport);
    world.settings.flags &= !SettingsFlags::BYPASS;
    world.uplinks.get_mut(&UPLINK).expect("an uplink").l2_len = 0;
    let mut twins = Twins::new(world);
    let body = Body::Udp(0x4000, PORT, vec![0; 50_000]);
    let packet = Frame::new(Address::v4([8, 0, 0x45, 7]), node()[0], body).packet();
    for _ in 0..3 {
        let (verdict, _) = twins.run(Place::UplinkIn, UPLINK, &packet);
        assert_eq!(verdict, Verdict::Pass);
    }
    assert_eq!(twins.taken(), 0);
}

#[test]
fn packets_of_a_limited_pod_do_not_hit_the_flow_cache() {
    for limited in [POD, OTHER_POD] {
        let mut world = open_node();
        let of = |pod| {
            if pod == POD {
                INTERFACE
            } else {
                OTHER_INTERFACE
            }
        };
        if let Some(interface) = world.interfaces.get_mut(&of(limited)) {
            interface.flags |= EndpointFlags::LIMITED;
        }
        for endpoint in world.endpoints.values_mut().filter(|it| it.pod == limited) {
            endpoint.flags |= EndpointFlags::LIMITED;
        }
        let mut twins = Twins::new(world);
        for _ in 0..3 {
            twins.send(INTERFACE, &to_neighbour(0, udp(1, 2)));
        }
        assert_eq!(twins.taken(), 0);
    }
}
