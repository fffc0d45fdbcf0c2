//! Limits in the loaded object: concurrent CPUs, ECN marks, departure times, and the cost of GSO
//! packets.
//!
//! The object uses the kernel's clock, so the simulator with its fixed clock is not compared.

use std::thread;
use std::time::Duration;

use abi::maps::{self, programs};
use abi::{Address, Bucket, Direction, Limit, SettingsFlags, Shaped, TICKS};
use anyhow::{Context as _, Result};
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions};
use e2e::{keeps_departure_times, skipped};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use verdict::simulator::example::{self, INTERFACE, POD};
use verdict::simulator::frame::{Body, Frame};

use crate::bench::{Bench, on_bench};
use crate::object::{NEXT, SHOT, program};

/// Size of `struct __sk_buff` and offsets of its fields, in bytes.
const CONTEXT_LEN: usize = 192;
const INTERFACE_AT: usize = 40;
const DEPARTURE_AT: usize = 152;
const SEGMENTS_AT: usize = 164;
const SEGMENT_SIZE_AT: usize = 176;
const BUCKET: usize = size_of::<Bucket>();

/// A rate so low that the tokens of a whole test's duration are less than one packet.
const SLOW: u64 = 1_000;

type Context = [u8; CONTEXT_LEN];

fn context() -> Context {
    let mut context = [0; CONTEXT_LEN];
    set(&mut context, INTERFACE_AT, INTERFACE);
    context
}

fn set(context: &mut Context, at: usize, value: u32) {
    context[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

fn packet(family: usize, payload: usize) -> Vec<u8> {
    let (from, to) = (example::pod()[family], example::remote()[family]);
    let body = Body::Udp(40_000, 443, vec![7; payload]);
    Frame::new(from, to, body).sent_by(example::mac()).bytes()
}

const fn row(direction: Direction) -> u32 {
    POD * 2 + direction as u32
}

fn limit(bench: &mut Bench, direction: Direction, limit: &Limit) -> Result<()> {
    bench.change(|world| world.limit(POD, direction, *limit))
}

fn shaped(bench: &mut Bench, direction: Direction) -> Result<Shaped> {
    let each: Vec<Shaped> = bench
        .object
        .get_all::<64, _>(maps::SHAPED.name, row(direction))?;
    Ok(each.iter().fold(Shaped::default(), |sum, one| Shaped {
        passed_packets: sum.passed_packets + one.passed_packets,
        passed_bytes: sum.passed_bytes + one.passed_bytes,
        marked_packets: sum.marked_packets + one.marked_packets,
        delayed_packets: sum.delayed_packets + one.delayed_packets,
        dropped_packets: sum.dropped_packets + one.dropped_packets,
        ..sum
    }))
}

/// Runs `from_pod`. Returns the action, the resulting packet and the resulting context.
fn run(bench: &mut Bench, context: &Context, packet: &[u8]) -> Result<(i32, Vec<u8>, Context)> {
    let mut out = vec![0; packet.len() + 64];
    let mut after = [0; CONTEXT_LEN];
    let options = TestRunOptions {
        data_in: Some(packet),
        data_out: Some(&mut out),
        ctx_in: Some(context),
        ctx_out: Some(&mut after),
        ..TestRunOptions::new()
    };
    let result = program(&mut bench.object.loaded, programs::FROM_POD)?.test_run(options)?;
    out.truncate(result.data_size_out as usize);
    Ok((result.return_value.cast_signed(), out, after))
}

/// Runs the program `times` times on one CPU.
fn run_on_cpu(from_pod: &SchedClassifier, cpu: usize, packet: &[u8], times: u32) -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu)?;
    // On a machine with one CPU both threads run there.
    let _ = sched_setaffinity(Pid::from_raw(0), &cpus);
    let mut out = vec![0; packet.len() + 64];
    let context = context();
    let options = TestRunOptions {
        data_in: Some(packet),
        data_out: Some(&mut out),
        ctx_in: Some(&context),
        repeat: times,
        ..TestRunOptions::new()
    };
    from_pod.test_run(options)?;
    Ok(())
}

