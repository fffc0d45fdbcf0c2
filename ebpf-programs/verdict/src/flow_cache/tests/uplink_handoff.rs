//! Tests of the uplink hand-off: the pod's hook does the uplink's work for cached flows.

use super::*;
use crate::flow_cache::uplink_handoff::SkbTag;

/// Returns the verdict of the pod's hook, and the frame that leaves the node.
fn leave(node: &mut Simulator, bytes: &[u8]) -> (Verdict, Vec<u8>) {
    let (at_pod, _) = node.clone().run(Place::FromPod, INTERFACE, bytes);
    let (left, _, bytes) = go(node, INTERFACE, bytes);
    assert!(left);
    (at_pod, bytes)
}

fn leaves_handed_off(node: &mut Simulator, bytes: &[u8]) -> bool {
    leave(node, bytes).0 == Verdict::Redirect(UPLINK)
}

#[test]
fn from_the_third_packet_on_the_pods_hook_does_the_uplinks_work() {
    for family in FAMILIES {
        for body in [udp, |from, to| tcp(from, to, flag::ACK)] {
            let mut node = Simulator::new(open_node());
            let packet = to_world(family, body(40_000, 53));
            let (first, left) = leave(&mut node, &packet);
            let (second, again) = leave(&mut node, &packet);
            assert_eq!((first, second), (Verdict::RedirectNeigh(UPLINK), first));
            let (at_pod, bytes) = node.run(Place::FromPod, INTERFACE, &packet);
            assert_eq!(at_pod, Verdict::Redirect(UPLINK));
            assert_eq!((&again, &bytes), (&left, &left));
        }
    }
}

#[test]
fn hostport_replies_are_translated_at_the_pods_hook() {
    for family in FAMILIES {
        let mut node = Simulator::new(open_node());
        let asked = to_hostport(family, udp(40_000, HOSTPORT));
        let (_, delivered) = node.run(Place::UplinkIn, UPLINK, &asked);
        let reply = pods_answer(&delivered);
        let ways = [0; 3].map(|_| leaves_handed_off(&mut node, &reply));
        assert_eq!(ways, [false, true, true], "the flow was there before");
    }
}

#[test]
fn a_propagated_entry_expires_with_its_time_with_every_change_and_with_the_flow() {
    let packet = to_world(0, udp(40_000, 53));
    let changes: [fn(&mut World); 3] = [
        |world| world.clock += MAX_AGE * JIFFY,
        |world| world.settings.flow_quota += 1,
        |world| {
            let keys: Vec<Tuple> = world.flows.keys().copied().collect();
            for key in &keys {
                world.remove_flow(key);
            }
        },
    ];
    for change in changes {
        let mut node = Simulator::new(open_node());
        assert_eq!(
            [0; 3].map(|_| leaves_handed_off(&mut node, &packet)),
            [false, false, true]
        );
        change(&mut node.world);
        assert!(!leaves_handed_off(&mut node, &packet));
    }
}

#[test]
fn a_propagated_entry_has_the_age_of_its_older_half() {
    let mut node = Simulator::new(open_node());
    let packet = to_world(0, udp(40_000, 53));
    let mut after = |ticks| {
        node.world.clock += ticks * JIFFY;
        leaves_handed_off(&mut node, &packet)
    };
    assert!(!after(0), "at the pod's hook");
    assert!(!after(6), "at the uplink's");
    assert!(after(MAX_AGE - 7));
    assert!(!after(1), "once more at the pod's hook");
    assert!(after(5), "with what is known of the uplink's");
    assert!(!after(1));
}

#[test]
fn an_skb_tag_that_the_pod_set_is_ignored() {
    for skb_tag in [SkbTag::DONE, SkbTag::PROPAGATE, 1] {
        let mut node = Simulator::new(open_node());
        node.world.memory.skb_tag = skb_tag;
        let packet = to_world(0, tcp(40_000, 80, flag::SYN));
        let (verdict, _) = node.run_next(Place::FromPod, INTERFACE, &packet);
        assert_eq!(
            (verdict, node.world.memory.skb_tag),
            (Verdict::RedirectNeigh(UPLINK), 0)
        );
    }
}

