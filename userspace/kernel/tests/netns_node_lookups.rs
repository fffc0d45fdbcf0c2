//! Lookups of single packets: which route the kernel takes, and which socket a packet reaches.

mod support;

use std::net::{IpAddr, TcpListener, UdpSocket};

use kernel::NodeLookups;
use model::IfName;
use steps::{FoundRoute, FoundSocket, RouteDecision, RoutedPacket};
use support::*;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Two links, with routes by the second one.
const LINES: [&str; 16] = [
    "ip link set lo up",
    "ip link add in0 type veth peer name in1",
    "ip link add out0 type veth peer name out1",
    "ip link set in1 up",
    "ip link set out1 up",
    "ip link set in0 up",
    "ip link set out0 up",
    "ip address add 10.1.0.1/24 dev in0",
    "ip address add fd00:1::1/64 dev in0 nodad",
    "ip address add 192.0.2.1/24 dev out0",
    "ip address add 2001:db8::1/64 dev out0 nodad",
    "ip route add default via 192.0.2.254 dev out0",
    "ip route add default via 2001:db8::fe dev out0",
    "ip route add 198.51.100.0/24 dev out0 mtu 1300",
    "ip route add blackhole 203.0.113.0/24",
    "sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1",
];

fn index(lookups: &mut NodeLookups, name: &str) -> u32 {
    let wanted: IfName = name.parse().expect("a name");
    let links = lookups.links().expect("a list of links");
    let link = links.into_iter().find(|(name, _)| *name == wanted);
    link.expect("the link exists").1.index
}

fn find(lookups: &mut NodeLookups, from: Option<u32>, source: &str, to: &str) -> FoundRoute {
    let end = |text: &str, port| (text.parse::<IpAddr>().expect("an address"), port).into();
    lookups
        .route(&RoutedPacket {
            from,
            source: end(source, 40_000),
            destination: end(to, 443),
            protocol: TCP,
        })
        .expect("an answer")
}

#[test]
fn the_route_of_a_packet_is_found_and_shown_as_ip_route_shows_it() {
    on_a_node(|_| {
        for line in LINES {
            run(line);
        }
        let mut lookups = NodeLookups::open().expect("sockets");
        let lookups = &mut lookups;
        let (input, output) = (index(lookups, "in0"), index(lookups, "out0"));
        let leaves = |gateway: Option<&str>, mtu| RouteDecision::Leaves {
            link: output,
            gateway: gateway.map(|text| text.parse().unwrap()),
            mtu,
        };
        for (from, source, to, decision, route) in [
            (
                Some(input),
                "10.1.0.2",
                "8.8.8.8",
                leaves(Some("192.0.2.254"), None),
                "default via 192.0.2.254 dev out0",
            ),
            (
                Some(input),
                "fd00:1::2",
                "2001:db8:f::7",
                leaves(Some("2001:db8::fe"), None),
                "default via 2001:db8::fe dev out0",
            ),
            (
                Some(input),
                "10.1.0.2",
                "198.51.100.7",
                leaves(None, Some(1300)),
                "198.51.100.0/24 dev out0 mtu 1300",
            ),
            (
                None,
                "192.0.2.1",
                "192.0.2.7",
                leaves(None, None),
                "192.0.2.0/24 dev out0",
            ),
        ] {
            let found = find(lookups, from, source, to);
            assert_eq!(found.decision, decision, "{to}: {found:?}");
            assert_eq!(found.route, route, "{to}");
        }
        find_refused(lookups, input);
    });
}

/// Packets that are for the node itself, or that it does not forward.
fn find_refused(lookups: &mut NodeLookups, input: u32) {
    let local = find(lookups, Some(input), "10.1.0.2", "192.0.2.1");
    assert_eq!(local.decision, RouteDecision::Local);
    assert!(local.route.starts_with("local 192.0.2.1"), "{local:?}");
    let dropped = find(lookups, Some(input), "10.1.0.2", "203.0.113.9");
    assert!(
        matches!(
            dropped.decision,
            RouteDecision::Unreachable | RouteDecision::SourceRefused
        ),
        "{dropped:?}"
    );
    // The kernel forwards no packets from its own addresses.
    let own = find(lookups, Some(input), "192.0.2.1", "8.8.8.8");
    assert!(
        matches!(
            own.decision,
            RouteDecision::Unreachable | RouteDecision::SourceRefused
        ),
        "{own:?}"
    );
}

#[test]
fn a_listening_and_a_connected_socket_are_found() {
    on_a_node(|_| {
        run("ip link set lo up");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let connected = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        connected.connect("127.0.0.1:9").expect("a peer");
        let lookups = NodeLookups::open().expect("sockets");
        let peer = "127.0.0.1:9".parse().unwrap();
        let (tcp, udp) = (
            listener.local_addr().unwrap(),
            connected.local_addr().unwrap(),
        );
        assert_eq!(lookups.socket(TCP, peer, tcp), FoundSocket::Open);
        assert_eq!(lookups.socket(UDP, peer, udp), FoundSocket::Connected);
        assert_eq!(lookups.socket(UDP, peer, tcp), FoundSocket::None);
        let other = "127.0.0.1:10".parse().unwrap();
        assert_eq!(lookups.socket(UDP, other, udp), FoundSocket::None);
    });
}
