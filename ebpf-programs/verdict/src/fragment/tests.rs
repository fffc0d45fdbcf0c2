//! Tests of fragments: ranges, order, shares and identification, on the simulated node.

mod identifications;
mod receiver;

use std::collections::{BTreeMap, BTreeSet};

use abi::{Datagram, DatagramFlags, DropReason, FragmentRange, RING, Share};
use proptest::prelude::*;

use self::receiver::{parse, reassemble, received, whole};
use super::LIFE;
use super::range::add_range;
use crate::outcome::Verdict;
use crate::simulator::example::{
    FAMILIES, HOSTPORT, INTERFACE, OTHER_INTERFACE, POD_PORT, bridge_mac, mac, node, other_mac,
    other_pod, pod, remote, world,
};
use crate::simulator::frame::{Body, Frame, flag};
use crate::simulator::{Place, Simulator};

/// Runs a packet, and those that are sent through the hook again because of it.
fn run(node: &mut Simulator, place: Place, from: u32, bytes: &[u8]) -> Vec<(Verdict, Vec<u8>)> {
    let mut outcomes = vec![node.run(place, from, bytes)];
    while !node.world.reinjected.is_empty() {
        let packet = node.world.reinjected.remove(0);
        outcomes.push(node.run(place, from, &packet));
    }
    outcomes
}

/// Runs a packet; returns those that pass, as they leave the hook.
fn passing(node: &mut Simulator, place: Place, from: u32, bytes: &[u8]) -> Vec<Vec<u8>> {
    run(node, place, from, bytes)
        .into_iter()
        .filter(|(verdict, _)| matches!(verdict, Verdict::Pass | Verdict::RedirectPeer(_)))
        .map(|(_, bytes)| bytes)
        .collect()
}

/// Runs a pod's packet through its veth and the uplink; returns what leaves the node.
fn leaving(node: &mut Simulator, from: u32, bytes: &[u8]) -> Vec<Vec<u8>> {
    passing(node, Place::FromPod, from, bytes)
        .iter()
        .flat_map(|bytes| passing(node, Place::UplinkOut, INTERFACE, bytes))
        .collect()
}

/// A datagram of the property tests.
#[derive(Clone, Debug)]
struct Sent {
    second_pod: bool,
    echo: bool,
    length: usize,
    cuts: BTreeSet<usize>,
}

fn sent() -> impl Strategy<Value = Sent> {
    let cuts = prop::collection::btree_set(1..20_usize, 1..5);
    (any::<[bool; 2]>(), 160..400_usize, cuts).prop_map(|([second_pod, echo], length, cuts)| Sent {
        second_pod,
        echo,
        length,
        cuts: cuts.into_iter().map(|cut| cut * 8).collect(),
    })
}

impl Sent {
    /// The body with one source port or identifier; `number` fills the payload.
    fn body(&self, family: usize, number: usize, ports: [u16; 2]) -> Body {
        let payload = vec![u8::try_from(number).expect("few datagrams"); self.length];
        if self.echo {
            let [a, b] = ports[0].to_be_bytes();
            Body::Icmp([8, 128][family], 0, [a, b, 0, 7], payload)
        } else {
            Body::Udp(ports[0], ports[1], payload)
        }
    }

    fn pieces(&self, frame: &Frame, identification: u32) -> Vec<Vec<u8>> {
        let cuts: Vec<usize> = self.cuts.iter().copied().collect();
        frame.fragments_at(identification, &cuts)
    }
}

/// Shuffles all pieces, each with as many copies as the numbers say.
fn shuffled(pieces: Vec<(usize, Vec<u8>)>, copies: &[u8], order: &[u32]) -> Vec<(usize, Vec<u8>)> {
    let mut all: Vec<_> = pieces
        .into_iter()
        .zip(copies.iter().cycle())
        .flat_map(|(piece, copies)| vec![piece; usize::from(*copies)])
        .zip(order.iter().cycle())
        .enumerate()
        .map(|(index, (piece, order))| {
            (order.rotate_left(u32::try_from(index).unwrap() % 32), piece)
        })
        .collect();
    all.sort_by_key(|(order, _)| *order);
    all.into_iter().map(|(_, piece)| piece).collect()
}

