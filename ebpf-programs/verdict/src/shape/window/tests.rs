//! Tests of the TCP window clamp, with senders that always fill the receive window of a limited
//! pod.

use std::collections::VecDeque;

use abi::{Direction, Limit, LimitFlags, TICKS};

use super::{WIDEST, window_limit};
use crate::outcome::Verdict;
use crate::shape::Bucket as _;
use crate::simulator::example::{INTERFACE, POD, pod, remote, world};
use crate::simulator::frame::{Body, Frame};
use crate::simulator::{Place, Simulator};

const RATE: u64 = 400_000_000;
const MILLISECOND: u64 = 1_000_000;
/// Bytes of four large packets.
const LEAST: u32 = 5_792;
/// Bytes below which a sender's own congestion window delays it.
const LARGE: u64 = 16_000;

fn limited(rate: u64, flags: u32) -> Simulator {
    let limit = Limit {
        flags,
        ..Limit::new(rate, rate / 8 / 4, 1)
    };
    let mut world = world();
    world.limit(POD, Direction::Ingress, limit);
    Simulator::new(world)
}

fn window(node: &mut Simulator, family: usize, round_trip: u32) -> Option<u32> {
    let (local, remote) = (pod()[family], remote()[family]);
    window_limit(&mut node.world, &local, &remote, round_trip, LEAST)
}

/// Sets the debt to this many milliseconds at the rate.
fn set_debt(node: &mut Simulator, milliseconds: u64) {
    let bucket = crate::shape::Shaper::bucket(&mut node.world, POD, Direction::Ingress).unwrap();
    let now = node.world.clock * TICKS;
    let at = now + milliseconds * MILLISECOND * TICKS;
    bucket.replace(bucket.paid_at(), at);
}

#[test]
fn a_window_is_what_the_limit_lets_through_in_a_round_trip_and_less_the_more_is_owed() {
    let mut node = limited(RATE, 0);
    for (owed, window_of_20_ms) in [
        (0, WIDEST),
        (10, 4_000_000),
        (32, 1_000_000 * 31 * 31 / 32 / 32),
        (125, 62_500),
        (250, 62_500),
    ] {
        set_debt(&mut node, owed);
        for family in [0, 1] {
            assert_eq!(window(&mut node, family, 20_000), Some(window_of_20_ms));
            assert_eq!(
                window(&mut node, family, 1_999),
                None,
                "the round trip is too short to clamp the window"
            );
        }
    }
    set_debt(&mut node, 10);
    assert_eq!(window(&mut node, 0, 100_000), Some(20_000_000));
    assert_eq!(window(&mut node, 0, u32::MAX), Some(400_000_000));
}

#[test]
fn a_window_is_at_least_four_packets_and_at_most_the_tcp_maximum() {
    let mut slow = limited(1_000_000, 0);
    set_debt(&mut slow, 200);
    assert_eq!(window(&mut slow, 0, 20_000), Some(LEAST));
    let mut fast = limited(1_000_000_000_000_000, 0);
    set_debt(&mut fast, 10);
    assert_eq!(window(&mut fast, 0, u32::MAX), Some(WIDEST));
}

#[test]
fn only_a_limit_that_counts_between_the_two_bounds_a_window() {
    let mut others = limited(RATE, LimitFlags::ONLY_SUBNETS);
    set_debt(&mut others, 100);
    assert_eq!(window(&mut others, 0, 20_000), None);
    let mut unlimited = Simulator::new(world());
    assert_eq!(window(&mut unlimited, 0, 20_000), None);
}

/// A remote sender that sends as much as both windows allow: the receiver's, whose buffer grows
/// with the received bytes as in Linux, and its congestion window, which grows as in slow start.
struct Sender {
    /// Bytes sent in each of the last milliseconds, the latest at the end.
    under_way: VecDeque<u64>,
    /// Right edge of the advertised window, which never moves back.
    edge: u64,
    /// Bytes that the receiver's buffer can hold.
    buffer: u64,
    /// The sender's congestion window in bytes.
    congestion: u64,
    sent: u64,
}

impl Sender {
    fn new(round_trip: usize) -> Self {
        Self {
            under_way: VecDeque::from(vec![0; round_trip]),
            edge: 0,
            buffer: 64_000,
            congestion: 14_000,
            sent: 0,
        }
    }

    /// Processes a window update, and returns how many bytes the sender may send now.
    fn receive_window(&mut self, window: u32) -> u64 {
        let before: u64 = self.under_way.iter().sum();
        let arrived = self.under_way.pop_front().unwrap();
        if before + LARGE > self.congestion {
            self.congestion += arrived;
        }
        let acknowledged = self.sent - (before - arrived);
        self.buffer = self.buffer.max(2 * before);
        self.edge = self.edge.max(acknowledged + self.buffer.min(window.into()));
        let edge = self.edge.min(acknowledged + self.congestion);
        edge.saturating_sub(self.sent)
    }

    fn send(&mut self, bytes: u64) {
        self.sent += bytes;
        self.under_way.push_back(bytes);
    }
}

/// Returns the bits per second of all senders together, in their second and third second.
fn goodput(senders: usize, told: u32, round_trip: usize) -> u64 {
    let mut node = limited(RATE, 0);
    let packet = Frame::new(remote()[0], pod()[0], Body::Udp(2, 1, vec![7; 8_000])).bytes();
    let weight = u64::try_from(packet.len() - 14).unwrap();
    let mut crowd: Vec<_> = (0..senders).map(|_| Sender::new(round_trip)).collect();
    let mut passed = 0;
    for millisecond in 0..3_000 {
        node.world.clock += MILLISECOND;
        for sender in &mut crowd {
            let packets = sender.receive_window(window(&mut node, 0, told).unwrap()) / weight;
            for _ in 0..packets {
                let (verdict, _) = node.run(Place::ToPod, INTERFACE, &packet);
                assert_eq!(verdict, Verdict::Pass, "{senders} senders, {round_trip} ms");
            }
            sender.send(packets * weight);
            passed += if millisecond < 1_000 {
                0
            } else {
                packets * weight
            };
        }
    }
    passed * 8 / 2
}

#[test]
fn remote_senders_reach_the_rate_without_loss() {
    for (senders, told, round_trip) in [
        (1, 20_000, 20),
        (2, 20_000, 20),
        (8, 20_000, 20),
        (1, 2_000, 2),
        (1, 50_000, 50),
        // The round trip is longer than at connection setup.
        (1, 20_000, 70),
        (4, 20_000, 30),
    ] {
        let rate = goodput(senders, told, round_trip);
        assert!(
            (RATE * 98 / 100..RATE * 102 / 100).contains(&rate),
            "{senders} senders, {round_trip} ms: {rate}"
        );
    }
}
