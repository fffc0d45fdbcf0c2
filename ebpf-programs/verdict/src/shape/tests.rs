//! Tests of the token bucket: properties for any traffic, and the cost of packets.

mod delay;
mod silence;

use std::sync::Arc;
use std::thread;

use abi::{Address, Direction, DropReason, Limit, LimitFlags, ShapedSubnetKey, TICKS};
use proptest::prelude::*;

use super::{
    Bucket as _, MAX_PACKET, Pacing, Passage, UNPACED, admit, merge_pacing_rate, pacing_rate,
};
use crate::outcome::Verdict;
use crate::simulator::example::{INTERFACE, POD, mac, pod, remote, world};
use crate::simulator::frame::{Body, Frame};
use crate::simulator::{Place, SharedBucket, Simulator, World};

const SECOND: u64 = 1_000_000_000 * TICKS;
const START: u64 = 1_000 * SECOND;
/// Hash of a flow that shares no counter with the other flows of the tests.
const BULK: u32 = 0x0001_0002;
const LOW_RATE: u32 = 0x0005_0006;

fn limit(rate: u64) -> Limit {
    let quarter = rate / 8 / 4;
    Limit::new(rate, quarter.max((64 << 10) + 1_500), 1)
}

fn passes(bucket: &SharedBucket, limit: &Limit, now: u64, bytes: u32, hash: u32) -> bool {
    admit(bucket, limit, now, bytes, hash) != Passage::Refused
}

fn rates() -> impl Strategy<Value = u64> {
    prop_oneof![
        1_u64..=1_000,
        Just(1_000_000_000_000_000),
        (3_u32..=14, 1_u64..10).prop_map(|(exponent, digit)| digit * 10_u64.pow(exponent)),
    ]
}

#[derive(Clone, Debug)]
struct Offer {
    /// Time to the next packet, in thousandths of the packet's duration at the rate.
    pause: u64,
    bytes: u32,
    hash: u32,
}

fn offers() -> impl Strategy<Value = Vec<Offer>> {
    let offer = (0..3_000_u64, 40..=65_535_u32, any::<u32>())
        .prop_map(|(pause, bytes, hash)| Offer { pause, bytes, hash });
    proptest::collection::vec(offer, 1..400)
}

proptest! {
    /// Bound for any window: rate × time, the burst, the headroom, and one packet.
    #[test]
    fn a_bucket_never_exceeds_rate_and_burst_in_any_window(rate in rates(), offers in offers()) {
        let (bucket, limit) = (SharedBucket::default(), limit(rate));
        let mut now = START;
        let mut passed: Vec<(u64, u128)> = Vec::new();
        for Offer { pause, bytes, hash } in offers {
            now += limit.cost(bytes) / 1_000 * pause;
            if passes(&bucket, &limit, now, bytes, hash) {
                passed.push((now, u128::from(limit.cost(bytes))));
            }
        }
        let spare = u128::from(limit.allowance + limit.headroom + limit.cost(65_535));
        for (index, (from, _)) in passed.iter().enumerate() {
            let mut sum = 0;
            for (at, cost) in &passed[index..] {
                sum += cost;
                prop_assert!(sum <= u128::from(at - from) + spare);
            }
        }
    }

    /// A packet of any size passes once the debt before it is paid.
    #[test]
    fn every_packet_passes_once_the_debt_is_paid(rate in rates(), offers in offers()) {
        let (bucket, limit) = (SharedBucket::default(), limit(rate));
        let mut now = START;
        for Offer { pause, bytes, hash } in offers {
            now += limit.cost(bytes) / 1_000 * pause;
            let _either = admit(&bucket, &limit, now, bytes, hash);
        }
        now += limit.headroom + limit.cost(65_535);
        prop_assert!(passes(&bucket, &limit, now, 65_535, BULK));
    }

    /// For any content: garbage, the debt of another limit, times after a clock that went back.
    #[test]
    fn a_bucket_recovers_from_any_content(rate in rates(), held: u64, now in 0..u64::MAX / 2, hash: u32) {
        let (bucket, limit) = (SharedBucket::default(), limit(rate));
        bucket.add(held);
        bucket.set_low_rate_paid_at(held);
        let _either = admit(&bucket, &limit, now, 1_500, hash);
        let later = now + limit.headroom + limit.cost(MAX_PACKET) + limit.cost(1_500);
        prop_assert!(passes(&bucket, &limit, later, 1_500, hash));
    }

    /// No rate, burst, time or length makes the arithmetic overflow.
    #[test]
    fn no_limit_overflows(rate: u64, burst: u64, now: u64, bytes in 0..=1_u32 << 24, hash: u32) {
        let bucket = SharedBucket::default();
        let limit = Limit::new(rate, burst, 1);
        prop_assert!(passes(&bucket, &limit, now, bytes, hash));
        let _either = admit(&bucket, &limit, now, bytes, hash);
    }
}

