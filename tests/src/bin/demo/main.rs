//! The demo behind `cargo xtask demo`: a node and an external machine in namespaces, with the real
//! agent and the real plugin.
//!
//! Shows each feature with a measured value. At the end it removes everything and shows that
//! nothing is left. It fails if any line has failed.

#![forbid(unsafe_code)]

mod bulk;
mod connectivity;
mod hairpin;
mod host_state;
mod hostports;
mod keep;
mod latency;
mod recording;
mod scenario;
mod screen;
mod teardown;
mod traffic;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;

use crate::scenario::Scenario;
use crate::screen::Screen;

/// Shows all features of Viaduct on a node, an external machine and pods in network namespaces.
#[derive(Parser)]
struct Args {
    /// Keep everything running at the end, and print how to inspect it
    #[arg(long)]
    keep: bool,
    /// Show only the hairpin modes: datagrams sent and received in each
    #[arg(long)]
    hairpin: bool,
    /// Show only hostports: from each client location, with each protocol, family and kind of
    /// mapping
    #[arg(long)]
    hostports: bool,
    /// Write what is shown as a picture (SVG) in which the lines appear in their time
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let started = Instant::now();
    let mut screen = Screen::new();
    if let Err(error) = run(&mut screen, &args) {
        screen.failure("the demo", &error);
    }
    screen.close(started.elapsed(), args.record.as_deref())
}

fn run(screen: &mut Screen, args: &Args) -> Result<()> {
    if args.hairpin {
        return hairpin::show(screen);
    }
    if args.hostports {
        return hostports::show(screen);
    }
    let mut scenario = Scenario::start(screen)?;
    connectivity::show(screen, &scenario);
    bulk::show(screen, &scenario)?;
    latency::show(screen, &scenario)?;
    traffic::show(screen, &scenario)?;
    host_state::show(screen, &scenario);
    if args.keep {
        keep::hold(screen, &scenario)?;
    }
    teardown::show(screen, &mut scenario)
}