/// Checks that nothing waits but copies of fragments of complete datagrams, and that they are
/// dropped by name when they expire.
fn check_held(simulator: &mut Simulator, copies: &[u8]) -> Result<(), TestCaseError> {
    let waiting = simulator.world.held.len() as u64;
    prop_assert!(waiting == 0 || copies.iter().any(|copies| *copies > 1));
    prop_assert!(simulator.world.drops.is_empty());
    simulator.world.now += LIFE + 1;
    simulator.sweep();
    prop_assert!(simulator.world.held.is_empty());
    let drops = &simulator.world.drops;
    let lost = drops.get(&DropReason::FragmentWithoutFirst);
    prop_assert_eq!(lost.map_or(0, |lost| lost.packets), waiting);
    prop_assert!(drops.len() <= 1);
    Ok(())
}

proptest! {
    #[test]
    fn any_order_of_the_fragments_of_pods_leaves_as_their_datagrams(
        family in 0..2_usize,
        all in prop::collection::vec(sent(), 1..8),
        copies in prop::collection::vec(1..3_u8, 1..20),
        order in prop::collection::vec(any::<u32>(), 40),
    ) {
        let mut simulator = Simulator::new(world());
        let mut pieces = Vec::new();
        let mut frames = Vec::new();
        let mut numbers = [[0_u32; 2]; 2];
        for (number, sent) in all.iter().enumerate() {
            let (pods, mac, interface) = if sent.second_pod {
                (other_pod(), other_mac(), OTHER_INTERFACE)
            } else {
                (pod(), mac(), INTERFACE)
            };
            // Both pods count from the same identification on.
            let identification = &mut numbers[usize::from(sent.second_pod)][usize::from(sent.echo)];
            *identification += 1;
            let port = 40_000 + u16::try_from(number).expect("few datagrams");
            let body = sent.body(family, number, [port, 53]);
            let frame = Frame::new(pods[family], remote()[family], body).from_to(mac, bridge_mac());
            for piece in sent.pieces(&frame, *identification) {
                pieces.push((interface as usize, piece));
            }
            frames.push(frame.becoming(node()[family], remote()[family], frame.body.clone()));
        }
        let mut left = Vec::new();
        for (interface, piece) in shuffled(pieces, &copies, &order) {
            left.extend(leaving(&mut simulator, u32::try_from(interface)?, &piece));
        }
        let expected: BTreeSet<_> = frames.iter().map(whole).collect();
        prop_assert_eq!(reassemble(&left), expected);
        check_held(&mut simulator, &copies)?;
    }

    #[test]
    fn any_order_of_the_fragments_from_outside_reaches_the_pod_as_datagrams(
        family in 0..2_usize,
        all in prop::collection::vec(sent(), 1..8),
        copies in prop::collection::vec(1..3_u8, 1..20),
        order in prop::collection::vec(any::<u32>(), 40),
    ) {
        let mut simulator = Simulator::new(world());
        let (client, node, pod) = (remote()[family], node()[family], pod()[family]);
        let (mut pieces, mut expected) = (Vec::new(), BTreeSet::new());
        for (number, sent) in all.iter().enumerate() {
            let sent = Sent { echo: false, ..sent.clone() };
            let port = 40_000 + u16::try_from(number).expect("few datagrams");
            let frame = Frame::new(client, node, sent.body(family, number, [port, HOSTPORT]));
            let numbered = sent.pieces(&frame, u32::from(port));
            pieces.extend(numbered.into_iter().map(|piece| (0, piece)));
            let inside = sent.body(family, number, [port, POD_PORT]);
            expected.insert(whole(&frame.becoming(client, pod, inside)));
        }
        let mut entered = Vec::new();
        for (_, piece) in shuffled(pieces, &copies, &order) {
            entered.extend(passing(&mut simulator, Place::UplinkIn, INTERFACE, &piece));
        }
        prop_assert_eq!(reassemble(&entered), expected);
        check_held(&mut simulator, &copies)?;
    }

    /// Copies of later fragments may arrive after their datagram is complete. The receiver then
    /// starts another one with them, which takes its first fragment from the next datagram, and so
    /// does the node.
    #[test]
    fn datagrams_with_one_identification_arrive_as_without_translation(
        family in 0..2_usize,
        from_pod in any::<bool>(),
        all in prop::collection::vec(sent(), 2..6),
        copies in prop::collection::vec(1..3_u8, 1..20),
        order in prop::collection::vec(any::<u32>(), 40),
    ) {
        let mut simulator = Simulator::new(world());
        let (client, node, pod) = (remote()[family], node()[family], pod()[family]);
        let (mut arriving, mut left) = (Vec::new(), Vec::new());
        let mut translated = BTreeMap::new();
        for (number, sent) in all.into_iter().enumerate() {
            // Later fragments are equal, so a copy is one of the next datagram as well.
            let cuts = [16, 40, 64].into();
            let sent = Sent { length: 100, echo: sent.echo && from_pod, cuts, ..sent };
            let port = 40_000 + u16::try_from(number).expect("few datagrams");
            let [before, after] = if from_pod {
                let body = sent.body(family, 0, [port, 53]);
                let frame = Frame::new(pod, client, body.clone()).from_to(mac(), bridge_mac());
                [frame.clone(), frame.becoming(node, client, body)]
            } else {
                let frame = Frame::new(client, node, sent.body(family, 0, [port, HOSTPORT]));
                let inside = sent.body(family, 0, [port, POD_PORT]);
                [frame.clone(), frame.becoming(client, pod, inside)]
            };
            translated.insert(whole(&before), whole(&after));
            let pieces = sent.pieces(&before, 0x77).into_iter().enumerate();
            let order: Vec<_> = order.iter().map(|it| it.rotate_left(port.into())).collect();
            let once = [1].into_iter().chain(copies.iter().copied());
            let copies: Vec<_> = once.take(4).collect();
            for (_, piece) in shuffled(pieces.collect(), &copies, &order) {
                left.extend(if from_pod {
                    leaving(&mut simulator, INTERFACE, &piece)
                } else {
                    passing(&mut simulator, Place::UplinkIn, INTERFACE, &piece)
                });
                arriving.push(piece);
            }
        }
        let expected: Vec<_> = received(&arriving)
            .iter()
            .map(|whole| translated[whole].clone())
            .collect();
        prop_assert_eq!(received(&left), expected);
    }

    #[test]
    fn ranges_overlap_as_sets_of_units_do(
        ranges in prop::collection::vec((0..40_u16, 1..6_u16), 1..60),
    ) {
        let mut datagram = Datagram::default();
        let mut seen: BTreeSet<u16> = BTreeSet::new();
        for (start, length) in ranges {
            let units: BTreeSet<u16> = (start..start + length).collect();
            let range = FragmentRange { start, end: start + length };
            let expected = if units.is_subset(&seen) || units.is_disjoint(&seen) {
                seen.extend(units);
                Ok(())
            } else {
                Err(DropReason::OverlappingFragment)
            };
            prop_assert_eq!(add_range(&mut datagram, range, false), expected);
        }
        let used = &datagram.ranges[..datagram.used as usize];
        let covered: BTreeSet<u16> = used.iter().flat_map(|range| range.start..range.end).collect();
        prop_assert_eq!(covered, seen);
    }
}

