//! Differential test: random frames through the loaded BPF object and the simulator.
//!
//! Needs root. `VIADUCT_SEED` repeats a run; a failure prints the seed and the frame on which the
//! two disagree.

#[path = "packets/bench.rs"]
mod bench;
#[path = "packets/object.rs"]
mod object;
#[path = "packets/random_frames.rs"]
mod random_frames;

use std::time::{Duration, Instant};

use anyhow::Result;
use bench::{Bench, on_bench};
use random_frames::{Dice, keep_flows, opposite, reflected, seed, send};
use verdict::simulator::Place;

const FRAMES: u32 = 40_000;
/// Longest run. The simulator's clock stands still: what expires after 30 seconds would differ. A
/// busy machine compares fewer frames in this time.
const LONGEST: Duration = Duration::from_secs(20);

#[test]
fn loaded_programs_and_simulator_decide_alike() -> Result<()> {
    let seed = seed();
    on_bench(|bench| {
        keep_flows(bench)?;
        let mut dice = Dice(seed);
        let (mut dropped, mut changed) = (0, 0);
        let mut answer = None;
        let (started, mut frames) = (Instant::now(), 0);
        while frames < FRAMES && started.elapsed() < LONGEST {
            let number = frames;
            frames += 1;
            let (place, bytes) = answer.take().unwrap_or_else(|| send(&mut dice));
            let report = FailureReport {
                seed,
                number,
                place,
                bytes: &bytes,
            };
            let (verdict, after) = bench.run(place, &bytes)?;
            dropped += u32::from(verdict != verdict::Verdict::Pass);
            changed += u32::from(after != bytes);
            if after != bytes && dice.below(2) == 0 {
                answer = Some((opposite(place), reflected(&after)));
            }
            if dice.below(400) == 0 {
                replace_pod(&mut dice, bench)?;
            }
            if number % 1_000 == 0 {
                bench.flows()?;
            }
            report.dismiss();
        }
        bench.flows()?;
        bench.sweep()?;
        println!("seed {seed}: {frames} frames, {dropped} dropped, {changed} translated");
        println!("drops: {:?}", bench.drop_counts()?);
        assert!(dropped > frames / 50 && changed > frames / 50);
        Ok(())
    })
}

/// Replaces a pod by a successor, completely or only in some of the tables.
fn replace_pod(dice: &mut Dice, bench: &mut Bench) -> Result<()> {
    let pod = 1 + dice.below(2);
    let (endpoints, hostports) = (dice.below(4) != 0, dice.below(4) != 0);
    bench.change(|world| {
        world.pods[pod as usize].generation += 1;
        let generation = world.pods[pod as usize].generation;
        for endpoint in world.endpoints.values_mut() {
            if endpoint.pod == pod && endpoints {
                endpoint.generation = generation;
            }
        }
        for hostport in world.hostports.values_mut() {
            if hostport.pod == pod && hostports {
                hostport.generation = generation;
            }
        }
    })?;
    if dice.below(4) == 0 {
        bench.sweep()?;
    }
    Ok(())
}

/// Prints seed and frame when it is dropped without [`dismiss`](FailureReport::dismiss): object and
/// simulator disagreed.
struct FailureReport<'a> {
    seed: u64,
    number: u32,
    place: Place,
    bytes: &'a [u8],
}

impl FailureReport<'_> {
    fn dismiss(self) {
        std::mem::forget(self);
    }
}

#[expect(clippy::print_stdout, reason = "a failing test prints its input")]
impl Drop for FailureReport<'_> {
    fn drop(&mut self) {
        let Self {
            seed,
            number,
            place,
            bytes,
        } = self;
        println!("VIADUCT_SEED={seed}, frame {number} at {place:?}: {bytes:02x?}");
    }
}
