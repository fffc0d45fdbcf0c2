//! Tests of the TCX fast path: it handles packets with a cached redirect, and passes all others on
//! unchanged.

use super::*;
use crate::stages;
use crate::work::Work;

/// Runs the fast path alone; returns its verdict, if it has one, and the frame.
fn fast_path(node: &mut Simulator, from: u32, bytes: &[u8]) -> (Option<Verdict>, Vec<u8>) {
    let (mut work, world) = (Work::default(), &mut node.world);
    world.packet = bytes.to_vec();
    let verdict = stages::find_cached_redirect(world, &mut &mut work, from);
    (verdict, std::mem::take(&mut world.packet))
}

/// Returns a node on which the packet was sent often enough to be in the flow cache.
fn node_with_cached(world: World, bytes: &[u8]) -> Simulator {
    let mut node = Simulator::new(world);
    for _ in 0..4 {
        go(&mut node, INTERFACE, bytes);
    }
    node
}

#[test]
fn the_tcx_fast_path_gives_the_verdict_of_the_hook() {
    for family in FAMILIES {
        for body in [udp(40_000, 53), tcp(40_000, 53, flag::ACK)] {
            let ways = [to_neighbour(family, body.clone()), to_world(family, body)];
            for packet in ways {
                let (mut short, mut long) = (
                    node_with_cached(open_node(), &packet),
                    node_with_cached(open_node(), &packet),
                );
                let (verdict, after) = fast_path(&mut short, INTERFACE, &packet);
                let other = long.run(Place::FromPod, INTERFACE, &packet);
                assert_eq!((verdict.expect("a cached redirect"), after), other);
                assert_eq!(short.world.counters, long.world.counters);
                assert_eq!(flows(&short), flows(&long));
                assert_eq!(short.world.memory.skb_tag, long.world.memory.skb_tag);
            }
        }
    }
}

#[test]
fn the_tcx_fast_path_does_not_count_packets_that_take_the_stack() {
    let mut world = open_node();
    world.settings.flags &= !SettingsFlags::BYPASS;
    let packet = to_neighbour(0, udp(1, 2));
    let mut node = node_with_cached(world, &packet);
    let before = (node.world.counters.clone(), node.world.memory.hits);
    assert_eq!(fast_path(&mut node, INTERFACE, &packet), (None, packet));
    assert_eq!((node.world.counters, node.world.memory.hits), before);
}

#[test]
fn the_tcx_fast_path_leaves_new_closing_and_spoofed_packets_to_the_hook() {
    let known = to_neighbour(0, tcp(1, 2, flag::ACK));
    let mut forged = known.clone();
    forged[6] ^= 2;
    let others = [
        to_neighbour(0, tcp(1, 3, flag::ACK)),
        to_neighbour(0, tcp(1, 2, flag::SYN)),
        to_neighbour(0, tcp(1, 2, flag::FIN | flag::ACK)),
        forged,
    ];
    let mut node = node_with_cached(open_node(), &known);
    for other in others {
        assert_eq!(fast_path(&mut node, INTERFACE, &other), (None, other));
    }
    assert!(fast_path(&mut node, INTERFACE, &known).0.is_some());
    node.world.tagged = true;
    assert_eq!(fast_path(&mut node, INTERFACE, &known), (None, known));
}

#[test]
fn the_tcx_fast_path_adds_no_cache_entry_and_obeys_expiry() {
    let packet = to_neighbour(0, udp(1, 2));
    let mut node = node_with_cached(open_node(), &packet);
    node.world.clock += MAX_AGE * JIFFY;
    for _ in 0..2 {
        assert_eq!(fast_path(&mut node, INTERFACE, &packet).0, None);
    }
}
