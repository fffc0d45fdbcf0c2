//! Tests of what enters the node for a tunnel, and by one.

use abi::{Address, DropReason, Mac, Port, PrefixClass, Tuple, UplinkFlags, protocol};

use crate::bypass::tests::{UPLINK, open_node};
use crate::node::Socket;
use crate::outcome::Verdict;
use crate::simulator::example::{
    FAMILIES, HOSTPORT, INTERFACE, bridge_mac, friend, gateway, mac, node, pod, remote,
};
use crate::simulator::frame::{Body, Frame, flag};
use crate::simulator::{Place, Simulator, World};

/// Interface index of the tunnel.
const TUNNEL: u32 = 40;

/// UDP port of the outer packets.
const PORT: u16 = 8118;

/// A node with a tunnel: [`remote`] is a peer, and [`friend`] one of its pods.
fn tunnel_node() -> World {
    let mut world = open_node();
    let mut tunnel = world.uplinks[&UPLINK];
    tunnel.flags |= UplinkFlags::TUNNEL;
    world.uplinks.insert(TUNNEL, tunnel);
    world.settings.tunnel_port = Port::new(PORT);
    for class in world.prefixes.values_mut() {
        if *class & PrefixClass::NO_MASQUERADE != 0 {
            *class |= PrefixClass::PEER;
        }
    }
    for family in FAMILIES {
        world.tunnel_peers.insert(remote()[family], 1);
        world.egress_routes.insert(friend()[family], TUNNEL);
    }
    world
}

/// Addresses of a machine that is no peer.
fn foreign_sender() -> [Address; 2] {
    let v6: std::net::Ipv6Addr = "2001:db8:bad::66".parse().unwrap();
    [Address::v4([203, 0, 113, 66]), Address::v6(v6.octets())]
}

fn outer() -> Body {
    Body::Udp(50_000, PORT, vec![8; 64])
}

fn question(port: u16) -> Body {
    Body::Udp(7_000, port, b"question".to_vec())
}

fn received(place: u32, frame: &Frame) -> Verdict {
    let mut simulator = Simulator::new(tunnel_node());
    simulator.run(Place::UplinkIn, place, &frame.bytes()).0
}

#[test]
fn outer_packets_of_peers_pass_and_those_of_foreign_senders_are_dropped() {
    for family in FAMILIES {
        let to = node()[family];
        let of_peer = Frame::new(remote()[family], to, outer());
        assert_eq!(received(UPLINK, &of_peer), Verdict::Pass);
        let foreign = Frame::new(foreign_sender()[family], to, outer());
        let dropped = Verdict::Drop(DropReason::TunnelForeignSender);
        assert_eq!(received(UPLINK, &foreign), dropped);
        // Other ports, and other hosts behind this one, are no matter of the tunnel's.
        let other = Frame::new(foreign_sender()[family], to, question(PORT + 1));
        assert_eq!(received(UPLINK, &other), Verdict::Pass);
        let mut world = tunnel_node();
        let distant = friend()[family];
        world.egress_routes.insert(distant, UPLINK);
        let forwarded = Frame::new(foreign_sender()[family], distant, outer()).bytes();
        let verdict = Simulator::new(world).run(Place::UplinkIn, UPLINK, &forwarded);
        assert_eq!(verdict.0, Verdict::Pass);
    }
}

/// The socket of a tunnel receives these as well.
#[test]
fn outer_packets_of_foreign_senders_to_groups_and_broadcasts_are_dropped() {
    let v6: std::net::Ipv6Addr = "ff02::1".parse().unwrap();
    for (source, to) in [
        (foreign_sender()[0], Address::v4([255; 4])),
        (foreign_sender()[0], Address::v4([192, 0, 2, 255])),
        (foreign_sender()[0], Address::v4([224, 0, 0, 1])),
        (foreign_sender()[1], Address::v6(v6.octets())),
    ] {
        let group = Mac::new([0x33, 0x33, 0, 0, 0, 1]);
        let frame = Frame::new(source, to, outer()).from_to(Mac::new([2, 0, 0, 0, 0, 5]), group);
        let verdict = received(UPLINK, &frame);
        assert_eq!(
            verdict,
            Verdict::Drop(DropReason::TunnelForeignSender),
            "{to:?}"
        );
    }
}

#[test]
fn fragments_of_a_foreign_senders_outer_packet_are_dropped() {
    for family in FAMILIES {
        let mut simulator = Simulator::new(tunnel_node());
        let frame = Frame::new(foreign_sender()[family], node()[family], outer());
        for piece in frame.fragments(77, 16) {
            let (verdict, _) = simulator.run(Place::UplinkIn, UPLINK, &piece);
            assert_eq!(verdict, Verdict::Drop(DropReason::TunnelForeignSender));
        }
    }
}

/// A masqueraded packet of a pod would have the address of its node, which is a peer of the others.
#[test]
fn pods_send_nothing_to_the_tunnels_port_of_this_node_or_a_peer() {
    for family in FAMILIES {
        let sent = |to: Address| {
            let mut world = tunnel_node();
            world.egress_routes.insert(foreign_sender()[family], UPLINK);
            let frame = Frame::new(pod()[family], to, outer()).from_to(mac(), bridge_mac());
            let mut simulator = Simulator::new(world);
            simulator.run(Place::FromPod, INTERFACE, &frame.bytes()).0
        };
        for to in [gateway()[family], node()[family], remote()[family]] {
            assert_eq!(
                sent(to),
                Verdict::Drop(DropReason::TunnelForeignSender),
                "{to:?}"
            );
        }
        assert_eq!(
            sent(foreign_sender()[family]),
            Verdict::RedirectNeigh(UPLINK)
        );
    }
}

