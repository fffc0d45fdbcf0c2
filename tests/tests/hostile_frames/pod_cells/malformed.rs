//! Packets of a pod with options, extension headers, wrong lengths, and in fragments.

use std::iter;
use std::net::IpAddr;

use abi::Mac;
use verdict::simulator::frame::{Body, Frame};

use super::super::cell::{Draft, Standing};
use super::super::net::{Net, Receiver};
use super::super::packets::{changes, options};
use super::super::sockets::PORT;
use super::super::wire::ip;
use super::goals;

/// Adds honest and false packets with options, and with lengths that contradict the frame.
pub(super) fn draft(draft: &mut Draft, net: &Net) {
    for family in [0, 1] {
        let own = net.attacker.addresses[family];
        let hop = net.far.addresses[family];
        let all = options(hop);
        for goal in goals(net) {
            let to = goal.party.addresses[family];
            let may = Standing::Tolerated("options", vec![goal.receiver]);
            let liars = [net.mate.addresses[family], net.gateway.addresses[family]];
            let lie = Standing::Lie("a false source address");
            let sources = [(own, may), (liars[draft.rng.usize(0..2)], lie)];
            for (what, options) in &all {
                for (source, standing) in &sources {
                    let body = Body::Udp(40_001, PORT, draft.marker());
                    let mut frame = ip([net.attacker.mac, goal.mac], [*source, to], body);
                    frame.options.clone_from(options);
                    let name = format!("UDP with {what} from {source} to {}, {to}", goal.name);
                    draft.push(name, frame.bytes(), standing.clone());
                }
            }
            lengths(draft, net, &sources[1].0, to, goal.mac);
        }
    }
}

/// Adds false packets with lengths of zero, too short, too long, and cut.
fn lengths(draft: &mut Draft, net: &Net, source: &IpAddr, to: IpAddr, mac: Mac) {
    let lie = Standing::Lie("a false source address");
    for (what, change) in changes() {
        let mut payload = draft.marker();
        payload.resize(40, 0);
        let body = Body::Udp(40_002, PORT, payload);
        let frame = ip([net.attacker.mac, mac], [*source, to], body).bytes();
        let name = format!("UDP with {what} from {source} to {to}");
        draft.push(name, change(frame), lie.clone());
    }
}

/// Adds fragments: whole datagrams, parts of them, overlapping and tiny ones.
pub(super) fn fragments(draft: &mut Draft, net: &Net) {
    for family in [0, 1] {
        let own = net.attacker.addresses[family];
        let lie = Standing::Lie("a false source address");
        for goal in goals(net) {
            let to = goal.party.addresses[family];
            let may = Standing::Honest(vec![goal.receiver]);
            let liar = [net.mate.addresses[family], net.gateway.addresses[family]];
            let liar = liar[draft.rng.usize(0..2)];
            for (source, standing) in [(own, may), (liar, lie.clone())] {
                let whole = datagram(draft, net, [source, to], goal.mac);
                let [first, second] = whole.fragments(identification(draft), 512);
                let name = format!("two fragments from {source} to {}, {to}", goal.name);
                draft.push_all(name, vec![first, second], standing);
            }
            for (what, ranges) in [
                ("a first fragment", iter::once(0..512).collect()),
                ("a later fragment", iter::once(512..1016).collect()),
                ("a last fragment", iter::once(512..1024).collect()),
                ("overlapping fragments", vec![0..512, 504..1024]),
                ("a tiny first fragment", vec![0..8, 8..1024]),
                ("a fragment twice", vec![0..512, 0..512, 512..1024]),
            ] {
                let whole = datagram(draft, net, [liar, to], goal.mac);
                let number = identification(draft);
                let frames = ranges
                    .into_iter()
                    .map(|range| whole.fragment(number, range))
                    .collect();
                let name = format!("{what} from {liar} to {}, {to}", goal.name);
                draft.push_all(name, frames, lie.clone());
            }
        }
        evasions(draft, net, family, own);
    }
}

fn identification(draft: &Draft) -> u32 {
    u32::try_from(draft.cells.len() % 0xffff).expect("it is small")
}

/// Returns a datagram of 1024 bytes with transport header, which has markers throughout.
fn datagram(draft: &Draft, net: &Net, addresses: [IpAddr; 2], mac: Mac) -> Frame {
    let payload = draft.marker().repeat(127);
    let body = Body::Udp(40_003, PORT, payload);
    ip([net.attacker.mac, mac], addresses, body)
}

/// Adds fragments of the pod's own datagrams that no stack makes: the ports of the first one are
/// replaced, or not in it.
fn evasions(draft: &mut Draft, net: &Net, family: usize, own: IpAddr) {
    let to = net.world.addresses[family];
    for (what, ranges) in [
        ("overlapping fragments", vec![0..512, 504..1024]),
        ("a tiny first fragment", vec![0..8, 8..1024]),
        ("two first fragments", vec![0..512, 0..504, 512..1024]),
    ] {
        let whole = datagram(draft, net, [own, to], net.gateway.mac);
        let number = identification(draft);
        let frames = ranges
            .into_iter()
            .map(|range| whole.fragment(number, range))
            .collect();
        let name = format!("{what} from the pod to the world, {to}");
        let standing = Standing::Tolerated("the first fragments decide", vec![Receiver::World]);
        draft.push_all(name, frames, standing);
    }
}