/// Sends packets of `bytes` continuously for `ticks`, and returns how many bytes passed.
fn flood(bucket: &SharedBucket, limit: &Limit, from: u64, ticks: u64, bytes: u32) -> u64 {
    let step = (limit.cost(bytes) / 7).max(1);
    let mut sum = 0;
    let mut now = from;
    while now < from + ticks {
        if passes(bucket, limit, now, bytes, BULK) {
            sum += u64::from(bytes);
        }
        now += step;
    }
    sum
}

#[test]
fn a_bucket_meets_the_rate_to_the_packet_after_the_burst() {
    for rate in [100_000, 1_000_000, 100_000_000, 10_000_000_000] {
        for bytes in [1_500, 65_535] {
            let (bucket, limit) = (SharedBucket::default(), limit(rate));
            let seconds = 200_000_000 / rate.min(100_000_000) + 2;
            flood(&bucket, &limit, START, 8 * SECOND, bytes);
            let after = START + 8 * SECOND;
            let span = if rate > 1_000_000_000 {
                SECOND / 50
            } else {
                seconds * SECOND
            };
            let passed = flood(&bucket, &limit, after, span, bytes);
            let exact = u128::from(rate) / 8 * u128::from(span) / u128::from(SECOND);
            let off = u128::from(passed).abs_diff(exact);
            assert!(
                off <= exact / 1_000 + u128::from(bytes),
                "{rate} bit/s, {bytes} B: {passed} for {exact}"
            );
        }
    }
}

#[test]
fn with_a_stopped_clock_only_the_burst_passes() {
    let (bucket, limit) = (SharedBucket::default(), limit(10_000_000));
    let bytes = (0..10_000)
        .filter(|_| passes(&bucket, &limit, START, 1_500, BULK))
        .count() as u64
        * 1_500;
    assert!(
        (limit.burst..=limit.burst + 3_000).contains(&bytes),
        "{bytes}"
    );
}

/// A 64 KiB packet is worth half a second here, and two bursts: it is paid for later.
#[test]
fn large_packets_pass_slow_limits_on_average() {
    let (bucket, limit) = (SharedBucket::default(), Limit::new(1_000_000, 30_000, 1));
    flood(&bucket, &limit, START, 10 * SECOND, 65_535);
    let passed = flood(&bucket, &limit, START + 10 * SECOND, 50 * SECOND, 65_535);
    assert!((6_000_000..6_500_000).contains(&passed), "{passed}");
}

/// A request every 5 ms beside as much bulk as there can be: none of them is lost.
#[test]
fn a_low_rate_flow_loses_nothing_beside_a_bulk_flow() {
    for rate in [1_000_000, 10_000_000, 1_000_000_000] {
        let (bucket, limit) = (SharedBucket::default(), limit(rate));
        let mut refused = 0;
        for millisecond in 0..10_000 {
            let now = START + millisecond * SECOND / 1_000;
            for packet in 0..40 {
                let bytes = if packet % 2 == 0 { 65_535 } else { 1_500 };
                refused += u32::from(!passes(&bucket, &limit, now, bytes, BULK));
            }
            if millisecond % 5 == 0 {
                assert!(
                    passes(&bucket, &limit, now, 60, LOW_RATE),
                    "{rate} at {millisecond} ms"
                );
            }
        }
        assert!(refused > 1_000, "the bulk flow was not limited at {rate}");
    }
}

