//! What `cargo xtask demo` runs: a node and its world in namespaces, the real agent and the real plugin, and every
//! promise shown with its number. It ends with the proof that nothing is left, and fails if any line has failed.

#![forbid(unsafe_code)]

mod bulk;
mod cast;
mod ending;
mod hairpin;
mod hostports;
mod keep;
mod latency;
mod quiet;
mod reach;
mod screen;
mod traffic;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;

use crate::cast::Cast;
use crate::screen::Screen;

/// Shows Viaduct at work: a node, a world and pods in network namespaces of their own.
#[derive(Parser)]
struct Args {
    /// Leave everything standing at the end, and say how to look around
    #[arg(long)]
    keep: bool,
    /// Show the hairpin modes alone: how many datagrams are sent and received in each
    #[arg(long)]
    hairpin: bool,
    /// Show hostports alone: from everywhere, by every protocol and family, with every kind of mapping
    #[arg(long)]
    hostports: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let started = Instant::now();
    let mut screen = Screen::new();
    if let Err(error) = play(&mut screen, &args) {
        screen.failure("the demo", &error);
    }
    screen.close(started.elapsed())
}

fn play(screen: &mut Screen, args: &Args) -> Result<()> {
    if args.hairpin {
        return hairpin::show(screen);
    }
    if args.hostports {
        return hostports::show(screen);
    }
    let mut cast = Cast::assemble(screen)?;
    reach::show(screen, &cast);
    bulk::show(screen, &cast)?;
    latency::show(screen, &cast)?;
    traffic::show(screen, &cast)?;
    quiet::show(screen, &cast);
    if args.keep {
        keep::hold(screen, &cast)?;
    }
    ending::show(screen, &mut cast)
}
