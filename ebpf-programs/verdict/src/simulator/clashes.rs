//! Tests of clashing tuples: one client address and port, by several addresses of the same pod.

use abi::{Address, HostportKey, Port, protocol};
use proptest::prelude::*;

use super::example::{
    BRIDGE, HOSTPORT, INTERFACE, OTHER_INTERFACE, OTHER_POD, POD_PORT, bridge_mac, gateway, mac,
    node, other_mac, other_pod, pod, remote, world,
};
use super::frame::{Body, Frame, flag};
use super::{Place, Simulator};
use crate::node::Socket;
use crate::outcome::Verdict;

/// Second hostport of the pod's port.
const SECOND_HOSTPORT: u16 = 8081;

/// Returns a second address of the node on its uplink.
fn second_node() -> [Address; 2] {
    let v6 = std::net::Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2);
    [Address::v4([192, 0, 2, 2]), Address::v6(v6.octets())]
}

/// Returns the example node with a second address, and with a second hostport of the pod's port.
fn simulator() -> Simulator {
    let mut world = world();
    world.locals.extend(second_node());
    for address in pod() {
        for number in [protocol::TCP, protocol::UDP] {
            let family = address.family();
            let first = HostportKey::wildcard(family, Port::new(HOSTPORT), number);
            let second = HostportKey::wildcard(family, Port::new(SECOND_HOSTPORT), number);
            let hostport = world.hostports[&first];
            world.hostports.insert(second, hostport);
        }
    }
    Simulator::new(world)
}

/// Moves the other pod to a network of its own with this MTU, to which the node has routes.
fn narrow(simulator: &mut Simulator, mtu: u32) {
    let world = &mut simulator.world;
    let bridge = BRIDGE + 1;
    world.mtus.extend([(OTHER_INTERFACE, mtu), (bridge, mtu)]);
    let routes = other_pod().map(|address| (address, bridge));
    world.egress_routes.extend(routes);
    world.pods[OTHER_POD as usize].network = bridge;
    let network = world.networks[&BRIDGE];
    world.networks.insert(bridge, network);
}

/// Who dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Client {
    /// A host outside.
    Outside,
    /// Another pod of the node.
    OtherPod,
    /// The pod itself.
    Itself,
}

/// A flow that a client opens: by its own address and port, to one address of the pod's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Dial {
    client: Client,
    family: usize,
    udp: bool,
    port: u16,
    /// The node's first address and both hostports, its second address, and the pod's own.
    target: usize,
}

fn dial() -> impl Strategy<Value = Dial> {
    let client = prop_oneof![
        Just(Client::Outside),
        Just(Client::OtherPod),
        Just(Client::Itself)
    ];
    (client, 0..2_usize, any::<bool>(), 0..2_u16, 0..4_usize).prop_map(
        |(client, family, udp, port, target)| Dial {
            client,
            family,
            udp,
            port: 40_000 + port,
            // A pod does not reach its own address by the node.
            target: target % if client == Client::Itself { 3 } else { 4 },
        },
    )
}

impl Dial {
    fn address(&self) -> Address {
        match self.client {
            Client::Outside => remote()[self.family],
            Client::OtherPod => other_pod()[self.family],
            Client::Itself => pod()[self.family],
        }
    }

    fn target(&self) -> (Address, u16) {
        match self.target {
            0 => (node()[self.family], HOSTPORT),
            1 => (node()[self.family], SECOND_HOSTPORT),
            2 => (second_node()[self.family], HOSTPORT),
            _ => (pod()[self.family], POD_PORT),
        }
    }

    fn body(&self, from: u16, to: u16, flags: u8) -> Body {
        if self.udp {
            Body::Udp(from, to, b"payload".to_vec())
        } else {
            Body::Tcp(from, to, flags, vec![])
        }
    }

    /// The body of a packet of an open flow that is longer than [`NARROW`].
    fn large_body(&self, from: u16, to: u16) -> Body {
        let payload = vec![7; 400];
        if self.udp {
            Body::Udp(from, to, payload)
        } else {
            Body::Tcp(from, to, flag::ACK, payload)
        }
    }

