//! IP packets from outside, with true and false addresses.

use std::iter;
use std::net::IpAddr;

use abi::Mac;
use verdict::simulator::frame::{Body, flag};

use super::super::cell::{Draft, Standing};
use super::super::net::{Net, Receiver};
use super::super::packets::{changes, options, sibling};
use super::super::wire::{BROADCAST, ip};
use super::{Goal, NO_ROUTE, OTHER_HOST};

const SOURCE_PORT: u16 = 41_000;
const LIE: Standing = Standing::Lie("a false source address");

/// What may be wrong with a source address.
enum Falsehood {
    /// It is an address of this node's pods, or one that no packet has.
    Always,
    /// Linux itself believes it where the packet is for the node.
    ForPods,
    /// As for pods; the node's routes refuse it without a name.
    NodesOwn,
}

fn false_sources(net: &Net, family: usize) -> Vec<(String, IpAddr, Falsehood)> {
    let named = |name: &str, address, falsehood| (name.to_owned(), address, falsehood);
    let of_family = |addresses: [IpAddr; 2]| addresses[family];
    let mut all = vec![
        named("mate", of_family(net.mate.addresses), Falsehood::Always),
        named("far", of_family(net.far.addresses), Falsehood::Always),
        named(
            "the gateway",
            of_family(net.gateway.addresses),
            Falsehood::Always,
        ),
        named(
            "another gateway",
            of_family(net.far_gateway.addresses),
            Falsehood::Always,
        ),
        named(
            "no pod",
            sibling(net.mate.addresses[family], 99),
            Falsehood::Always,
        ),
    ];
    let mut fixed = |texts: &[&str], falsehood: fn() -> Falsehood| {
        for text in texts {
            let address = text.parse().expect("an address");
            all.push(((*text).to_owned(), address, falsehood()));
        }
    };
    if family == 0 {
        fixed(
            &["0.1.2.3", "127.0.0.1", "224.0.0.1", "255.255.255.255"],
            || Falsehood::Always,
        );
        fixed(&["192.0.2.255"], || Falsehood::ForPods);
        fixed(&["0.0.0.0"], || Falsehood::NodesOwn);
        all.push(named(
            "the node",
            net.node.addresses[0],
            Falsehood::NodesOwn,
        ));
    } else {
        fixed(&["::1", "ff02::1", "::ffff:10.7.0.3"], || Falsehood::Always);
        fixed(&["::", "fe80::77"], || Falsehood::ForPods);
        let locals = [("gateway", &net.gateway), ("world", &net.world)];
        all.extend(locals.map(|(name, party)| {
            let name = format!("the link-local address of {name}");
            (name, party.link_local.into(), Falsehood::ForPods)
        }));
        all.push(named("the node", net.node.addresses[1], Falsehood::ForPods));
    }
    all
}

/// Adds packets of each kind from the world's own address, and from one behind it.
pub(super) fn honest(draft: &mut Draft, net: &Net, family: usize, goal: &Goal) {
    let macs = [net.world.mac, net.node.mac];
    let own = net.world.addresses[family];
    for (kind, body) in KINDS {
        let body = body(draft.marker(), goal.port);
        let frame = ip(macs, [own, goal.address], body).bytes();
        let frames = vec![frame; if kind == "UDP" { 6 } else { 1 }];
        let standing = Standing::Honest(vec![goal.receiver]);
        let name = format!("{kind} from the world to {}, {}", goal.name, goal.address);
        draft.push_all(name, frames, standing).source = Some(own);
    }
    let behind: IpAddr = ["198.51.100.9", "2001:db8:77::9"][family]
        .parse()
        .expect("an address");
    let body = Body::Udp(SOURCE_PORT, goal.port, draft.marker());
    let frame = ip(macs, [behind, goal.address], body).bytes();
    let standing = Standing::Honest(vec![goal.receiver]);
    let name = format!("UDP from {behind} to {}, {}", goal.name, goal.address);
    draft.push(name, frame, standing).source = Some(behind);
}

type MakeBody = fn(Vec<u8>, u16) -> Body;

const KINDS: [(&str, MakeBody); 2] = [
    ("UDP", |marker, port| Body::Udp(SOURCE_PORT, port, marker)),
    ("TCP", |marker, port| {
        Body::Tcp(SOURCE_PORT, port, flag::SYN, marker)
    }),
];

