//! Tests of identifications: who gets which, and when one is free again.

use super::*;

#[test]
fn datagrams_of_two_pods_leave_with_different_identifications() {
    for family in FAMILIES {
        let mut simulator = Simulator::new(world());
        let [a, b] = datagram(family, 40_000).fragments(0x77, 16);
        let [c, d] = other_datagram(family, 40_001).fragments(0x77, 16);
        let mut numbers = Vec::new();
        for (from, piece) in [
            (INTERFACE, a),
            (OTHER_INTERFACE, c),
            (INTERFACE, b),
            (OTHER_INTERFACE, d),
        ] {
            let left = leaving(&mut simulator, from, &piece);
            numbers.push(parse(&left[0]).0.3);
        }
        assert_eq!(numbers[0], numbers[2]);
        assert_eq!(numbers[1], numbers[3]);
        assert_ne!(numbers[0], numbers[1]);
    }
}

#[test]
fn the_nodes_own_datagram_does_not_get_the_identification_of_a_pods() {
    for family in FAMILIES {
        let mut simulator = Simulator::new(world());
        let pieces = datagram(family, 40_000).fragments(0x77, 16);
        for piece in &pieces {
            leaving(&mut simulator, INTERFACE, piece);
        }
        let body = Body::Udp(41_000, 53, vec![9; 100]);
        let own = Frame::new(node()[family], remote()[family], body).fragments(0x77, 16);
        let numbers = own.map(|piece| {
            let left = passing(&mut simulator, Place::UplinkOut, INTERFACE, &piece);
            parse(&left[0]).0.3
        });
        assert_eq!(numbers[0], numbers[1]);
        assert_ne!(numbers[0], 0x77);
    }
}

#[test]
fn a_sender_may_use_an_identification_again_for_fragments_in_any_order() {
    for family in FAMILIES {
        let mut simulator = Simulator::new(world());
        for (port, length) in [(40_000, 100), (40_001, 200), (40_002, 60)] {
            let body = Body::Udp(port, 53, vec![7; length]);
            let frame = datagram(family, port).becoming(pod()[family], remote()[family], body);
            let mut pieces = frame.fragments_at(0x77, &[16, 32, 48]);
            pieces.reverse();
            let mut left = Vec::new();
            for piece in pieces {
                left.extend(leaving(&mut simulator, INTERFACE, &piece));
            }
            let (node, remote) = (node()[family], remote()[family]);
            let expected = frame.becoming(node, remote, frame.body.clone());
            assert_eq!(reassemble(&left), BTreeSet::from([whole(&expected)]));
        }
    }
}

#[test]
fn an_identification_is_free_again_after_its_life() {
    for family in FAMILIES {
        let mut simulator = Simulator::new(world());
        let [first, _] = datagram(family, 40_000).fragments(0x77, 16);
        leaving(&mut simulator, INTERFACE, &first);
        simulator.world.now += LIFE + 1;
        simulator.world.clock += u64::from(LIFE + 1) * 1_000_000_000;
        simulator.world.flows_were_changed();
        let [first, _] = other_datagram(family, 40_001).fragments(0x77, 16);
        let left = leaving(&mut simulator, OTHER_INTERFACE, &first);
        assert_eq!(parse(&left[0]).0.3, 0x77);
    }
}