    /// Sends the first packet; returns the client's address and port as the pod sees them.
    fn open(&self, simulator: &mut Simulator) -> (Address, u16) {
        let (target, port) = self.target();
        let body = self.body(self.port, port, flag::SYN);
        let frame = Frame::new(self.address(), target, body);
        let (place, interface, frame) = match self.client {
            Client::Outside => (Place::UplinkIn, INTERFACE, frame),
            Client::OtherPod => {
                let frame = frame.from_to(other_mac(), bridge_mac());
                (Place::FromPod, OTHER_INTERFACE, frame)
            }
            Client::Itself => {
                let frame = frame.from_to(mac(), bridge_mac());
                (Place::FromPod, INTERFACE, frame)
            }
        };
        let (verdict, packet) = simulator.run(place, interface, &frame.bytes());
        assert!(
            !matches!(verdict, Verdict::Drop(_)),
            "{self:?}: {verdict:?}"
        );
        let (source, destination) = ends(&packet, self.family);
        assert_eq!(destination, (pod()[self.family], POD_PORT), "{self:?}");
        source
    }

    /// Sends the pod's reply to the client as the pod sees it; returns source and destination of
    /// the packet that the client receives.
    fn reply(&self, simulator: &mut Simulator, seen: (Address, u16)) -> [(Address, u16); 2] {
        let body = self.body(POD_PORT, seen.1, flag::SYN | flag::ACK);
        let frame = Frame::new(pod()[self.family], seen.0, body).from_to(mac(), bridge_mac());
        let (verdict, mut packet) = simulator.run(Place::FromPod, INTERFACE, &frame.bytes());
        assert!(
            !matches!(verdict, Verdict::Drop(_)),
            "{self:?}: {verdict:?}"
        );
        if self.client == Client::Outside {
            let (verdict, out) = simulator.run(Place::UplinkOut, INTERFACE, &packet);
            assert_eq!(verdict, Verdict::Pass, "{self:?}");
            packet = out;
        }
        let (source, destination) = ends(&packet, self.family);
        [source, destination]
    }
}

/// MTU of a network that is smaller than a large packet.
const NARROW: u32 = 200;
/// Where the second fragment of a large packet begins, behind the IP header.
const CUT: usize = 160;

impl Dial {
    /// Sends a large reply of the pod, in fragments of the pod or of the stack. Returns source and
    /// destination of what the client receives.
    fn large_reply(
        &self,
        simulator: &mut Simulator,
        seen: (Address, u16),
        identification: u32,
        by_stack: bool,
    ) -> [(Address, u16); 2] {
        let server = pod()[self.family];
        let frame = Frame::new(server, seen.0, self.large_body(POD_PORT, seen.1))
            .from_to(mac(), bridge_mac());
        if !by_stack {
            let pieces = frame.fragments(identification, CUT);
            return self.received(simulator, &pieces);
        }
        let (verdict, packet) = simulator.run(Place::FromPod, INTERFACE, &frame.bytes());
        let (source, destination) = ends(&packet, self.family);
        if matches!(verdict, Verdict::RedirectPeer(_)) {
            return [source, destination];
        }
        assert_eq!(verdict, Verdict::Pass, "{self:?}");
        let body = self.large_body(source.1, destination.1);
        let forwarded = Frame::new(source.0, destination.0, body);
        let pieces = forwarded
            .fragments(identification, CUT)
            .map(|piece| simulator.run_next(Place::ToPod, OTHER_INTERFACE, &piece));
        self.ends_of_fragments(pieces)
    }

    /// Runs the pod's fragments through its hook, and through that by which they leave.
    fn received(&self, simulator: &mut Simulator, pieces: &[Vec<u8>; 2]) -> [(Address, u16); 2] {
        let pieces = pieces.each_ref().map(|piece| {
            let (verdict, packet) = simulator.run(Place::FromPod, INTERFACE, piece);
            match (self.client, verdict) {
                (_, Verdict::RedirectPeer(_)) => (verdict, packet),
                (Client::Outside, _) => simulator.run_next(Place::UplinkOut, INTERFACE, &packet),
                _ => {
                    assert_eq!(verdict, Verdict::Pass, "{self:?}");
                    simulator.run_next(Place::ToPod, OTHER_INTERFACE, &packet)
                }
            }
        });
        self.ends_of_fragments(pieces)
    }

