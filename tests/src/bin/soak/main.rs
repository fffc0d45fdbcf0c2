//! A node lives through everything at random, for as long as is asked for, under traffic that nothing may break, while a
//! model says what must be true.
//!
//! The seed is printed first: the same seed makes the same choices. What depends on time (which moment a death comes at)
//! does not repeat.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command for people speaks to the terminal"
)]

mod event;
mod life;
mod memory;
mod model;
mod strangers;
mod traffic;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Parser;

use crate::life::Life;

/// Random life of a node, with a model that checks it.
#[derive(Parser)]
struct Args {
    /// How long
    #[arg(long, default_value_t = 1)]
    minutes: u64,
    /// Repeats the choices of an earlier run
    #[arg(long)]
    seed: Option<u64>,
    /// Pods that are there at most
    #[arg(long, default_value_t = 40)]
    pods: usize,
    /// Flows that a pod keeps open besides
    #[arg(long, default_value_t = 10_000)]
    flows: u16,
}

/// Between two lines.
const TELL: Duration = Duration::from_secs(10);

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
    let mut life = Life::start(seed, args.pods, args.flows)?;
    let end = Instant::now() + Duration::from_secs(args.minutes * 60);
    let mut tell = Instant::now();
    while Instant::now() < end {
        life.step()
            .with_context(|| format!("behind {}", life.counts()))?;
        if Instant::now() >= tell {
            println!("{}", life.line()?);
            tell = Instant::now() + TELL;
        }
    }
    let text = life.end()?;
    println!("clean: {text}, seed {seed}");
    Ok(())
}
