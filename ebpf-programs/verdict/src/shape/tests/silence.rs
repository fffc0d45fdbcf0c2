//! Tests of silence: a TCP connection that has lost a packet loses all of them for a while, and no
//! other flow does.

use proptest::prelude::*;

use super::super::silence;
use super::*;
use crate::simulator::frame::flag;

const MILLISECOND: u64 = SECOND / 1_000;
const RATE: u64 = 10_000_000;

/// Returns an exhausted bucket that has just dropped a packet of a connection.
fn exhausted() -> (SharedBucket, Limit) {
    let (bucket, limit) = (SharedBucket::default(), limit(RATE));
    while passes(&bucket, &limit, START, 1_500, BULK) {}
    silence::start(&bucket, &limit, START, BULK);
    (bucket, limit)
}

#[test]
fn a_connection_that_has_lost_a_packet_loses_all_until_an_eighth_of_the_burst_is_free() {
    let (bucket, limit) = exhausted();
    let end = START + silence::length(&limit);
    assert_eq!(silence::length(&limit), limit.allowance / 8);
    for now in (START..end - MILLISECOND).step_by(1_000_000) {
        assert!(!passes(&bucket, &limit, now, 1_500, BULK), "at {now}");
    }
    assert!(passes(&bucket, &limit, end + MILLISECOND, 1_500, BULK));
}

#[test]
fn other_connections_of_the_pod_are_not_silenced() {
    let (bucket, limit) = exhausted();
    let now = START + 10 * MILLISECOND;
    let other = 0x0003_0004;
    assert!((0..20).any(|packet| passes(
        &bucket,
        &limit,
        now + packet * MILLISECOND,
        1_500,
        other
    )));
    assert!(!passes(&bucket, &limit, now, 1_500, BULK));
    assert!(passes(&bucket, &limit, now, 60, LOW_RATE));
}

/// The limit was raised, or other traffic stopped: free capacity may be used at once.
#[test]
fn no_connection_is_silenced_while_the_bucket_has_room() {
    let (bucket, limit) = exhausted();
    let faster = super::limit(10 * RATE);
    let now = START + 10 * MILLISECOND;
    assert!(!passes(&bucket, &limit, now, 1_500, BULK));
    bucket.replace(bucket.paid_at(), now + faster.allowance / 2);
    assert!(passes(&bucket, &faster, now, 1_500, BULK));
}

#[test]
fn a_silence_is_short_however_long_a_burst_is() {
    let long = Limit::new(RATE, 1 << 30, 1);
    assert_eq!(silence::length(&long), 32 * MILLISECOND);
    assert_eq!(silence::length(&Limit::new(RATE, 0, 1)), 0);
}

/// Returns the number of runs and of bytes that pass after the burst, for a sender that never
/// waits.
fn passed_in_a_second(body: &Body) -> (u64, u64) {
    let mut node = limited(Direction::Egress, RATE);
    let packet = Frame::new(pod()[0], remote()[0], body.clone())
        .sent_by(mac())
        .bytes();
    let (mut runs, mut bytes, mut passing) = (0, 0, false);
    for tenth in 0..20_000_u64 {
        node.world.clock = (START + tenth * MILLISECOND / 10) / TICKS;
        for _ in 0..3 {
            let passes = node.run(Place::FromPod, INTERFACE, &packet).0 == Verdict::Pass;
            if tenth >= 10_000 {
                runs += u64::from(passes && !passing);
                bytes += u64::from(passes) * (packet.len() as u64 - 14);
            }
            passing = passes;
        }
    }
    (runs, bytes)
}

#[test]
fn connections_get_their_rate_in_few_runs_and_datagrams_get_theirs_one_by_one() {
    let whole = RATE / 8;
    let payload = vec![7; 1_400];
    let (runs, bytes) = passed_in_a_second(&Body::Tcp(1_000, 2_000, flag::ACK, payload.clone()));
    assert!((10..40).contains(&runs), "{runs} runs");
    assert!(bytes.abs_diff(whole) < whole / 20, "{bytes} of {whole}");
    let (runs, bytes) = passed_in_a_second(&Body::Udp(1_000, 2_000, payload));
    assert!(runs > 500, "{runs} runs");
    assert!(bytes.abs_diff(whole) < whole / 20, "{bytes} of {whole}");
}

proptest! {
    /// For any stored time and any clock: no connection is silenced for longer than the maximum.
    #[test]
    fn every_silence_ends(until: u32, now in 0..u64::MAX / 2, hash: u32, rate in rates()) {
        let (bucket, limit) = (SharedBucket::default(), limit(rate));
        bucket.set_silent_until(hash, until);
        let later = now + silence::length(&limit) + MILLISECOND;
        prop_assert!(!silence::is_active(&bucket, &limit, now, hash) || !silence::is_active(&bucket, &limit, later, hash));
    }
}