#[test]
fn inner_packets_have_the_source_of_a_peers_pod() {
    for family in FAMILIES {
        let inner = |source: [Address; 2]| Frame::new(source[family], pod()[family], question(53));
        let delivered = Verdict::RedirectPeer(INTERFACE);
        assert_eq!(received(TUNNEL, &inner(friend())), delivered);
        for source in [remote(), foreign_sender(), node(), pod()] {
            let verdict = received(TUNNEL, &inner(source));
            assert_eq!(verdict, Verdict::Drop(DropReason::TunnelSource));
        }
        for piece in inner(foreign_sender()).fragments(78, 8) {
            let mut simulator = Simulator::new(tunnel_node());
            let (verdict, _) = simulator.run(Place::UplinkIn, TUNNEL, &piece);
            assert_eq!(verdict, Verdict::Drop(DropReason::TunnelSource));
        }
    }
}

#[test]
fn inner_packets_are_for_pods_and_published_ports_only() {
    let dropped = Verdict::Drop(DropReason::TunnelDestination);
    for family in FAMILIES {
        let inner = |to: [Address; 2], port| {
            received(
                TUNNEL,
                &Frame::new(friend()[family], to[family], question(port)),
            )
        };
        assert_eq!(inner(pod(), 53), Verdict::RedirectPeer(INTERFACE));
        assert!(!matches!(inner(gateway(), HOSTPORT), Verdict::Drop(_)));
        for to in [gateway(), node(), remote(), foreign_sender()] {
            assert_eq!(inner(to, 22), dropped);
        }
        let ping = Body::echo_request(&gateway()[family], 9);
        let ping = Frame::new(friend()[family], gateway()[family], ping);
        assert_eq!(received(TUNNEL, &ping), dropped);
        let other = Mac::new([2, 0, 0, 0, 0, 0x77]);
        let frame = Frame::new(friend()[family], pod()[family], question(53));
        let misaddressed = frame.from_to(Mac::new([2, 0, 0, 0, 0, 5]), other);
        assert_eq!(received(TUNNEL, &misaddressed), dropped);
    }
    let mut arp = Frame::new(friend()[0], pod()[0], question(53)).bytes();
    arp[12..14].copy_from_slice(&[8, 6]);
    let mut simulator = Simulator::new(tunnel_node());
    assert_eq!(simulator.run(Place::UplinkIn, TUNNEL, &arp).0, dropped);
}

#[test]
fn answers_to_a_connected_socket_of_the_node_pass_and_requests_to_an_open_one_do_not() {
    for family in FAMILIES {
        let answer = Body::Tcp(443, 40_000, flag::SYN | flag::ACK, Vec::new());
        let frame = Frame::new(friend()[family], gateway()[family], answer).bytes();
        let tuple = Tuple {
            source: friend()[family],
            destination: gateway()[family],
            source_port: Port::new(443),
            destination_port: Port::new(40_000),
            protocol: protocol::TCP,
            ..Tuple::default()
        };
        for (socket, expected) in [
            (Socket::None, Verdict::Drop(DropReason::TunnelDestination)),
            (Socket::Open, Verdict::Drop(DropReason::TunnelDestination)),
            (Socket::Connected, Verdict::Pass),
        ] {
            let mut world = tunnel_node();
            world.sockets.insert(tuple, socket);
            let mut simulator = Simulator::new(world);
            let (verdict, _) = simulator.run(Place::UplinkIn, TUNNEL, &frame);
            assert_eq!(verdict, expected, "{socket:?}");
        }
    }
}

/// Of a resolver with an unconnected socket, of a ping, and of netfilter's masquerade.
#[test]
fn answers_to_requests_of_the_node_without_a_connected_socket_have_a_flow() {
    for family in FAMILIES {
        let (own, peer) = (gateway()[family], friend()[family]);
        for (request, answer) in [
            (
                Body::Udp(40_000, 53, vec![1; 8]),
                Body::Udp(53, 40_000, vec![1; 8]),
            ),
            (Body::echo_request(&peer, 9), Body::echo_reply(&peer, 9)),
            (
                Body::Tcp(40_000, 80, flag::SYN, Vec::new()),
                Body::Tcp(80, 40_000, flag::SYN | flag::ACK, Vec::new()),
            ),
        ] {
            let mut simulator = Simulator::new(tunnel_node());
            let open = Tuple {
                source: peer,
                destination: own,
                source_port: Port::new(53),
                destination_port: Port::new(40_000),
                protocol: protocol::UDP,
                ..Tuple::default()
            };
            simulator.world.sockets.insert(open, Socket::Open);
            let answer = Frame::new(peer, own, answer).bytes();
            let (early, _) = simulator.run(Place::UplinkIn, TUNNEL, &answer);
            assert_eq!(early, Verdict::Drop(DropReason::TunnelDestination));
            let request = Frame::new(own, peer, request).bytes();
            let (sent, after) = simulator.run(Place::UplinkOut, TUNNEL, &request);
            assert_eq!((sent, after), (Verdict::Pass, request));
            let (verdict, _) = simulator.run(Place::UplinkIn, TUNNEL, &answer);
            assert_eq!(verdict, Verdict::Pass);
        }
    }
}

#[test]
fn without_tunnels_the_port_is_one_like_others() {
    for family in FAMILIES {
        let mut world = tunnel_node();
        world.settings.tunnel_port = Port::NONE;
        let mut simulator = Simulator::new(world);
        let frame = Frame::new(foreign_sender()[family], node()[family], outer()).bytes();
        let (verdict, _) = simulator.run(Place::UplinkIn, UPLINK, &frame);
        assert_eq!(verdict, Verdict::Pass);
    }
}
