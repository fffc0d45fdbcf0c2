//! Soak test: random events on a node under traffic that must not break, checked against a model.
//!
//! The seed is printed first: the same seed gives the same choices. Effects of timing, such as the
//! moment of a kill, do not repeat.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an interactive command prints to the terminal"
)]

mod event;
mod foreign;
mod memory;
mod model;
mod simulation;
mod traffic;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Parser;

use crate::simulation::Simulation;

/// Runs random operations on a node under traffic, and checks it against a model.
#[derive(Parser)]
struct Args {
    /// Duration in minutes
    #[arg(long, default_value_t = 1)]
    minutes: u64,
    /// Seed of an earlier run, to repeat its choices [default: random]
    #[arg(long)]
    seed: Option<u64>,
    /// The most pods at a time
    #[arg(long, default_value_t = 40)]
    pods: usize,
    /// Flows that a pod keeps open meanwhile
    #[arg(long, default_value_t = 10_000)]
    flows: u16,
}

/// Interval of the progress lines.
const REPORT_EVERY: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    println!("soak: {} min, seed {seed}", args.minutes);
    match run(&args, seed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}\nseed {seed}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args, seed: u64) -> Result<()> {
    let mut simulation = Simulation::start(seed, args.pods, args.flows)?;
    let end = Instant::now() + Duration::from_secs(args.minutes * 60);
    let mut next_report = Instant::now();
    while Instant::now() < end {
        simulation
            .step()
            .with_context(|| format!("after {}", simulation.counts()))?;
        if Instant::now() >= next_report {
            println!("{}", simulation.line()?);
            next_report = Instant::now() + REPORT_EVERY;
        }
    }
    let text = simulation.end()?;
    println!("clean: {text}, seed {seed}");
    Ok(())
}