/// Headroom is for few small packets: a flood of small packets of many flows does not exceed the
/// rate.
#[test]
fn many_low_rate_flows_get_no_more_than_the_rate_and_leave_half_of_it() {
    let (bucket, limit) = (SharedBucket::default(), limit(1_000_000));
    let (mut bulk, mut all) = (0_u64, 0_u64);
    for tenth in 0..600_000_u32 {
        let now = START + u64::from(tenth) * SECOND / 10_000;
        if passes(&bucket, &limit, now, 1_500, BULK) {
            bulk += 1_500;
            all += 1_500;
        }
        let hash = tenth.wrapping_mul(0x9e37_79b9);
        if passes(&bucket, &limit, now, 100, hash) {
            all += 100;
        }
    }
    let exact = 60 * 1_000_000 / 8;
    assert!(all <= exact + limit.burst + 140_000, "{all} of {exact}");
    assert!(all >= exact, "{all} of {exact}");
    assert!(bulk >= exact * 4 / 10, "bulk got {bulk} of {exact}");
}

#[test]
fn a_flow_that_shares_one_counter_with_bulk_is_recognised_by_the_other() {
    let (bucket, limit) = (SharedBucket::default(), limit(10_000_000));
    flood(&bucket, &limit, START, SECOND, 1_500);
    let now = START + SECOND;
    while passes(&bucket, &limit, now, 1_500, BULK) {}
    assert!(passes(
        &bucket,
        &limit,
        now,
        60,
        BULK & 0xffff | 0x0009_0000
    ));
    assert!(!passes(&bucket, &limit, now, 60, BULK));
}

/// Four threads on one bucket: what has passed is what was charged, to the tick.
#[test]
fn concurrent_cpus_are_charged_exactly_for_passed_packets() {
    let bucket = Arc::new(SharedBucket::default());
    let limit = Limit::new(1_000, 1 << 30, 1);
    let hammer = |seed: u32| {
        let bucket = Arc::clone(&bucket);
        thread::spawn(move || {
            (0..50_000_u32)
                .map(|turn| 40 + turn.wrapping_mul(seed) % 1_460)
                .filter(|bytes| passes(&bucket, &limit, START, *bytes, seed))
                .map(|bytes| u128::from(limit.cost(bytes)))
                .sum::<u128>()
        })
    };
    let threads: Vec<_> = [3, 5, 7, 11].map(hammer).into_iter().collect();
    let charged: u128 = threads
        .into_iter()
        .map(|it| it.join().unwrap())
        .sum::<u128>();
    assert_eq!(u128::from(bucket.paid_at() - START), charged);
    assert!(charged > 100_000_000);
}

fn limited(direction: Direction, rate: u64) -> Simulator {
    let mut world = world();
    world.limit(POD, direction, limit(rate));
    Simulator::new(world)
}

fn answer(family: usize) -> Vec<u8> {
    let body = Body::Udp(2_000, 1_000, vec![7; 400]);
    Frame::new(remote()[family], pod()[family], body).bytes()
}

fn frame(family: usize) -> Vec<u8> {
    let body = Body::Udp(1_000, 2_000, vec![7; 400]);
    let frame = Frame::new(pod()[family], remote()[family], body);
    frame.sent_by(mac()).bytes()
}