/// A datagram of the first pod to the remote machine.
fn datagram(family: usize, port: u16) -> Frame {
    let body = Body::Udp(port, 53, vec![7; 100]);
    Frame::new(pod()[family], remote()[family], body).from_to(mac(), bridge_mac())
}

/// The same datagram of the second pod.
fn other_datagram(family: usize, port: u16) -> Frame {
    let frame = datagram(family, port);
    let body = frame.body.clone();
    let from = other_pod()[family];
    frame
        .becoming(from, remote()[family], body)
        .from_to(other_mac(), bridge_mac())
}

#[test]
fn a_spoofed_first_fragment_changes_nothing() {
    for family in FAMILIES {
        let mut simulator = Simulator::new(world());
        let (client, node) = (remote()[family], node()[family]);
        let spoofed = Frame::new(client, node, Body::Udp(1, HOSTPORT, vec![7; 100]))
            .from_to(mac(), bridge_mac());
        for piece in spoofed.fragments(0x77, 16) {
            let outcomes = run(&mut simulator, Place::FromPod, INTERFACE, &piece);
            let spoofed = Verdict::Drop(DropReason::SpoofedAddress);
            assert_eq!(outcomes[0].0, spoofed);
        }
        let forged = Frame::new(pod()[family], node, Body::Udp(1, HOSTPORT, vec![7; 100]));
        for piece in forged.fragments(0x77, 16) {
            let outcomes = run(&mut simulator, Place::UplinkIn, INTERFACE, &piece);
            let spoofed = Verdict::Drop(DropReason::SpoofedFromOutside);
            assert_eq!(outcomes[0].0, spoofed);
        }
        assert!(simulator.world.fragments.is_empty());
        assert!(simulator.world.held.is_empty());
    }
}

