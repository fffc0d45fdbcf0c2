//! IP packets with true and false source addresses, to one receiver and to groups.

use std::net::IpAddr;

use abi::Mac;
use verdict::simulator::frame::{Body, flag};

use super::super::cell::{Draft, Standing};
use super::super::net::{Net, Receiver};
use super::super::packets::sibling;
use super::super::scene::PUBLISHED;
use super::super::sockets::PORT;
use super::super::wire::{BROADCAST, abi, ip};
use super::{Goal, goals};

/// The source port of all packets: what is cached for an honest packet must not apply to others.
const SOURCE_PORT: u16 = 40_000;

/// Names of the bodies.
const BODIES: [&str; 8] = [
    "UDP",
    "UDP without checksum",
    "TCP SYN",
    "TCP ACK",
    "echo request",
    "echo reply",
    "SCTP",
    "protocol 253",
];

fn body(kind: &str, destination: IpAddr, port: u16, marker: Vec<u8>) -> Body {
    let echo = |request: bool| match (abi(destination).is_v4(), request) {
        (true, true) => 8,
        (true, false) => 0,
        (false, true) => 128,
        (false, false) => 129,
    };
    match kind {
        "UDP" => Body::Udp(SOURCE_PORT, port, marker),
        "UDP without checksum" => Body::UdpUnchecked(SOURCE_PORT, port, marker),
        "TCP SYN" => Body::Tcp(SOURCE_PORT, port, flag::SYN, marker),
        "TCP ACK" => Body::Tcp(SOURCE_PORT, port, flag::ACK, marker),
        "echo request" => Body::Icmp(echo(true), 0, [0x12, 0x34, 0, 1], marker),
        "echo reply" => Body::Icmp(echo(false), 0, [0x12, 0x35, 0, 1], marker),
        "SCTP" => Body::Sctp(SOURCE_PORT, port, marker),
        _ => Body::Other(253, marker),
    }
}

/// Returns source addresses that are not the pod's own, with their names.
fn false_sources(net: &Net, family: usize) -> Vec<(String, IpAddr)> {
    let own = net.attacker.addresses[family];
    let parse = |text: &&str| {
        let address: IpAddr = text.parse().expect("an address");
        ((*text).to_owned(), address)
    };
    let named = net
        .others()
        .map(|(name, party)| (name.to_owned(), party.addresses[family]));
    let mut all: Vec<_> = named.into_iter().collect();
    all.push(("no pod of the subnet".to_owned(), sibling(own, 99)));
    if family == 0 {
        all.push(("the broadcast address".to_owned(), sibling(own, 255)));
        all.push(("the network".to_owned(), sibling(own, 0)));
        let fixed = [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "169.254.7.7",
            "198.51.100.9",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
        ];
        all.extend(fixed.iter().map(parse));
    } else {
        all.push(("the network".to_owned(), sibling(own, 0)));
        let locals = [("mate", &net.mate), ("gateway", &net.gateway)];
        all.extend(locals.map(|(name, party)| {
            (
                format!("the link-local address of {name}"),
                party.link_local.into(),
            )
        }));
        let fixed = [
            "::",
            "::1",
            "::ffff:10.7.0.3",
            "::10.7.0.3",
            "64:ff9b::a07:3",
            "fe80::77",
            "fec0::1",
            "ff02::1",
            "2001:db8:77::9",
        ];
        all.extend(fixed.iter().map(parse));
    }
    all
}

/// Adds packets to one receiver: honest ones of each kind, then the same with one false field.
pub(super) fn draft(draft: &mut Draft, net: &Net) {
    for family in [0, 1] {
        for goal in goals(net) {
            honest(draft, net, family, &goal);
            lying(draft, net, family, &goal);
        }
        published(draft, net, family);
    }
}

fn honest(draft: &mut Draft, net: &Net, family: usize, goal: &Goal<'_>) {
    let (own, to) = (net.attacker.addresses[family], goal.party.addresses[family]);
    for kind in BODIES {
        // Without a checksum a datagram is no datagram in IPv6 (RFC 8200, 8.1).
        let standing = if goal.receiver == Receiver::World && is_unusual(kind) {
            Standing::Tolerated(
                "no NAT of replies and unknown protocols",
                vec![goal.receiver],
            )
        } else {
            Standing::Honest(vec![goal.receiver])
        };
        // Several times: the verdict of the first ones is cached.
        let body = body(kind, to, PORT, draft.marker());
        let frame = ip([net.attacker.mac, goal.mac], [own, to], body).bytes();
        let frames = vec![frame; if kind == "UDP" { 6 } else { 1 }];
        let name = format!("{kind} from the pod to {}, {to}", goal.name);
        draft.push_all(name, frames, standing).source = Some(own);
    }
}

fn is_unusual(kind: &str) -> bool {
    matches!(
        kind,
        "echo reply" | "TCP ACK" | "protocol 253" | "UDP without checksum" | "SCTP"
    )
}

fn lying(draft: &mut Draft, net: &Net, family: usize, goal: &Goal<'_>) {
    let (own, to) = (net.attacker.addresses[family], goal.party.addresses[family]);
    let lie = Standing::Lie("a false source address");
    for (who, source) in false_sources(net, family) {
        let kind = BODIES[draft.rng.usize(0..BODIES.len())];
        for kind in ["UDP", kind] {
            let body = body(kind, to, PORT, draft.marker());
            let frame = ip([net.attacker.mac, goal.mac], [source, to], body).bytes();
            let name = format!("{kind} from {who}, {source}, to {}, {to}", goal.name);
            draft.push(name, frame, lie.clone());
        }
    }
    let macs = [
        ("mate", net.mate.mac),
        ("the gateway", net.gateway.mac),
        ("no station", Mac::new([2, 0xaa, 0, 0, 0, 1])),
        ("a group", Mac::new([3, 0, 0, 0, 0, 1])),
        ("zero", Mac::default()),
    ];
    for (who, mac) in macs {
        let body = body("UDP", to, PORT, draft.marker());
        let frame = ip([mac, goal.mac], [own, to], body).bytes();
        let name = format!("UDP by the MAC of {who} to {}, {to}", goal.name);
        draft.push(name, frame, Standing::Lie("a false MAC address"));
    }
}

