//! Tests of the cache threshold: new flows are not cached.

use super::*;

const FIRST: u64 = 4;

fn young_node() -> World {
    let mut world = open_node();
    world.memory.cache_threshold = FIRST;
    world
}

#[test]
fn a_flow_is_cached_after_its_first_packets() {
    for family in FAMILIES {
        for body in [udp, |from, to| tcp(from, to, flag::ACK)] {
            let mut twins = Twins::new(young_node());
            let packet = to_hostport(family, body(40_000, HOSTPORT));
            for sent in 1..=2 * FIRST {
                twins.run(Place::UplinkIn, UPLINK, &packet);
                // The first packet after the threshold creates the cache entry.
                let taken = sent.saturating_sub(FIRST + 1);
                assert_eq!(twins.taken(), taken, "packet {sent}");
            }
        }
    }
}

/// Returns whether the pod's hook has done the uplink's work, and the frame that leaves the node.
fn leave(node: &mut Simulator, bytes: &[u8]) -> (bool, Vec<u8>) {
    let (verdict, mut bytes) = node.run(Place::FromPod, INTERFACE, bytes);
    assert_eq!(verdict, Verdict::RedirectNeigh(UPLINK));
    address(&mut bytes, node);
    let (passed, after) = node.run_next(Place::UplinkOut, UPLINK, &bytes);
    assert_eq!(passed, Verdict::Pass);
    (after == bytes, after)
}

#[test]
fn packets_of_a_new_flow_are_translated_at_the_pods_hook() {
    for family in FAMILIES {
        for flags in [flag::ACK, flag::FIN | flag::ACK, flag::SYN | flag::ACK] {
            let mut node = Simulator::new(young_node());
            let asked = to_hostport(family, tcp(40_000, HOSTPORT, flag::SYN));
            let (_, delivered) = node.run(Place::UplinkIn, UPLINK, &asked);
            let mut reply = pods_answer(&delivered);
            let flags_at = reply.len() - b"payload".len() - 7;
            reply[flags_at] = flags;
            let mut slow = node.clone();
            slow.world.memory.preceded = true;
            let (done, left) = leave(&mut node, &reply);
            let (done_slowly, same) = leave(&mut slow, &reply);
            assert_eq!(left, same);
            assert!(done && !done_slowly);
            assert_eq!(node.world.flows, slow.world.flows);
            assert_eq!(node.world.counters, slow.world.counters);
        }
    }
}

#[test]
fn the_uplink_hook_creates_a_new_flow() {
    let mut node = Simulator::new(young_node());
    let (done, _) = leave(&mut node, &to_world(0, tcp(40_000, 80, flag::SYN)));
    assert!(!done);
    let (done, _) = leave(&mut node, &to_world(0, tcp(40_000, 80, flag::ACK)));
    assert!(done);
}
