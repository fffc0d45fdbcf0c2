//! ICMP errors and redirects of a pod, about packets of others.

use std::net::IpAddr;

use super::super::cell::{Draft, Standing};
use super::super::net::{Net, Receiver};
use super::super::sockets::PORT;
use super::super::wire::{error, ip, quote};

/// Type, code and the four bytes behind the checksum: no route, port closed, packet too big for 600
/// or 1280 bytes, hop limit, parameter problem, and a redirect of IPv4.
const ERRORS: [&[(u8, u8, [u8; 4])]; 2] = [
    &[
        (3, 1, [0; 4]),
        (3, 3, [0; 4]),
        (3, 4, [0, 0, 0x02, 0x58]),
        (11, 0, [0; 4]),
        (12, 0, [0; 4]),
        (4, 0, [0; 4]),
    ],
    &[
        (1, 0, [0; 4]),
        (1, 4, [0; 4]),
        (2, 0, [0, 0, 5, 0]),
        (3, 0, [0; 4]),
        (4, 0, [0; 4]),
    ],
];

/// Adds errors from true and false sources about packets of the mate, to the pod and to others.
pub(super) fn draft(draft: &mut Draft, net: &Net) {
    for family in [0, 1] {
        for (kind, code, field) in ERRORS[family] {
            about_mate(draft, net, family, (*kind, *code, *field));
        }
    }
    redirects(draft, net);
}

fn about_mate(draft: &mut Draft, net: &Net, family: usize, (kind, code, field): (u8, u8, [u8; 4])) {
    let own = net.attacker.addresses[family];
    let mate = net.mate.addresses[family];
    let sources = [
        ("own", own),
        ("gateway", net.gateway.addresses[family]),
        ("node", net.node.addresses[family]),
        ("world", net.world.addresses[family]),
        ("mate", mate),
    ];
    let targets = [
        ("own", own),
        ("world", net.world.addresses[family]),
        ("gateway", net.gateway.addresses[family]),
        ("far", net.far.addresses[family]),
    ];
    for (by, source) in sources {
        for (about, target) in targets {
            let quoted = quote((mate, PORT), (target, 9), &draft.marker());
            let body = error(kind, code, field, &quoted);
            let standing = if source != own {
                Standing::Lie("a false source address")
            } else if target != own {
                Standing::Lie("an error about a packet that was not sent to the pod")
            } else {
                Standing::Tolerated("an error about a packet to the pod", vec![Receiver::Mate])
            };
            let macs = [net.attacker.mac, net.mate.mac];
            let frame = ip(macs, [source, mate], body).bytes();
            let name = format!("ICMP {kind}/{code} by {by} about a packet of mate to {about}");
            draft.push(name, frame, standing);
        }
    }
}

/// Adds redirects of IPv4 for the world, to the pod itself (RFC 792).
fn redirects(draft: &mut Draft, net: &Net) {
    let own = net.attacker.v4();
    let mate = net.mate.addresses[0];
    for code in [0, 1, 3] {
        for source in [
            IpAddr::V4(own),
            net.gateway.addresses[0],
            net.world.addresses[0],
        ] {
            for target in [IpAddr::V4(own), net.world.addresses[0]] {
                let quoted = quote((mate, PORT), (target, 9), &draft.marker());
                let body = error(5, code, own.octets(), &quoted);
                let macs = [net.attacker.mac, net.mate.mac];
                let frame = ip(macs, [source, mate], body).bytes();
                let name = format!("a redirect {code} by {source} for {target}");
                draft.push(name, frame, Standing::Lie("a pod is no router"));
            }
        }
    }
}
