//! Neighbour discovery and multicast listener messages of a pod (RFC 4861, RFC 3810).

use std::net::{IpAddr, Ipv6Addr};

use abi::Mac;
use verdict::simulator::frame::Body;

use super::super::cell::{Draft, RESOLUTION, Standing};
use super::super::net::{Net, Party};
use super::super::wire::{Discovery, ip, option, with_hop_limit};

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const REDIRECT: u8 = 137;
/// The flags of an advertisement: router, solicited, override.
const FLAGS: [[u8; 4]; 3] = [[0x20, 0, 0, 0], [0x60, 0, 0, 0], [0xe0, 0, 0, 0]];

fn all_nodes() -> (Mac, Ipv6Addr) {
    (
        Mac::new([0x33, 0x33, 0, 0, 0, 1]),
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
    )
}

/// Returns the group of solicitations for a target (RFC 4291, 2.7.1).
fn solicited_node(target: Ipv6Addr) -> (Mac, Ipv6Addr) {
    let [.., a, b, c] = target.octets();
    let group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c];
    (Mac::new([0x33, 0x33, 0xff, a, b, c]), group.into())
}

/// Adds messages of each type.
pub(super) fn draft(draft: &mut Draft, net: &Net) {
    let addresses = named_addresses(net);
    for (who, target) in &addresses {
        for (by, source) in &addresses {
            neighbours(draft, net, (by, *source), (who, *target));
        }
        neighbours(
            draft,
            net,
            ("no station", Ipv6Addr::UNSPECIFIED),
            (who, *target),
        );
    }
    for (by, source) in &addresses {
        routers(draft, net, by, *source);
        listeners(draft, net, by, *source);
    }
    wrong_link_layer(draft, net);
}

/// Returns global and link-local addresses of the pod and of others, with their names.
fn named_addresses(net: &Net) -> Vec<(String, Ipv6Addr)> {
    let both = |name: &str, party: &Party| {
        [
            (name.to_owned(), party.v6()),
            (format!("{name} (link-local)"), party.link_local),
        ]
    };
    let mut all: Vec<_> = [
        ("own", &net.attacker),
        ("mate", &net.mate),
        ("gateway", &net.gateway),
    ]
    .into_iter()
    .flat_map(|(name, party)| both(name, party))
    .collect();
    all.push((
        "no pod".to_owned(),
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x77),
    ));
    all
}

fn is_own(net: &Net, address: Ipv6Addr) -> bool {
    address == net.attacker.v6() || address == net.attacker.link_local
}

/// Returns the frame of a message from the pod's MAC address, with the hop limit that receivers
/// demand.
fn message(
    net: &Net,
    source: Ipv6Addr,
    (mac, destination): (Mac, Ipv6Addr),
    message: &Discovery,
) -> Vec<u8> {
    let addresses = [IpAddr::from(source), destination.into()];
    let frame = ip([net.attacker.mac, mac], addresses, message.body());
    with_hop_limit(frame.bytes(), 255)
}

/// Adds a solicitation and an advertisement from `source` about `target`.
fn neighbours(
    draft: &mut Draft,
    net: &Net,
    (by, source): (&str, Ipv6Addr),
    (who, target): (&str, Ipv6Addr),
) {
    let mate = (net.mate.mac, net.mate.v6());
    let gateway = (net.gateway.mac, net.gateway.link_local);
    let mac = net.attacker.mac;
    let from_own = is_own(net, source) || source.is_unspecified();
    let is_probe = source.is_unspecified();
    let mut options = vec![option::unknown(&draft.marker())];
    if !is_probe {
        options.insert(0, option::source(mac));
    }
    let solicitation = Discovery {
        kind: SOLICITATION,
        flags: [0; 4],
        addresses: vec![target],
        options,
    };
    let standing = if from_own && !is_probe && net.mate.has(target.into()) {
        Standing::Tolerated(RESOLUTION, everyone())
    } else if from_own && (!is_probe || is_own(net, target)) {
        Standing::Tolerated("its own address", everyone())
    } else {
        Standing::Lie("a false solicitation")
    };
    let frame = message(net, source, solicited_node(target), &solicitation);
    let name = format!("a solicitation by {by} for {who}");
    draft.push(name, frame, standing);
    let flags = FLAGS[draft.rng.usize(0..FLAGS.len())];
    for to in [mate, gateway, all_nodes()] {
        let advertisement = Discovery {
            kind: ADVERTISEMENT,
            flags,
            addresses: vec![target],
            options: vec![option::target(mac), option::unknown(&draft.marker())],
        };
        let standing = if !from_own || is_probe || !is_own(net, target) {
            Standing::Lie("a false advertisement")
        } else if to == mate {
            // It may be the answer to a solicitation of the receiver.
            Standing::Tolerated(RESOLUTION, everyone())
        } else {
            Standing::Tolerated("its own address", everyone())
        };
        let frame = message(net, source, to, &advertisement);
        let name = format!(
            "an advertisement {:02x} by {by} of {who} to {}",
            flags[0], to.1
        );
        draft.push(name, frame, standing);
    }
}

