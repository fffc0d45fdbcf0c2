//! What a machine on the uplink claims: addresses of others by ARP and neighbour discovery, routes,
//! and errors about packets of pods.

use std::net::{IpAddr, Ipv6Addr};

use abi::Mac;
use verdict::simulator::frame::Body;

use super::super::cell::{Draft, NO_HANDLER, Standing};
use super::super::net::{Net, Receiver};
use super::super::packets::FOREIGN;
use super::super::sockets::PORT;
use super::super::wire::{
    Arp, BROADCAST, Discovery, ETHERTYPE_ARP, error, ethernet, ip, option, quote, with_hop_limit,
};
use super::{Goal, OWN_STACK};

/// Adds errors about packets of the goal, from the world, which may be a router, and from
/// addresses of this node.
pub(super) fn errors(draft: &mut Draft, net: &Net, family: usize, goal: &Goal) {
    let kinds: [&[(u8, u8, [u8; 4])]; 2] = [
        &[
            (3, 3, [0; 4]),
            (3, 4, [0, 0, 2, 0x58]),
            (11, 0, [0; 4]),
            (5, 1, [10, 7, 0, 9]),
        ],
        &[(1, 4, [0; 4]), (2, 0, [0, 0, 5, 0]), (3, 0, [0; 4])],
    ];
    let own = net.world.addresses[family];
    for source in [
        own,
        net.far.addresses[family],
        net.gateway.addresses[family],
        net.mate.addresses[family],
    ] {
        for (kind, code, field) in kinds[family] {
            let to = goal.address;
            let quoted = quote((to, PORT), (own, 9), &draft.marker());
            let body = error(*kind, *code, *field, &quoted);
            let frame = ip([net.world.mac, net.node.mac], [source, to], body).bytes();
            let standing = if source == own {
                Standing::Tolerated("an error of a router", vec![goal.receiver, Receiver::Node])
            } else {
                Standing::Lie("a false source address")
            };
            let name = format!("ICMP {kind}/{code} from {source} to {}, {to}", goal.name);
            draft.push(name, frame, standing);
        }
    }
}

/// Adds claims to addresses of the node, of its pods, and of the sender.
pub(super) fn arp(draft: &mut Draft, net: &Net) {
    let senders = [
        net.world.v4(),
        net.mate.v4(),
        net.gateway.v4(),
        net.far_gateway.v4(),
        net.node.v4(),
    ];
    for sender in senders {
        for operation in [1, 2] {
            for target in [net.node.v4(), net.gateway.v4(), net.mate.v4(), sender] {
                let packet = Arp {
                    operation,
                    sender: (net.world.mac, sender),
                    target: (net.node.mac, target),
                };
                let bytes = packet.bytes(&draft.marker());
                let to = if target == sender {
                    BROADCAST
                } else {
                    net.node.mac
                };
                let frame = ethernet(to, net.world.mac, ETHERTYPE_ARP, &bytes);
                let name = format!("ARP {operation} by {sender} for {target}");
                // No socket gets it: what the node believes is compared.
                draft.push(name, frame, Standing::Tolerated(OWN_STACK, Vec::new()));
            }
        }
    }
}

/// Adds advertisements of neighbours and redirects on the uplink. Its routers may advertise
/// themselves to the node: those are no part of the suite.
pub(super) fn discovery(draft: &mut Draft, net: &Net) {
    let all: (Mac, Ipv6Addr) = (
        Mac::new([0x33, 0x33, 0, 0, 0, 1]),
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
    );
    let sources = [net.world.link_local, net.gateway.link_local, net.world.v6()];
    let targets = [
        net.node.v6(),
        net.node.link_local,
        net.gateway.v6(),
        net.gateway.link_local,
        net.mate.v6(),
    ];
    for source in sources {
        for to in [all, (net.node.mac, net.node.link_local)] {
            for target in targets {
                let advertisement = Discovery {
                    kind: 136,
                    flags: [0xe0, 0, 0, 0],
                    addresses: vec![target],
                    options: vec![
                        option::target(net.world.mac),
                        option::unknown(&draft.marker()),
                    ],
                };
                add(draft, net, source, to, &advertisement);
            }
            let redirect = Discovery {
                kind: 137,
                flags: [0; 4],
                addresses: vec![source, Ipv6Addr::new(0x2001, 0xdb8, 0x77, 0, 0, 0, 0, 9)],
                options: vec![option::unknown(&draft.marker())],
            };
            add(draft, net, source, to, &redirect);
        }
    }
}

fn add(
    draft: &mut Draft,
    net: &Net,
    source: Ipv6Addr,
    (mac, to): (Mac, Ipv6Addr),
    message: &Discovery,
) {
    let addresses = [IpAddr::from(source), to.into()];
    let frame = ip([net.world.mac, mac], addresses, message.body()).bytes();
    let about = message.addresses.first();
    let name = format!(
        "type {} from {source} to {to} about {about:?}",
        message.kind
    );
    let standing = Standing::Tolerated(OWN_STACK, vec![Receiver::Node]);
    draft.push(name, with_hop_limit(frame, 255), standing);
}

/// Adds frames of other `EtherTypes`, and packets to groups of the uplink.
pub(super) fn foreign(draft: &mut Draft, net: &Net) {
    for (kind, _) in FOREIGN {
        let mut payload = vec![0xaa, 0xaa, 0x03, 0, 0, 0, 0x08, 0x00];
        payload.extend(draft.marker());
        payload.resize(60, 0);
        let frame = ethernet(net.node.mac, net.world.mac, kind, &payload);
        let name = format!("EtherType {kind:04x}");
        draft
            .push(name, frame, Standing::Lie("another EtherType"))
            .ignored = Some(NO_HANDLER);
    }
    for text in [
        "255.255.255.255",
        "192.0.2.255",
        "224.0.0.1",
        "ff02::1",
        "10.7.0.255",
    ] {
        let to: IpAddr = text.parse().expect("an address");
        let own = net.world.addresses[usize::from(to.is_ipv6())];
        for mac in [BROADCAST, net.node.mac] {
            let body = Body::Udp(41_004, PORT, draft.marker());
            let frame = ip([net.world.mac, mac], [own, to], body).bytes();
            let name = format!("UDP to the group {to} at {:02x?}", mac.bytes());
            draft.push(
                name,
                frame,
                Standing::Tolerated(OWN_STACK, vec![Receiver::Node]),
            );
        }
    }
}