#[test]
fn a_second_first_fragment_with_other_ports_is_dropped() {
    for family in FAMILIES {
        let mut simulator = Simulator::new(world());
        let (client, node) = (remote()[family], node()[family]);
        let of = |port| Frame::new(client, node, Body::Udp(port, HOSTPORT, vec![7; 100]));
        let [first, later] = of(50_000).fragments(0x77, 16);
        let [other, _] = of(50_001).fragments(0x77, 16);
        let mut outcome =
            |piece: &[u8]| run(&mut simulator, Place::UplinkIn, INTERFACE, piece)[0].0;
        let overlap = Verdict::Drop(DropReason::OverlappingFragment);
        assert_eq!(outcome(&first), Verdict::Pass);
        assert_eq!(outcome(&other), overlap);
        // The datagram is refused as a whole (RFC 5722).
        assert_eq!(outcome(&later), overlap);
    }
}

#[test]
fn overlapping_and_tiny_fragments_are_dropped_by_name() {
    for family in FAMILIES {
        let udp = datagram(family, 40_000);
        let body = Body::Tcp(40_000, 443, flag::SYN, vec![7; 100]);
        let tcp = udp.becoming(pod()[family], remote()[family], body);
        let overlap = DropReason::OverlappingFragment;
        for (pieces, reason) in [
            (
                vec![udp.fragment(1, 0..64), udp.fragment(1, 56..108)],
                overlap,
            ),
            (
                vec![udp.fragment(1, 56..108), udp.fragment(1, 0..64)],
                overlap,
            ),
            (
                vec![udp.fragment(1, 0..64), udp.fragment(1, 0..72)],
                overlap,
            ),
            (vec![tcp.fragment(1, 8..120)], overlap),
            (vec![tcp.fragment(1, 16..120)], overlap),
            (vec![tcp.fragment(1, 0..16)], DropReason::TinyFragment),
        ] {
            let mut simulator = Simulator::new(world());
            let outcomes: Vec<_> = pieces
                .iter()
                .flat_map(|piece| run(&mut simulator, Place::FromPod, INTERFACE, piece))
                .collect();
            assert_eq!(outcomes.last().map(|it| it.0), Some(Verdict::Drop(reason)));
        }
    }
}

/// The receiver drops it: the copy that arrived first is kept.
#[test]
fn a_fragment_within_another_is_a_duplicate_and_passes() {
    for family in FAMILIES {
        let mut simulator = Simulator::new(world());
        let udp = datagram(family, 40_000);
        for range in [0..64, 72..108, 8..32, 72..108, 72..80, 0..64] {
            let piece = udp.fragment(1, range);
            assert_eq!(leaving(&mut simulator, INTERFACE, &piece).len(), 1);
        }
    }
}

