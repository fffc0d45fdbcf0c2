//! In front of a busy pod's hook: what takes a shortcut past the stack ends there, and nothing else is touched.

use super::*;
use crate::stages;
use crate::work::Work;

/// What the short way alone makes of a packet.
fn straight(node: &mut Simulator, from: u32, bytes: &[u8]) -> (Option<Verdict>, Vec<u8>) {
    let (mut work, world) = (Work::default(), &mut node.world);
    world.packet = bytes.to_vec();
    let verdict = stages::find_cached_redirect(world, &mut &mut work, from);
    (verdict, std::mem::take(&mut world.packet))
}

/// A node on which the packet was sent so often that a shortcut is known for it.
fn used(world: World, bytes: &[u8]) -> Simulator {
    let mut node = Simulator::new(world);
    for _ in 0..4 {
        go(&mut node, INTERFACE, bytes);
    }
    node
}

#[test]
fn a_packet_under_way_ends_there_as_it_would_behind_it() {
    for family in FAMILIES {
        for body in [udp(40_000, 53), tcp(40_000, 53, flag::ACK)] {
            let ways = [to_neighbour(family, body.clone()), to_world(family, body)];
            for packet in ways {
                let (mut short, mut long) =
                    (used(open_node(), &packet), used(open_node(), &packet));
                let (verdict, after) = straight(&mut short, INTERFACE, &packet);
                let other = long.run(Place::FromPod, INTERFACE, &packet);
                assert_eq!((verdict.expect("a shortcut"), after), other);
                assert_eq!(short.world.counters, long.world.counters);
                assert_eq!(flows(&short), flows(&long));
                assert_eq!(short.world.memory.skb_tag, long.world.memory.skb_tag);
            }
        }
    }
}

#[test]
fn what_goes_to_the_stack_is_not_even_counted_there() {
    let mut world = open_node();
    world.settings.flags &= !SettingsFlags::BYPASS;
    let packet = to_neighbour(0, udp(1, 2));
    let mut node = used(world, &packet);
    let before = (node.world.counters.clone(), node.world.memory.hits);
    assert_eq!(straight(&mut node, INTERFACE, &packet), (None, packet));
    assert_eq!((node.world.counters, node.world.memory.hits), before);
}

#[test]
fn what_is_new_ends_a_connection_or_is_forged_is_left_to_the_hook() {
    let known = to_neighbour(0, tcp(1, 2, flag::ACK));
    let mut forged = known.clone();
    forged[6] ^= 2;
    let others = [
        to_neighbour(0, tcp(1, 3, flag::ACK)),
        to_neighbour(0, tcp(1, 2, flag::SYN)),
        to_neighbour(0, tcp(1, 2, flag::FIN | flag::ACK)),
        forged,
    ];
    let mut node = used(open_node(), &known);
    for other in others {
        assert_eq!(straight(&mut node, INTERFACE, &other), (None, other));
    }
    assert!(straight(&mut node, INTERFACE, &known).0.is_some());
    node.world.tagged = true;
    assert_eq!(straight(&mut node, INTERFACE, &known), (None, known));
}

#[test]
fn it_makes_no_shortcut_and_one_ends_with_its_time() {
    let packet = to_neighbour(0, udp(1, 2));
    let mut node = used(open_node(), &packet);
    node.world.clock += MAX_AGE * JIFFY;
    for _ in 0..2 {
        assert_eq!(straight(&mut node, INTERFACE, &packet).0, None);
    }
}