    /// Sends an error of the pod about the request as the pod sees it. Returns source and
    /// destination of the packet that the error quotes for the client.
    fn quoted(&self, simulator: &mut Simulator, seen: (Address, u16)) -> [(Address, u16); 2] {
        let server = pod()[self.family];
        let request = Frame::new(seen.0, server, self.large_body(seen.1, POD_PORT));
        let quote = request.packet()[..100].to_vec();
        let (icmp_type, code) = [(3, 1), (1, 3)][self.family];
        let error = Body::Icmp(icmp_type, code, [0; 4], quote);
        let frame = Frame::new(server, seen.0, error).from_to(mac(), bridge_mac());
        let (mut verdict, mut packet) = simulator.run(Place::FromPod, INTERFACE, &frame.bytes());
        if verdict == Verdict::Pass {
            let (place, interface) = match self.client {
                Client::Outside => (Place::UplinkOut, INTERFACE),
                Client::OtherPod | Client::Itself => (Place::ToPod, OTHER_INTERFACE),
            };
            (verdict, packet) = simulator.run_next(place, interface, &packet);
        }
        assert!(!matches!(verdict, Verdict::Drop(_)), "{verdict:?}");
        // The headers of the error, but the link layer, which `ends` expects.
        packet.drain(14..[14 + 28, 14 + 48][self.family]);
        let (source, destination) = ends(&packet, self.family);
        [source, destination]
    }

    /// Returns source and destination of both fragments of a packet, which must be the same.
    fn ends_of_fragments(&self, pieces: [(Verdict, Vec<u8>); 2]) -> [(Address, u16); 2] {
        let [first, later] = pieces.map(|(verdict, mut packet)| {
            assert!(!matches!(verdict, Verdict::Drop(_)), "{verdict:?}");
            if self.family == 1 {
                // The fragment header.
                packet.drain(54..62);
            }
            ends(&packet, self.family)
        });
        assert_eq!((first.0.0, first.1.0), (later.0.0, later.1.0), "{self:?}");
        [first.0, first.1]
    }
}

/// Returns source and destination of a frame.
fn ends(packet: &[u8], family: usize) -> ((Address, u16), (Address, u16)) {
    let port = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    if family == 0 {
        let address = |at: usize| Address::v4(packet[at..at + 4].try_into().unwrap());
        ((address(26), port(34)), (address(30), port(36)))
    } else {
        let address = |at: usize| Address::v6(packet[at..at + 16].try_into().unwrap());
        ((address(22), port(54)), (address(38), port(56)))
    }
}

proptest! {
    /// The pod sees each flow of a client as a different one, and no answer leaves from an address
    /// or port that the client did not dial.
    #[test]
    fn each_flow_of_one_client_port_is_answered_from_the_dialled_address(
        dials in prop::collection::vec(dial(), 1..40),
    ) {
        let mut simulator = simulator();
        let mut seen = std::collections::BTreeMap::new();
        for dial in &dials {
            let source = dial.open(&mut simulator);
            let before = *seen.entry(*dial).or_insert(source);
            prop_assert_eq!(before, source, "{:?} changes its port", dial);
            if dial.client == Client::Itself {
                prop_assert_eq!(source.0, gateway()[dial.family]);
            } else {
                prop_assert_eq!(source.0, dial.address());
            }
        }
        let mut sources: Vec<_> = seen.iter().map(|(dial, source)| (dial.udp, *source)).collect();
        sources.sort_unstable();
        sources.dedup();
        prop_assert_eq!(sources.len(), seen.len(), "the pod confuses two flows");
        for (dial, source) in &seen {
            let client = (dial.address(), dial.port);
            prop_assert_eq!(dial.reply(&mut simulator, *source), [dial.target(), client]);
        }
    }
}

proptest! {
    /// Replies in fragments of the pod, and replies that the stack must fragment, reach the client
    /// from the address that it has dialled, whichever other flows have the same tuple before or
    /// after translation. Errors quote that address.
    #[test]
    fn large_replies_and_errors_are_about_the_dialled_address(
        dials in prop::collection::vec(dial(), 1..40),
        mtu in prop_oneof![Just(NARROW), Just(1500)],
    ) {
        let mut simulator = simulator();
        narrow(&mut simulator, mtu);
        let mut seen = std::collections::BTreeMap::new();
        for dial in &dials {
            let source = dial.open(&mut simulator);
            seen.insert(*dial, source);
        }
        for (identification, (dial, source)) in (1..).zip(&seen) {
            let expected = [dial.target(), (dial.address(), dial.port)];
            let id = 2 * identification;
            let received = dial.large_reply(&mut simulator, *source, id, false);
            prop_assert_eq!(received, expected, "{:?}", dial);
            let quoted = dial.quoted(&mut simulator, *source);
            prop_assert_eq!(quoted, [expected[1], expected[0]], "{:?}", dial);
            // Routers do not fragment IPv6 packets.
            if dial.client == Client::OtherPod && dial.family == 0 && mtu == NARROW {
                let received = dial.large_reply(&mut simulator, *source, id + 1, true);
                prop_assert_eq!(received, expected, "{:?}", dial);
            }
        }
    }
}