#[test]
fn both_directions_and_both_families_are_limited_and_counted() {
    for (direction, place) in [
        (Direction::Egress, Place::FromPod),
        (Direction::Ingress, Place::ToPod),
    ] {
        for family in [0, 1] {
            let mut node = limited(direction, 1_000);
            let packet = frame(family);
            let mut passed = 0_u64;
            while node.run(place, INTERFACE, &packet).0 == Verdict::Pass {
                passed += 1;
                assert!(passed < 1_000, "nothing is limited");
            }
            let last = node.run(place, INTERFACE, &packet).0;
            assert_eq!(last, Verdict::Drop(DropReason::RateLimit));
            let shaped = node.world.shaped[&(POD, direction)];
            assert_eq!((shaped.passed_packets, shaped.dropped_packets), (passed, 2));
            assert_eq!(shaped.passed_bytes, passed * (packet.len() as u64 - 14));
            assert_eq!(node.world.drops[&DropReason::RateLimit].packets, 2);
        }
    }
}

/// Each of the packets that a large one is cut into has headers of its own.
#[test]
fn a_gso_packet_is_charged_with_the_headers_of_its_segments() {
    let mut node = limited(Direction::Egress, 1_000_000_000);
    let packet = frame(0);
    node.world.segments = (10, 1_000);
    node.run(Place::FromPod, INTERFACE, &packet);
    let shaped = node.world.shaped[&(POD, Direction::Egress)];
    assert_eq!(shaped.passed_bytes, packet.len() as u64 - 14 + 9 * 28);
}

fn pace_between(world: &mut World, from: &Address, to: &Address) -> u32 {
    pacing_rate(world, from, to, Pacing::ByAll)
}

/// A short reply is not paced; traffic that the limit would drop later is.
#[test]
fn a_sender_may_use_the_burst_before_it_is_paced() {
    let eighth = limit(8_000_000).burst / 8;
    let mut node = limited(Direction::Egress, 8_000_000);
    let pace = |node: &mut Simulator, pacing| {
        pacing_rate(&mut node.world, &pod()[0], &remote()[0], pacing)
    };
    let mut sent = 0;
    while pace(&mut node, Pacing::ByThoseInDebt) == UNPACED {
        let packet = frame(0);
        sent += u64::try_from(packet.len() - 14).unwrap();
        node.run(Place::FromPod, INTERFACE, &packet);
        assert!(
            sent < 2 * eighth,
            "it must be paced long before the burst is spent"
        );
    }
    assert!(sent >= eighth, "{sent} of {eighth}");
    assert!((800_000..=960_000).contains(&pace(&mut node, Pacing::ByThoseInDebt)));
    node.world.clock += 1_000_000_000;
    assert_eq!(pace(&mut node, Pacing::ByThoseInDebt), UNPACED);
    assert_eq!(pace(&mut node, Pacing::ByAll), 960_000);
}

#[test]
fn several_paced_senders_converge_without_loss() {
    const RATE: u64 = 400_000_000;
    for senders in [1, 2, 8, 16] {
        let mut node = limited(Direction::Egress, RATE);
        let (packet, mut sent) = (frame(0), 0);
        let weight = u64::try_from(packet.len() - 14).unwrap();
        let mut due = vec![0; senders];
        for millisecond in 0..2_000 {
            node.world.clock += 1_000_000;
            for own in &mut due {
                *own += u64::from(pace_between(&mut node.world, &pod()[0], &remote()[0])) / 960;
                for _ in 0..*own / weight {
                    let (verdict, _) = node.run(Place::FromPod, INTERFACE, &packet);
                    assert_eq!(verdict, Verdict::Pass, "{senders} senders");
                    *own -= weight;
                    sent += if millisecond < 1_000 { 0 } else { weight };
                }
            }
        }
        let rate = sent * 8;
        assert!(
            (RATE * 98 / 100..RATE * 101 / 100).contains(&rate),
            "{rate}"
        );
    }
}

