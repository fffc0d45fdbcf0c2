//! `differential`: sends random traces through Viaduct and through the reference plugins, and
//! compares what arrives.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};

use crate::setup::{self, Scope};
use crate::{binaries, command, dist, metadata, privilege, project};

/// The test binary, and the test in it.
const BINARY: &str = "nat_differential";
const TEST: &str = "random_traces_arrive_as_through_the_reference_plugins";

/// Arguments of `differential`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of random traces
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    traces: u64,
    /// Seed of the first trace; the following ones have the following numbers [default: random]
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    setup::ensure(Scope::Runtimes)?;
    dist::run(dist::Args {
        next: true,
        ..dist::Args::default()
    })?;
    let tests = binaries::rooted(&metadata::load()?, &[BINARY.to_owned()])?;
    let test = tests.first().context("the test was not built")?;
    let seed = match args.seed {
        Some(seed) => seed,
        None => random()?,
    };
    println!("traces {seed} to {}", seed + args.traces.saturating_sub(1));
    let mut traces = privilege::as_root(&test.program)?;
    traces
        .args([TEST, "--exact", "--nocapture"])
        .current_dir(&test.folder)
        .env("VIADUCT_DIST", project::dist())
        .env("VIADUCT_TOOLS", project::tools())
        .env("VIADUCT_DIFFERENTIAL_TRACES", args.traces.to_string())
        .env("VIADUCT_DIFFERENTIAL_SEED", seed.to_string());
    command::run(&mut traces)
}

/// Returns a seed that no earlier run had: the time.
#[expect(
    clippy::disallowed_methods,
    reason = "the seed is printed, so the run can be repeated"
)]
fn random() -> Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(now.as_secs() * 100_000)
}