/// The fragment of the next datagram with the identification may not get the ports of this one.
#[test]
fn a_later_fragment_behind_a_complete_datagram_waits_for_a_first_one() {
    for family in FAMILIES {
        let mut simulator = Simulator::new(world());
        let [first, later] = datagram(family, 40_000).fragments(0x77, 16);
        for piece in [&first, &later] {
            let left = passing(&mut simulator, Place::FromPod, INTERFACE, piece);
            assert_eq!(left.len(), 1);
        }
        let [next, early] = datagram(family, 40_001).fragments(0x77, 16);
        let outcomes = run(&mut simulator, Place::FromPod, INTERFACE, &early);
        assert_eq!(outcomes[0].0, Verdict::Consume);
        // The fragments of the complete one reach the uplink meanwhile.
        for piece in [&first, &later] {
            let left = passing(&mut simulator, Place::UplinkOut, INTERFACE, piece);
            assert_eq!(left.len(), 1);
        }
        assert_eq!(leaving(&mut simulator, INTERFACE, &next).len(), 2);
        assert!(simulator.world.held.is_empty());
        assert!(simulator.world.drops.is_empty());
    }
}

#[test]
fn one_pods_first_fragments_do_not_push_out_anothers() {
    for family in FAMILIES {
        let mut simulator = Simulator::new(world());
        let [first, later] = other_datagram(family, 40_000).fragments(0x77, 16);
        assert_eq!(leaving(&mut simulator, OTHER_INTERFACE, &first).len(), 1);
        for identification in 0..30_000 {
            let [first, _] = datagram(family, 40_000).fragments(identification, 16);
            simulator.run(Place::FromPod, INTERFACE, &first);
        }
        assert_eq!(leaving(&mut simulator, OTHER_INTERFACE, &later).len(), 1);
        assert!(simulator.world.fragments.len() <= 2 * RING as usize);
    }
}

#[test]
fn a_pod_has_a_bounded_number_of_fragments_that_wait() {
    for family in FAMILIES {
        let mut simulator = Simulator::new(world());
        for identification in 0..RING + 6 {
            let [_, later] = datagram(family, 40_000).fragments(identification, 16);
            let outcomes = run(&mut simulator, Place::FromPod, INTERFACE, &later);
            assert_eq!(outcomes[0].0, Verdict::Consume);
        }
        assert_eq!(simulator.world.held.len(), RING as usize);
        let lost = |simulator: &Simulator| {
            let drops = simulator.world.drops.get(&DropReason::FragmentWithoutFirst);
            drops.map_or(0, |drops| drops.packets)
        };
        assert_eq!(lost(&simulator), 6);
        // The first fragments of the others are too late.
        simulator.world.now += LIFE + 1;
        simulator.sweep();
        assert_eq!(lost(&simulator), u64::from(RING) + 6);
        assert!(simulator.world.held.is_empty());
    }
}

#[test]
fn fragments_that_the_node_only_forwards_have_no_state() {
    for family in FAMILIES {
        let mut simulator = Simulator::new(world());
        let (one, other) = (
            remote()[family],
            crate::simulator::example::friend()[family],
        );
        let frame = Frame::new(one, other, Body::Udp(1, 2, vec![7; 100]));
        let [first, later] = frame.fragments(0x77, 16);
        for place in [Place::UplinkIn, Place::UplinkOut] {
            for piece in [&later, &first] {
                let left = passing(&mut simulator, place, INTERFACE, piece);
                assert_eq!(left, std::slice::from_ref(piece));
            }
        }
        assert!(simulator.world.fragments.is_empty());
    }
}

#[test]
fn shares_of_pods_and_others_are_disjoint() {
    const {
        assert!(Share::OUTSIDE >= abi::maps::PODS_CAPACITY);
        assert!(Share::OUTSIDE_HELD <= Share::OUTSIDE_DATAGRAMS);
    }
    let others = Share::OUTSIDE_DATAGRAMS + Share::NODE_DATAGRAMS + Share::TRANSLATED_DATAGRAMS;
    let shares = abi::maps::PODS_CAPACITY + others;
    assert!(shares <= abi::maps::DATAGRAMS.capacity);
    assert_eq!(DatagramFlags::PORTS.count_ones(), 1);
}