#[test]
fn the_skb_tag_is_cleared_at_the_uplink() {
    let mut node = Simulator::new(open_node());
    let packet = to_world(0, udp(40_000, 53));
    for _ in 0..3 {
        leave(&mut node, &packet);
        assert_eq!(node.world.memory.skb_tag, 0);
    }
}

/// A packet, its input interface, and its mark.
type Sent = (Vec<u8>, u32, u32);

/// Pairs of packets that differ in one property.
fn pairs() -> Vec<[Sent; 2]> {
    let sent = |bytes| (bytes, INTERFACE, 0);
    let one = || sent(to_world(0, udp(40_000, 53)));
    let elsewhere = Frame::new(pod()[0], Address::v4([198, 51, 100, 9]), udp(40_000, 53));
    let from_another = Frame::new(other_pod()[0], remote()[0], udp(40_000, 53))
        .from_to(other_mac(), bridge_mac())
        .bytes();
    vec![
        [one(), sent(to_world(0, udp(40_001, 53)))],
        [one(), sent(to_world(0, tcp(40_000, 53, flag::ACK)))],
        [one(), sent(elsewhere.from_to(mac(), bridge_mac()).bytes())],
        [one(), (from_another, OTHER_INTERFACE, 0)],
        [one(), (one().0, INTERFACE, 7)],
    ]
}

#[test]
fn a_delayed_packet_propagates_only_to_its_own_cache_entry() {
    for [one, other] in pairs() {
        let mut world = open_node();
        world
            .egress_routes
            .insert(Address::v4([198, 51, 100, 9]), UPLINK);
        let mut twins = Twins::new(world);
        let send = |twins: &mut Twins, (bytes, interface, mark): &Sent| {
            twins.change(|world| world.mark = *mark);
            twins.send(*interface, bytes);
        };
        for sent in [&one, &other] {
            send(&mut twins, sent);
        }
        let held = twins.both(
            |node| delay_first(node, &one, &other),
            "the first packet is delayed",
        );
        twins.both(
            |node| release(node, &held),
            "the first packet leaves after the second",
        );
        for sent in [&other, &one, &other, &one] {
            send(&mut twins, sent);
        }
    }
}

/// Sends both packets through the pod's hook, and returns the first, which waits for neighbour
/// resolution.
fn delay_first(node: &mut Simulator, one: &Sent, other: &Sent) -> Vec<u8> {
    let mut held = Vec::new();
    for (bytes, interface, mark) in [one, other] {
        node.world.mark = *mark;
        let (verdict, mut bytes) = node.run(Place::FromPod, *interface, bytes);
        assert_eq!(
            (verdict, node.world.memory.skb_tag),
            (Verdict::RedirectNeigh(UPLINK), SkbTag::PROPAGATE)
        );
        address(&mut bytes, node);
        if held.is_empty() {
            held = bytes;
        }
    }
    held
}

fn release(node: &mut Simulator, held: &[u8]) -> Vec<u8> {
    (node.world.mark, node.world.memory.skb_tag) = (0, SkbTag::PROPAGATE);
    node.run_next(Place::UplinkOut, UPLINK, held).1
}

#[test]
fn behind_foreign_tc_programs_the_uplink_hook_does_its_own_work() {
    let mut node = Simulator::new(open_node());
    node.world.memory.preceded = true;
    let packet = to_world(0, udp(40_000, 53));
    assert_eq!(
        [0; 4].map(|_| leaves_handed_off(&mut node, &packet)),
        [false; 4]
    );
}

#[test]
fn a_packet_that_leaves_by_another_uplink_is_not_propagated() {
    const OTHER_UPLINK: u32 = UPLINK + 100;
    let mut world = open_node();
    let uplink = world.uplinks[&UPLINK];
    world.uplinks.insert(OTHER_UPLINK, uplink);
    let mut node = Simulator::new(world);
    let packet = to_world(0, udp(40_000, 53));
    for _ in 0..3 {
        let (verdict, bytes) = node.run(Place::FromPod, INTERFACE, &packet);
        assert_eq!(verdict, Verdict::RedirectNeigh(UPLINK));
        node.run_next(Place::UplinkOut, OTHER_UPLINK, &bytes);
    }
}