fn everyone() -> Vec<super::super::net::Receiver> {
    use super::super::net::Receiver;
    vec![Receiver::Mate, Receiver::Node]
}

/// Adds what only routers send, and a solicitation of routers.
fn routers(draft: &mut Draft, net: &Net, by: &str, source: Ipv6Addr) {
    let mac = net.attacker.mac;
    for to in [all_nodes(), (net.mate.mac, net.mate.v6())] {
        let advertisement = Discovery {
            kind: ROUTER_ADVERTISEMENT,
            // A current hop limit of 3, and the highest preference.
            flags: [3, 0x08, 0x07, 0x08],
            addresses: Vec::new(),
            options: vec![
                // Reachable time and retransmission timer.
                vec![0; 8],
                option::source(mac),
                option::mtu(1280),
                option::prefix(),
                option::unknown(&draft.marker()),
            ],
        };
        let frame = message(net, source, to, &advertisement);
        let name = format!("a router advertisement by {by} to {}", to.1);
        draft.push(name, frame, Standing::Lie("a pod is no router"));
    }
    let redirect = Discovery {
        kind: REDIRECT,
        flags: [0; 4],
        addresses: vec![net.attacker.link_local, net.world.v6()],
        options: vec![option::target(mac), option::unknown(&draft.marker())],
    };
    let frame = message(net, source, (net.mate.mac, net.mate.v6()), &redirect);
    let name = format!("a redirect by {by}");
    draft.push(name, frame, Standing::Lie("a pod is no router"));
    let solicitation = Discovery {
        kind: ROUTER_SOLICITATION,
        flags: [0; 4],
        addresses: Vec::new(),
        options: vec![option::source(mac), option::unknown(&draft.marker())],
    };
    let routers = (
        Mac::new([0x33, 0x33, 0, 0, 0, 2]),
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2),
    );
    let standing = if is_own(net, source) {
        Standing::Tolerated("its own address", everyone())
    } else {
        Standing::Lie("a false solicitation")
    };
    let frame = message(net, source, routers, &solicitation);
    let name = format!("a solicitation of routers by {by}");
    draft.push(name, frame, standing);
}

/// Adds queries, reports and the end of a membership, with the router alert that they need.
fn listeners(draft: &mut Draft, net: &Net, by: &str, source: Ipv6Addr) {
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x77);
    for (kind, name) in [
        (130, "query"),
        (131, "report"),
        (132, "done"),
        (143, "report 2"),
    ] {
        let mut rest = group.octets().to_vec();
        rest.extend(draft.marker());
        let body = Body::Icmp(kind, 0, [0; 4], rest);
        let addresses = [IpAddr::from(source), all_nodes().1.into()];
        let mut frame = ip([net.attacker.mac, all_nodes().0], addresses, body);
        frame.options = vec![(0, vec![5, 2, 0, 0, 1, 0])];
        let standing = if is_own(net, source) {
            Standing::Tolerated("its own address", everyone())
        } else {
            Standing::Lie("a false listener")
        };
        let name = format!("an MLD {name} by {by}");
        draft.push(name, with_hop_limit(frame.bytes(), 1), standing);
    }
}

/// Adds messages about the pod's own address at the MAC address of another.
fn wrong_link_layer(draft: &mut Draft, net: &Net) {
    let own = &net.attacker;
    let mate = (net.mate.mac, net.mate.v6());
    let foreign = [
        net.mate.mac,
        net.gateway.mac,
        Mac::new([2, 0xaa, 0, 0, 0, 4]),
    ];
    for mac in foreign {
        for position in [0, 1] {
            for (kind, target, link_layer) in [
                (ADVERTISEMENT, own.v6(), option::target(mac)),
                (SOLICITATION, net.mate.v6(), option::source(mac)),
            ] {
                let mut options = vec![option::unknown(&draft.marker())];
                options.insert(position, link_layer);
                let flags = [[0x60, 0, 0, 0], [0; 4]][usize::from(kind == SOLICITATION)];
                let told = Discovery {
                    kind,
                    flags,
                    addresses: vec![target],
                    options,
                };
                let frame = message(net, own.v6(), mate, &told);
                let name = format!(
                    "type {kind}: own address at {:02x?}, option {position}",
                    mac.bytes()
                );
                draft.push(
                    name,
                    frame,
                    Standing::Lie("a false MAC address in an option"),
                );
            }
        }
    }
}
