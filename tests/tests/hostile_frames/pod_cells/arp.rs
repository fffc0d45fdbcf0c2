//! ARP packets of a pod (RFC 826, RFC 5227).

use std::net::Ipv4Addr;

use abi::Mac;

use super::super::cell::{Draft, Standing};
use super::super::net::Net;
use super::super::packets::sibling;
use super::super::wire::{Arp, BROADCAST, ETHERTYPE_ARP, ethernet};

/// Adds requests, replies and announcements for each pair of sender addresses.
pub(super) fn draft(draft: &mut Draft, net: &Net) {
    let own = (net.attacker.mac, net.attacker.v4());
    let no_pod = match sibling(own.1.into(), 99) {
        std::net::IpAddr::V4(v4) => v4,
        std::net::IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    };
    let hardware = [
        own.0,
        net.mate.mac,
        net.gateway.mac,
        Mac::new([2, 0xaa, 0, 0, 0, 3]),
        BROADCAST,
    ];
    let protocol = [
        own.1,
        net.mate.v4(),
        net.gateway.v4(),
        net.far.v4(),
        net.node.v4(),
        net.world.v4(),
        no_pod,
        Ipv4Addr::BROADCAST,
        Ipv4Addr::UNSPECIFIED,
    ];
    for mac in hardware {
        for address in protocol {
            let is_own = mac == own.0 && (address == own.1 || address.is_unspecified());
            let standing = if is_own {
                Standing::Tolerated("its own address", Vec::new())
            } else {
                Standing::Lie("a false sender of ARP")
            };
            for operation in [1, 2] {
                claim(draft, net, operation, (mac, address), &standing);
            }
        }
    }
    malformed(draft, net);
}

/// Adds a claim to one station and to all, and as an announcement.
fn claim(
    draft: &mut Draft,
    net: &Net,
    operation: u16,
    sender: (Mac, Ipv4Addr),
    standing: &Standing,
) {
    let targets = [
        (net.mate.mac, (net.mate.mac, net.mate.v4())),
        (net.gateway.mac, (Mac::default(), net.gateway.v4())),
        (BROADCAST, (BROADCAST, sender.1)),
    ];
    let from = if draft.rng.u8(0..4) == 0 {
        sender.0
    } else {
        net.attacker.mac
    };
    for (to, target) in targets {
        let packet = Arp {
            operation,
            sender,
            target,
        };
        let bytes = packet.bytes(&draft.marker());
        let frame = ethernet(to, from, ETHERTYPE_ARP, &bytes);
        let kind = if operation == 1 { "request" } else { "reply" };
        let name = format!(
            "ARP {kind} by {:02x?}: {} at {:02x?}, to {}",
            from.bytes(),
            sender.1,
            sender.0.bytes(),
            target.1
        );
        draft.push(name, frame, standing.clone());
    }
}

/// Adds packets with other hardware and lengths than Ethernet and IPv4 have.
fn malformed(draft: &mut Draft, net: &Net) {
    let packet = Arp {
        operation: 2,
        sender: (net.attacker.mac, net.gateway.v4()),
        target: (net.mate.mac, net.mate.v4()),
    };
    for (at, value) in [(1, 6), (1, 15), (0, 1), (4, 8), (5, 16), (7, 3), (7, 9)] {
        let mut bytes = packet.bytes(&draft.marker());
        bytes[at] = value;
        let frame = ethernet(net.mate.mac, net.attacker.mac, ETHERTYPE_ARP, &bytes);
        let name = format!("an ARP reply for the gateway with {value} at {at}");
        draft.push(name, frame, Standing::Lie("a false sender of ARP"));
    }
    for length in [0, 8, 20, 27] {
        let bytes = &packet.bytes(&[])[..length];
        let frame = ethernet(net.mate.mac, net.attacker.mac, ETHERTYPE_ARP, bytes);
        let name = format!("an ARP reply for the gateway of {length} bytes");
        draft.push(name, frame, Standing::Lie("a false sender of ARP"));
    }
}