/// Every passed packet is charged, exact to the tick. If the compiler turned an atomic exchange or
/// addition into a weaker operation, charges would be lost here.
#[test]
fn concurrent_cpus_are_charged_exactly_for_passed_packets() -> Result<()> {
    const TIMES: u32 = 200_000;
    on_bench(|bench| {
        let row = row(Direction::Egress);
        let limited = Limit::new(SLOW, u64::MAX, 1);
        limit(bench, Direction::Egress, &limited)?;
        let packet = packet(0, 18);
        // The first packet sets the clock of the bucket.
        run(bench, &context(), &packet)?;
        let start: Bucket = bench.object.get::<BUCKET, _>(maps::BUCKETS.name, row)?;
        let from_pod: &SchedClassifier = program(&mut bench.object.loaded, programs::FROM_POD)?;
        thread::scope(|scope| {
            let packet = &packet;
            [0, 1]
                .map(|cpu| scope.spawn(move || run_on_cpu(from_pod, cpu, packet, TIMES)))
                .into_iter()
                .try_for_each(|it| it.join().expect("the thread does not panic"))
        })?;
        let end: Bucket = bench.object.get::<BUCKET, _>(maps::BUCKETS.name, row)?;
        let passed = shaped(bench, Direction::Egress)?;
        assert_eq!(passed.passed_packets, u64::from(TIMES) * 2 + 1);
        assert_eq!(passed.dropped_packets, 0);
        let cost = limited.cost(u32::try_from(packet.len())? - 14);
        assert_eq!(end.paid_at - start.paid_at, cost * u64::from(TIMES) * 2);
        Ok(())
    })
}

#[test]
fn a_bucket_passes_its_burst_in_both_families_and_counts_drops() -> Result<()> {
    on_bench(|bench| {
        for family in example::FAMILIES {
            bench.object.set::<BUCKET>(
                maps::BUCKETS.name,
                row(Direction::Egress),
                &Bucket::default(),
            )?;
            let limited = Limit::new(SLOW, 10_000, 1);
            limit(bench, Direction::Egress, &limited)?;
            let packet = packet(family, 952);
            let weight = packet.len() - 14;
            let mut passed = 0;
            // One flow that sends more than the limit: the rest is dropped.
            while run(bench, &context(), &packet)?.0 == NEXT && passed < 100_000 {
                passed += weight;
            }
            assert!((10_000..10_000 + 2 * weight).contains(&passed), "{passed}");
            assert_eq!(run(bench, &context(), &packet)?.0, SHOT);
        }
        let drops = bench.drop_counts()?;
        assert_eq!(drops[&abi::DropReason::RateLimit].packets, 4);
        Ok(())
    })
}

/// Each segment that the network card makes of a GSO packet has its own headers.
#[test]
fn a_gso_packet_is_charged_with_the_headers_of_its_segments() -> Result<()> {
    on_bench(|bench| {
        limit(
            bench,
            Direction::Egress,
            &Limit::new(1_000_000_000, 1 << 20, 1),
        )?;
        for (family, headers) in [(0, 28), (1, 48)] {
            let before = shaped(bench, Direction::Egress)?.passed_bytes;
            let packet = packet(family, 1_400);
            let mut context = context();
            set(&mut context, SEGMENTS_AT, 7);
            set(&mut context, SEGMENT_SIZE_AT, 200);
            run(bench, &context, &packet)?;
            let counted = shaped(bench, Direction::Egress)?.passed_bytes - before;
            assert_eq!(counted, packet.len() as u64 - 14 + 6 * headers);
        }
        Ok(())
    })
}

/// Uses up a quarter of the burst, so that the next packet is beyond the marking threshold.
fn use_up(bench: &mut Bench, limited: &Limit) -> Result<()> {
    let packet = packet(0, 1_000);
    let mut sent = 0;
    while sent <= limited.burst / 4 {
        run(bench, &context(), &packet)?;
        sent += packet.len() as u64 - 14;
    }
    Ok(())
}