/// Adds packets with false source addresses, and in frames for others.
pub(super) fn lying(draft: &mut Draft, net: &Net, family: usize, goal: &Goal) {
    let macs = [net.world.mac, net.node.mac];
    for (who, source, falsehood) in false_sources(net, family) {
        for (kind, body) in KINDS {
            let body = body(draft.marker(), goal.port);
            let frame = ip(macs, [source, goal.address], body).bytes();
            let name = format!(
                "{kind} from {who}, {source}, to {}, {}",
                goal.name, goal.address
            );
            let is_for_pod = goal.receiver != Receiver::Node;
            let standing = match falsehood {
                Falsehood::ForPods => Goal::of_node(),
                Falsehood::Always | Falsehood::NodesOwn => LIE,
            };
            let cell = draft.push(name, frame, standing);
            if !is_for_pod || matches!(falsehood, Falsehood::NodesOwn) {
                cell.ignored = matches!(falsehood, Falsehood::NodesOwn).then_some(NO_ROUTE);
            }
        }
    }
    let own = net.world.addresses[family];
    for (who, to, ignored) in [
        ("all", BROADCAST, None),
        (
            "no station",
            Mac::new([2, 0xaa, 0, 0, 0, 5]),
            Some(OTHER_HOST),
        ),
        ("the gateway", net.gateway.mac, Some(OTHER_HOST)),
        ("mate", net.mate.mac, Some(OTHER_HOST)),
    ] {
        let body = Body::Udp(SOURCE_PORT, goal.port, draft.marker());
        let frame = ip([net.world.mac, to], [own, goal.address], body).bytes();
        let name = format!(
            "UDP in a frame for {who} to {}, {}",
            goal.name, goal.address
        );
        let standing = match ignored {
            Some(why) => Standing::Lie(why),
            None => Goal::of_node(),
        };
        draft.push(name, frame, standing).ignored = ignored;
    }
}

/// Adds packets with options, extension headers and wrong lengths, with the address of a pod.
pub(super) fn malformed(draft: &mut Draft, net: &Net, family: usize, goal: &Goal) {
    let macs = [net.world.mac, net.node.mac];
    let own = net.world.addresses[family];
    let liar = [net.far.addresses[family], net.gateway.addresses[family]];
    let may = Standing::Tolerated("options", vec![goal.receiver]);
    for (what, list) in options(net.mate.addresses[family]) {
        let liar = liar[draft.rng.usize(0..2)];
        for (source, standing) in [(own, may.clone()), (liar, LIE)] {
            let body = Body::Udp(SOURCE_PORT + 1, goal.port, draft.marker());
            let mut frame = ip(macs, [source, goal.address], body);
            frame.options.clone_from(&list);
            let name = format!(
                "UDP with {what} from {source} to {}, {}",
                goal.name, goal.address
            );
            draft.push(name, frame.bytes(), standing);
        }
    }
    for (what, change) in changes() {
        let mut payload = draft.marker();
        payload.resize(40, 0);
        let source = liar[draft.rng.usize(0..2)];
        let body = Body::Udp(SOURCE_PORT + 2, goal.port, payload);
        let frame = ip(macs, [source, goal.address], body).bytes();
        let name = format!(
            "UDP with {what} from {source} to {}, {}",
            goal.name, goal.address
        );
        draft.push(name, change(frame), LIE);
    }
}

/// Adds fragments with true and false sources.
pub(super) fn fragments(draft: &mut Draft, net: &Net, family: usize, goal: &Goal) {
    let macs = [net.world.mac, net.node.mac];
    let own = net.world.addresses[family];
    let liar = [net.far.addresses[family], net.gateway.addresses[family]];
    for (what, ranges) in [
        ("two fragments", vec![0..512, 512..1024]),
        ("a first fragment", iter::once(0..512).collect()),
        ("a later fragment", iter::once(512..1024).collect()),
        ("overlapping fragments", vec![0..512, 504..1024]),
        ("a tiny first fragment", vec![0..8, 8..1024]),
    ] {
        let liar = liar[draft.rng.usize(0..2)];
        for source in [own, liar] {
            let payload = draft.marker().repeat(127);
            let body = Body::Udp(SOURCE_PORT + 3, goal.port, payload);
            let whole = ip(macs, [source, goal.address], body);
            let number = u32::try_from(draft.cells.len()).expect("few cells");
            let frames = ranges
                .iter()
                .map(|range| whole.fragment(number, range.clone()))
                .collect();
            let standing = if source == liar {
                LIE
            } else if what == "two fragments" {
                Standing::Honest(vec![goal.receiver])
            } else {
                Standing::Tolerated("the first fragments decide", vec![goal.receiver])
            };
            let name = format!("{what} from {source} to {}, {}", goal.name, goal.address);
            draft.push_all(name, frames, standing);
        }
    }
}
