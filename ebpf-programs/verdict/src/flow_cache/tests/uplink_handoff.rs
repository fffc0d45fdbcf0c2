//! What a pod's hook does of the uplink's work, and when it does not.

use super::*;
use crate::flow_cache::uplink_handoff::SkbTag;

/// What the node says at the pod's hook, and what leaves it in the end.
fn leave(node: &mut Simulator, bytes: &[u8]) -> (Verdict, Vec<u8>) {
    let (at_pod, _) = node.clone().run(Place::FromPod, INTERFACE, bytes);
    let (left, _, bytes) = go(node, INTERFACE, bytes);
    assert!(left);
    (at_pod, bytes)
}

fn knows_the_way(node: &mut Simulator, bytes: &[u8]) -> bool {
    leave(node, bytes).0 == Verdict::Redirect(UPLINK)
}

#[test]
fn from_the_third_packet_on_all_is_done_at_the_pods_hook() {
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
fn replies_from_a_hostport_are_translated_at_the_pods_hook_as_well() {
    for family in FAMILIES {
        let mut node = Simulator::new(open_node());
        let asked = to_hostport(family, udp(40_000, HOSTPORT));
        let (_, delivered) = node.run(Place::UplinkIn, UPLINK, &asked);
        let reply = pods_answer(&delivered);
        let ways = [0; 3].map(|_| knows_the_way(&mut node, &reply));
        assert_eq!(ways, [false, true, true], "the flow was there before");
    }
}

#[test]
fn what_was_learnt_ends_with_its_time_with_every_change_and_with_the_flow() {
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
            [0; 3].map(|_| knows_the_way(&mut node, &packet)),
            [false, false, true]
        );
        change(&mut node.world);
        assert!(!knows_the_way(&mut node, &packet));
    }
}

#[test]
fn what_was_learnt_is_as_old_as_the_older_half_of_it() {
    let mut node = Simulator::new(open_node());
    let packet = to_world(0, udp(40_000, 53));
    let mut after = |ticks| {
        node.world.clock += ticks * JIFFY;
        knows_the_way(&mut node, &packet)
    };
    assert!(!after(0), "at the pod's hook");
    assert!(!after(6), "at the uplink's");
    assert!(after(MAX_AGE - 7));
    assert!(!after(1), "once more at the pod's hook");
    assert!(after(5), "with what is known of the uplink's");
    assert!(!after(1));
}

#[test]
fn a_pods_own_tag_counts_for_nothing() {
    for skb_tag in [SkbTag::DONE, SkbTag::PROPAGATE, 1] {
        let mut node = Simulator::new(open_node());
        node.world.memory.skb_tag = skb_tag;
        let packet = to_world(0, tcp(40_000, 80, flag::SYN));
        let (verdict, _) = node.go_on(Place::FromPod, INTERFACE, &packet);
        assert_eq!(
            (verdict, node.world.memory.skb_tag),
            (Verdict::RedirectNeigh(UPLINK), 0)
        );
    }
}

#[test]
fn a_tag_goes_no_further_than_the_uplink() {
    let mut node = Simulator::new(open_node());
    let packet = to_world(0, udp(40_000, 53));
    for _ in 0..3 {
        leave(&mut node, &packet);
        assert_eq!(node.world.memory.skb_tag, 0);
    }
}

/// A packet, the interface that it comes by, and its mark.
type Sent = (Vec<u8>, u32, u32);

/// Pairs of packets that differ in one thing.
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
fn a_packet_that_was_held_up_teaches_no_shortcut_but_its_own() {
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
        let held = twins.both(|node| hold_up(node, &one, &other), "the first is held up");
        twins.both(|node| let_go(node, &held), "it goes on behind the other");
        for sent in [&other, &one, &other, &one] {
            send(&mut twins, sent);
        }
    }
}

/// Shows both packets to the pod's hook, and gives the first back as it waits for its neighbour.
fn hold_up(node: &mut Simulator, one: &Sent, other: &Sent) -> Vec<u8> {
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

fn let_go(node: &mut Simulator, held: &[u8]) -> Vec<u8> {
    (node.world.mark, node.world.memory.skb_tag) = (0, SkbTag::PROPAGATE);
    node.go_on(Place::UplinkOut, UPLINK, held).1
}

#[test]
fn where_programs_of_others_come_first_the_uplinks_own_does_its_work() {
    let mut node = Simulator::new(open_node());
    node.world.memory.preceded = true;
    let packet = to_world(0, udp(40_000, 53));
    assert_eq!(
        [0; 4].map(|_| knows_the_way(&mut node, &packet)),
        [false; 4]
    );
}

#[test]
fn a_packet_that_leaves_by_another_uplink_has_nothing_to_teach() {
    const OTHER_UPLINK: u32 = UPLINK + 100;
    let mut world = open_node();
    let uplink = world.uplinks[&UPLINK];
    world.uplinks.insert(OTHER_UPLINK, uplink);
    let mut node = Simulator::new(world);
    let packet = to_world(0, udp(40_000, 53));
    for _ in 0..3 {
        let (verdict, bytes) = node.run(Place::FromPod, INTERFACE, &packet);
        assert_eq!(verdict, Verdict::RedirectNeigh(UPLINK));
        node.go_on(Place::UplinkOut, OTHER_UPLINK, &bytes);
    }
}
