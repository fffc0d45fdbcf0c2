//! What `cargo xtask bench` runs: Viaduct beside the reference plugins, plain forwarding and a bare wire, in namespaces
//! of one machine, in interleaved rounds. Families of measurements give rows; the report shows medians, quartiles and
//! the ratio of each round. `docs/benchmarks.md` has the method and what it cannot show.

#![forbid(unsafe_code)]

mod accounted;
mod add;
mod beside;
mod bulk;
mod calls;
mod calm;
mod connect;
mod datagrams;
mod families;
mod flows;
mod memory;
mod pair;
mod path;
mod pinned;
mod plan;
mod promise;
mod report;
mod row;
mod shaping;
mod start;
mod statistics;
mod topology;
mod turns;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::families::{FAMILIES, Family};
use crate::plan::Plan;
use crate::report::{Chapter, Report};

/// The picture of the README, beside it.
const PICTURE: &str = "docs/speed.svg";

/// Measures Viaduct beside what it replaces.
#[derive(Parser)]
struct Args {
    /// Families to measure; all of them if none is named, `list` says which there are
    families: Vec<String>,
    /// Fewer rounds and sizes: minutes instead of half an hour, and wider quartiles
    #[arg(long)]
    quick: bool,
    /// Measure so many rounds, whatever the family thinks
    #[arg(long)]
    rounds: Option<usize>,
    /// Be a node of a pair, and do what the client asks for until it has gone
    #[arg(long, conflicts_with = "families")]
    serve: bool,
    /// Write the table of what Viaduct is held to into this README, and a picture to `docs/speed.svg` beside it
    #[arg(long, value_name = "README")]
    publish: Option<PathBuf>,
    /// Where the report goes
    #[arg(long, default_value = "target/bench")]
    output: PathBuf,
}

fn main() -> ExitCode {
    match measure(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            plan::say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> Result<()> {
    if args.families.iter().any(|name| name == "list") {
        for family in FAMILIES {
            plan::say(&format!("{:<10} {}", family.name, family.about));
        }
        return Ok(());
    }
    if args.serve {
        return pair::serve();
    }
    // As many sockets as there may be: a flow takes one in each system.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let started = Instant::now();
    let chosen = chosen(&args.families)?;
    let mut report = Report::new(args.quick)?;
    for (number, family) in (1..).zip(&chosen) {
        let plan = Plan::new(args.quick, args.rounds, family.name);
        plan::say(&format!(
            "── {} ({number} of {}): {}",
            family.name,
            chosen.len(),
            family.about
        ));
        let rows = (family.measure)(&plan).with_context(|| format!("family {}", family.name))?;
        let chapter = Chapter { family, rows };
        plan::say(&report::markdown::chapter(&chapter));
        report.chapters.push(chapter);
        // Written after each, so that an end before the last one loses nothing.
        report.took = started.elapsed();
        report.write(&args.output)?;
    }
    if let Some(readme) = &args.publish {
        report::readme::publish(&report, readme, &readme.with_file_name(PICTURE))?;
    }
    let page = args.output.join("report.html");
    let seconds = started.elapsed().as_secs();
    plan::say(&format!("{} after {seconds} s", page.display()));
    Ok(())
}

fn chosen(names: &[String]) -> Result<Vec<&'static Family>> {
    if names.is_empty() {
        return Ok(FAMILIES.iter().filter(|family| family.usual).collect());
    }
    names
        .iter()
        .map(|name| {
            let found = FAMILIES.iter().find(|family| family.name == name);
            match found {
                Some(family) => Ok(family),
                None => bail!("there is no family {name}; `list` names them all"),
            }
        })
        .collect()
}