#[test]
fn ecn_capable_packets_are_marked_before_any_is_dropped() -> Result<()> {
    on_bench(|bench| {
        let limited = Limit::new(SLOW, 40_000, 1);
        limit(bench, Direction::Egress, &limited)?;
        use_up(bench, &limited)?;
        let mut capable = packet(0, 1_000);
        capable[15] = 2;
        fix_header(&mut capable);
        let (action, out, _) = run(bench, &context(), &capable)?;
        assert_eq!((action, out[15]), (NEXT, 3));
        let mut fixed = out.clone();
        fix_header(&mut fixed);
        assert_eq!(out, fixed, "the checksum follows the mark");

        let incapable = packet(0, 1_000);
        let (action, out, _) = run(bench, &context(), &incapable)?;
        assert_eq!((action, &out), (NEXT, &incapable));
        let counts = shaped(bench, Direction::Egress)?;
        assert_eq!((counts.marked_packets, counts.dropped_packets), (1, 0));
        Ok(())
    })
}

fn fix_header(packet: &mut [u8]) {
    packet[24..26].fill(0);
    let words = packet[14..34].chunks_exact(2);
    let sum: u32 = words
        .map(|it| u32::from(u16::from_be_bytes([it[0], it[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    let checksum = !u16::try_from(folded).expect("the sum is folded to 16 bits");
    packet[24..26].copy_from_slice(&checksum.to_be_bytes());
}

/// With a qdisc that supports departure times, a packet waits for the debt of the bucket, less a
/// time that is too short for a timer. The debt is less than the five seconds that a packet may
/// wait.
#[test]
fn a_packet_beyond_the_burst_gets_a_departure_time() -> Result<()> {
    const RATE: u64 = 24_000;
    if !keeps_departure_times() {
        skipped("bpf_skb_set_tstamp");
        return Ok(());
    }
    on_bench(|bench| {
        let limited = Limit::new(RATE, 40_000, 1);
        limit(bench, Direction::Egress, &limited)?;
        use_up(bench, &limited)?;
        let packet = packet(0, 1_000);
        let departure = |after: &Context| -> Result<u64> {
            let bytes = after
                .get(DEPARTURE_AT..DEPARTURE_AT + 8)
                .context("the context has a departure time")?;
            Ok(u64::from_ne_bytes(bytes.try_into()?))
        };
        let (_, _, after) = run(bench, &context(), &packet)?;
        assert_eq!(
            departure(&after)?,
            0,
            "a departure time without the flag DELIVERY_TIME"
        );
        bench.change(|world| world.settings.flags |= SettingsFlags::DELIVERY_TIME)?;
        let bucket: Bucket = bench
            .object
            .get::<BUCKET, _>(maps::BUCKETS.name, row(Direction::Egress))?;
        let (action, _, after) = run(bench, &context(), &packet)?;
        assert_eq!(action, NEXT);
        let early = Duration::from_nanos(bucket.paid_at / TICKS - departure(&after)?);
        assert_eq!(early.as_millis(), 5);
        assert_eq!(shaped(bench, Direction::Egress)?.delayed_packets, 1);
        Ok(())
    })
}

/// A packet that is redirected to another pod passes no other hook, so `from_pod` charges the
/// receiver's limit.
#[test]
fn packets_redirected_to_another_pod_are_charged_to_its_ingress_limit() -> Result<()> {
    on_bench(|bench| {
        let other = example::OTHER_POD * 2 + Direction::Ingress as u32;
        let limited = Limit::new(SLOW, 5_000, 1);
        bench.change(|world| world.limit(example::OTHER_POD, Direction::Ingress, limited))?;
        let to: Address = example::node()[0];
        let body = Body::Tcp(40_000, example::OWN_HOSTPORT, 2, vec![7; 960]);
        let frame = Frame::new(example::pod()[0], to, body)
            .sent_by(example::mac())
            .bytes();
        let mut actions = Vec::new();
        for _ in 0..8 {
            actions.push(run(bench, &context(), &frame)?.0);
        }
        assert_eq!(
            actions.iter().filter(|action| **action == SHOT).count(),
            2,
            "{actions:?}"
        );
        let each: Vec<Shaped> = bench.object.get_all::<64, _>(maps::SHAPED.name, other)?;
        assert_eq!(each.iter().map(|one| one.dropped_packets).sum::<u64>(), 2);
        Ok(())
    })
}