/// Adds packets to the port of the mate that the node publishes.
fn published(draft: &mut Draft, net: &Net, family: usize) {
    let (own, to) = (net.attacker.addresses[family], net.node.addresses[family]);
    let macs = [net.attacker.mac, net.gateway.mac];
    for kind in ["UDP", "TCP SYN"] {
        let body = body(kind, to, PUBLISHED, draft.marker());
        let frame = ip(macs, [own, to], body).bytes();
        let name = format!("{kind} to the published port, {to}");
        let standing = Standing::Published(vec![Receiver::Mate]);
        draft.push(name, frame, standing).source = Some(own);
    }
    for (who, source) in false_sources(net, family) {
        let body = body("UDP", to, PUBLISHED, draft.marker());
        let frame = ip(macs, [source, to], body).bytes();
        let name = format!("UDP from {who}, {source}, to the published port, {to}");
        draft.push(name, frame, Standing::Lie("a false source address"));
    }
}

/// Adds packets to groups of stations, and packets for one station in frames for others.
pub(super) fn groups(draft: &mut Draft, net: &Net) {
    for family in [0, 1] {
        let own = net.attacker.addresses[family];
        let all: [&str; 3] = [
            ["255.255.255.255", "224.0.0.1", "10.7.0.255"],
            ["ff02::1", "ff02::2", "ff0e::101"],
        ][family];
        for text in all {
            let to: IpAddr = text.parse().expect("an address");
            let group = Standing::Tolerated(
                "the stations of the link",
                vec![Receiver::Mate, Receiver::Node],
            );
            let sources = false_sources(net, family);
            let pick = sources[draft.rng.usize(0..sources.len())].clone();
            let mate = net.mate.addresses[family];
            for (who, source, standing) in [
                ("the pod".to_owned(), own, group),
                (
                    "mate".to_owned(),
                    mate,
                    Standing::Lie("a false source address"),
                ),
                (pick.0, pick.1, Standing::Lie("a false source address")),
            ] {
                for mac in [BROADCAST, group_mac(to), net.mate.mac] {
                    let body = body("UDP", to, PORT, draft.marker());
                    let frame = ip([net.attacker.mac, mac], [source, to], body).bytes();
                    let name = format!("UDP from {who}, {source}, to {to} at {:02x?}", mac.bytes());
                    draft.push(name, frame, standing.clone());
                }
            }
        }
        in_other_frames(draft, net, family);
        servers(draft, net, family);
    }
}

/// Returns the MAC address of a group (RFC 1112, RFC 2464).
fn group_mac(group: IpAddr) -> Mac {
    match group {
        IpAddr::V4(v4) => {
            let [_, b, c, d] = v4.octets();
            Mac::new([1, 0, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(v6) => {
            let [.., a, b, c, d] = v6.octets();
            Mac::new([0x33, 0x33, a, b, c, d])
        }
    }
}

fn in_other_frames(draft: &mut Draft, net: &Net, family: usize) {
    let own = net.attacker.addresses[family];
    let targets = [
        (Receiver::Mate, net.mate.addresses[family]),
        (Receiver::Node, net.gateway.addresses[family]),
        (Receiver::World, net.world.addresses[family]),
    ];
    for (receiver, to) in targets {
        let everyone = Mac::new([0x33, 0x33, 0, 0, 0, 1]);
        for (who, mac) in [
            ("all", BROADCAST),
            ("a group", everyone),
            ("mate", net.mate.mac),
            ("no station", Mac::new([2, 0xaa, 0, 0, 0, 2])),
        ] {
            let body = body("UDP", to, PORT, draft.marker());
            let frame = ip([net.attacker.mac, mac], [own, to], body).bytes();
            let name = format!("UDP to {to} in a frame for {who}");
            // A pod that gets the packet as a router sends it on from itself.
            let standing = Standing::Tolerated("an IP packet in another frame", vec![receiver]);
            draft.push(name, frame, standing);
        }
    }
}

/// Adds answers of servers for DHCP and DHCPv6 (RFC 2131, RFC 9915).
fn servers(draft: &mut Draft, net: &Net, family: usize) {
    let (from, to) = [(67, 68), (547, 546)][family];
    let own = net.attacker.addresses[family];
    let gateway = net.gateway.addresses[family];
    let link_local = [gateway, net.gateway.link_local.into()][family];
    let everyone: IpAddr = ["255.255.255.255", "ff02::1"][family]
        .parse()
        .expect("an address");
    for destination in [net.mate.addresses[family], everyone] {
        let may = Standing::Tolerated(
            "a server with its own address",
            vec![Receiver::Mate, Receiver::Node],
        );
        let lie = Standing::Lie("a server with a false address");
        for (source, standing) in [(own, may), (gateway, lie.clone()), (link_local, lie)] {
            let body = Body::Udp(from, to, draft.marker());
            let frame = ip([net.attacker.mac, BROADCAST], [source, destination], body).bytes();
            let name = format!("the answer of a DHCP server from {source} to {destination}");
            draft.push(name, frame, standing);
        }
    }
}