/// Without a clash the client's port is kept.
#[test]
fn a_client_port_without_a_clash_is_kept() {
    for target in 0..4 {
        for family in [0, 1] {
            let (client, port) = (Client::Outside, 40_000);
            let dial = Dial {
                client,
                family,
                udp: true,
                port,
                target,
            };
            assert_eq!(dial.open(&mut simulator()), (dial.address(), port));
        }
    }
}

/// A flow that the pod has opened to the client is not changed by packets that reach the pod by its
/// own address.
#[test]
fn a_flow_that_the_pod_has_opened_keeps_its_ports() {
    let mut simulator = simulator();
    for family in [0, 1] {
        let (pod, remote) = (pod()[family], remote()[family]);
        let out = Frame::new(pod, remote, Body::Udp(POD_PORT, 40_000, vec![]));
        simulator.run(Place::UplinkOut, INTERFACE, &out.bytes());
        let entering = Frame::new(remote, pod, Body::Udp(40_000, POD_PORT, vec![]));
        let (verdict, packet) = simulator.run(Place::UplinkIn, INTERFACE, &entering.bytes());
        assert_eq!((verdict, packet), (Verdict::Pass, entering.bytes()));
    }
}

/// Echo requests with one identifier, by two pods to one host, get different identifiers.
#[test]
fn echo_requests_of_two_pods_with_one_identifier_are_both_answered() {
    let mut simulator = simulator();
    for family in [0, 1] {
        let (them, us) = (remote()[family], node()[family]);
        let pods = [pod()[family], other_pod()[family]];
        let mut identifiers = Vec::new();
        for pod in pods {
            let request = Frame::new(pod, them, Body::echo_request(&pod, 77));
            let (verdict, packet) = simulator.run(Place::UplinkOut, INTERFACE, &request.bytes());
            assert_eq!(verdict, Verdict::Pass);
            let at = [38, 58][family];
            identifiers.push(u16::from_be_bytes([packet[at], packet[at + 1]]));
        }
        assert_ne!(identifiers[0], identifiers[1]);
        for (pod, identifier) in pods.into_iter().zip(identifiers) {
            let reply = Frame::new(them, us, Body::echo_reply(&us, identifier));
            let (_, packet) = simulator.run(Place::UplinkIn, INTERFACE, &reply.bytes());
            let expected = reply.becoming(them, pod, Body::echo_reply(&pod, 77));
            assert_eq!(packet, expected.bytes());
        }
    }
}

/// A pod that dials its own hostport appears as the gateway, with the port that it has chosen.
/// After its end, a connection of the node to the pod may get that port.
#[test]
fn an_answer_to_the_node_is_not_taken_for_one_of_a_flow_with_the_gateways_address() {
    for family in [0, 1] {
        let mut simulator = simulator();
        let [own, node, gateway] = [pod(), node(), gateway()].map(|both| both[family]);
        let send = |simulator: &mut Simulator, to: Address, ports: [u16; 2], flags: u8| {
            let body = Body::Tcp(ports[0], ports[1], flags, vec![]);
            let frame = Frame::new(own, to, body).from_to(mac(), bridge_mac());
            let bytes = frame.bytes();
            let (verdict, after) = simulator.run(Place::FromPod, INTERFACE, &bytes);
            (verdict, after == bytes)
        };
        send(&mut simulator, node, [40_000, HOSTPORT], flag::SYN);
        let answer = [POD_PORT, 40_000];
        let (_, is_unchanged) = send(&mut simulator, gateway, answer, flag::SYN | flag::ACK);
        assert!(!is_unchanged, "the flow's own answer is translated");
        let connection = abi::Tuple {
            source: own,
            destination: gateway,
            source_port: Port::new(POD_PORT),
            destination_port: Port::new(40_000),
            protocol: protocol::TCP,
            ..abi::Tuple::default()
        };
        simulator
            .world
            .sockets
            .insert(connection, Socket::Connected);
        let after = send(&mut simulator, gateway, answer, flag::SYN | flag::ACK);
        assert_eq!(after, (Verdict::Pass, true), "the node's");
        assert!(simulator.world.flows.is_empty(), "the flow has ended");
    }
}