#[test]
fn a_sender_is_paced_by_the_tighter_limit_on_its_way() {
    let mut world = world();
    let peer = crate::simulator::example::other_pod();
    assert_eq!(pace_between(&mut world, &pod()[0], &peer[0]), UNPACED);
    world.limit(POD, Direction::Egress, limit(80_000_000));
    let slower = limit(8_000_000);
    let other = crate::simulator::example::OTHER_POD;
    world.limit(other, Direction::Ingress, slower);
    assert_eq!(pace_between(&mut world, &pod()[0], &remote()[0]), 9_600_000);
    assert_eq!(pace_between(&mut world, &pod()[0], &peer[0]), 960_000);
    assert_eq!(pace_between(&mut world, &pod()[1], &peer[1]), 950_000);
    assert_eq!(pace_between(&mut world, &peer[0], &pod()[0]), UNPACED);
    world.limit(POD, Direction::Egress, limit(1_000_000_000_000));
    assert_eq!(
        pace_between(&mut world, &pod()[0], &remote()[0]),
        UNPACED - 1
    );
}

/// behaviour R16: the other end's address decides, in both families and directions.
#[test]
fn a_limit_applies_to_its_shaped_subnets_only() {
    let length_of = |family: usize| if family == 0 { 96 + 24 } else { 64 };
    for (flags, family) in [
        (LimitFlags::ONLY_SUBNETS, 0),
        (LimitFlags::ONLY_SUBNETS, 1),
        (LimitFlags::EXCEPT_SUBNETS, 0),
        (LimitFlags::EXCEPT_SUBNETS, 1),
    ] {
        let is_limited = |listed: bool| listed == (flags == LimitFlags::ONLY_SUBNETS);
        for (direction, place) in [
            (Direction::Egress, Place::FromPod),
            (Direction::Ingress, Place::ToPod),
        ] {
            let mut node = limited(direction, 1_000);
            let limit = Limit {
                flags,
                ..limit(1_000)
            };
            node.world.limit(POD, direction, limit);
            let packet = match direction {
                Direction::Egress => frame(family),
                Direction::Ingress => answer(family),
            };
            let charged = |node: &Simulator| node.world.shaped.contains_key(&(POD, direction));
            node.run(place, INTERFACE, &packet);
            assert_eq!(charged(&node), is_limited(false), "nothing is named");
            node.world.shaped.clear();

            // A subnet of an earlier pod of the same slot applies to no pod.
            let peer = |pod| ShapedSubnetKey {
                pod,
                address: remote()[family],
            };
            let length = ShapedSubnetKey::POD_BITS + length_of(family);
            node.world.peers.insert((peer(POD), length), 99);
            node.run(place, INTERFACE, &packet);
            assert_eq!(charged(&node), is_limited(false), "another generation");
            node.world.shaped.clear();

            node.world.peers.insert((peer(POD), length), 1);
            node.run(place, INTERFACE, &packet);
            assert_eq!(charged(&node), is_limited(true), "{direction:?} {family}");
        }
    }
}

#[test]
fn a_sender_is_paced_only_towards_shaped_subnets() {
    let mut world = world();
    let only = Limit {
        flags: LimitFlags::ONLY_SUBNETS,
        ..limit(8_000_000)
    };
    world.limit(POD, Direction::Egress, only);
    assert_eq!(pace_between(&mut world, &pod()[0], &remote()[0]), UNPACED);
    let peer = ShapedSubnetKey {
        pod: POD,
        address: remote()[0],
    };
    world.peers.insert((peer, ShapedSubnetKey::BITS), 1);
    assert_eq!(pace_between(&mut world, &pod()[0], &remote()[0]), 960_000);
}

/// A pacing rate that the application has set is kept; one that the program has set follows the
/// limit.
#[test]
fn a_pacing_rate_is_raised_and_lifted_only_if_it_is_ours() {
    assert_eq!(merge_pacing_rate(UNPACED, None, 1_000), 1_000);
    assert_eq!(merge_pacing_rate(1_000, Some(1_000), 2_000), 2_000);
    assert_eq!(merge_pacing_rate(1_000, Some(1_000), UNPACED), UNPACED);
    assert_eq!(merge_pacing_rate(500, None, 1_000), 500);
    assert_eq!(merge_pacing_rate(500, Some(1_000), 2_000), 500);
}
