//! The XDP prefilter on uplinks: the compiled program and the simulator, frame by frame.

use abi::maps::programs;
use abi::{Address, DropReason};
use anyhow::{Context as _, Result};
use aya::programs::{TestRun as _, TestRunOptions, Xdp};
use verdict::Verdict;
use verdict::simulator::example::{self, FAMILIES, INTERFACE};
use verdict::simulator::frame::{Body, Frame, flag};

use crate::bench::{Bench, on_bench};

/// Return values of XDP programs: `XDP_PASS` and `XDP_DROP`.
const PASS: u32 = 2;
const DROP: u32 = 1;

/// Runs program and simulator on a frame, and asserts that they agree.
#[track_caller]
fn show(bench: &mut Bench, frame: &[u8]) -> Result<Verdict> {
    let before = bench.drop_counts()?;
    let program: &mut Xdp = bench
        .object
        .loaded
        .program_mut(programs::XDP_GUARD)
        .context("the object has no XDP prefilter")?
        .try_into()?;
    if program.fd().is_err() {
        program.load()?;
    }
    let mut options = TestRunOptions::new();
    // Without a context the frame arrives on the loopback device, which is the example's uplink.
    options.data_in = Some(frame);
    let action = program.test_run(options)?.return_value;
    let verdict = bench.simulator.xdp_prefilter(INTERFACE, frame);
    let counts = bench.drop_counts()?;
    let dropped = counts.keys().find(|it| counts.get(it) != before.get(it));
    let in_kernel = match (action, dropped) {
        (PASS, None) => Verdict::Pass,
        (DROP, Some(reason)) => Verdict::Drop(*reason),
        other => panic!("the object returned {other:?}"),
    };
    assert_eq!(in_kernel, verdict, "the object and the simulator disagree");
    assert_eq!(counts, bench.simulator.world.drops);
    Ok(verdict)
}

fn bodies() -> [Body; 3] {
    [
        Body::Tcp(40_000, 80, flag::SYN, vec![7; 300]),
        Body::Udp(40_000, 53, vec![7; 41]),
        Body::Sctp(40_000, 80, vec![1; 16]),
    ]
}

#[test]
fn the_xdp_prefilter_passes_valid_frames_and_drops_spoofed_ones() -> Result<()> {
    on_bench(|bench| {
        bench.change(|world| world.settings.bridge_mac = example::bridge_mac())?;
        let spoofed = Verdict::Drop(DropReason::SpoofedFromOutside);
        for family in FAMILIES {
            let (node, remote) = (example::node()[family], example::remote()[family]);
            for body in bodies() {
                let honest = Frame::new(remote, node, body.clone());
                assert_eq!(show(bench, &honest.bytes())?, Verdict::Pass);
                let bridge = honest.clone().sent_by(example::bridge_mac());
                assert_eq!(show(bench, &bridge.bytes())?, spoofed);
                let stolen = Frame::new(example::pod()[family], node, body);
                assert_eq!(show(bench, &stolen.bytes())?, spoofed);
            }
        }
        let loopback = Frame::new(
            Address::v4([127, 0, 0, 1]),
            example::node()[0],
            bodies()[1].clone(),
        );
        let martian = Verdict::Drop(DropReason::Martian);
        assert_eq!(show(bench, &loopback.bytes())?, martian);
        Ok(())
    })
}

#[test]
fn the_xdp_prefilter_drops_frames_truncated_at_any_length() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (node, remote) = (example::node()[family], example::remote()[family]);
            for body in bodies() {
                let whole = Frame::new(remote, node, body).bytes();
                // The kernel passes at least an Ethernet header to XDP programs.
                for length in 14..whole.len() {
                    let verdict = show(bench, &whole[..length])?;
                    assert_eq!(verdict, Verdict::Drop(DropReason::Malformed), "{length}");
                }
            }
        }
        Ok(())
    })
}
