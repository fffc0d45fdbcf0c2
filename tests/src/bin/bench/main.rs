//! The benchmark behind `cargo xtask bench`.
//!
//! Measures Viaduct, the reference plugins, plain forwarding and a bare veth pair in namespaces of
//! one machine, in interleaved rounds. Families of measurements return rows; the report has
//! medians, quartiles and ratios of the same round. `docs/benchmarks.md` documents the method and
//! its limits.

#![forbid(unsafe_code)]

mod add_latency;
mod background_load;
mod between_nodes;
mod bulk;
mod checks;
mod company;
mod connect;
mod cpu_time;
mod datagrams;
mod docker;
mod drops;
mod families;
mod flows;
mod goals;
mod memory;
mod netlink_baseline;
mod packet_cost;
mod pair;
mod pinned;
mod plan;
mod plugin_start;
mod policies;
mod report;
mod request_response;
mod row;
mod shaping;
mod statistics;
mod steal_retry;
mod topology;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::company::Company;
use crate::families::{FAMILIES, Family};
use crate::plan::Plan;
use crate::report::{Chapter, Report};
use crate::row::Row;

/// Path of the README's chart, relative to the README's folder.
const PICTURE: &str = "docs/speed.svg";

/// Measures Viaduct, the reference plugins and plain kernel forwarding.
#[derive(Parser)]
struct Args {
    /// Families of measurements to run [default: all]; `list` prints them
    families: Vec<String>,
    /// Fewer rounds and sizes: minutes in place of half an hour, and wider quartiles
    #[arg(long)]
    quick: bool,
    /// Rounds of each measurement [default: as each family needs]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Other software whose rules are on the nodes [default: all; none with `--quick`]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SOFTWARE")]
    company: Vec<Company>,
    /// Act as a node of the `pair` family: measure on request of the client, until it disconnects
    #[arg(long, conflicts_with = "families")]
    serve: bool,
    /// README that gets the table of results; docs/speed.svg beside it gets the picture
    #[arg(long, value_name = "README")]
    publish: Option<PathBuf>,
    /// Folder of the report
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    output: PathBuf,
}

fn main() -> ExitCode {
    match measure(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            plan::print_line(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> Result<()> {
    if args.families.iter().any(|name| name == "list") {
        for family in FAMILIES {
            plan::print_line(&format!("{:<12} {}", family.name, family.about));
        }
        return Ok(());
    }
    if args.serve {
        return pair::serve();
    }
    // Raise the limit of open files: each flow needs a socket in each system.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let started = Instant::now();
    let chosen = chosen(&args.families)?;
    let mut report = Report::new(args.quick)?;
    for (number, family) in (1..).zip(&chosen) {
        plan::print_line(&format!(
            "── {} ({number} of {}): {}",
            family.name,
            chosen.len(),
            family.about
        ));
        let mut rows = Vec::new();
        for company in companies(args).filter(|it| family.company || *it == Company::Alone) {
            rows.extend(beside(args, family, company)?);
        }
        let chapter = Chapter { family, rows };
        plan::print_line(&report::markdown::chapter(&chapter));
        report.chapters.push(chapter);
        // The report is written after each family, so that an abort loses no results.
        report.took = started.elapsed();
        report.write(&args.output)?;
    }
    if let Some(readme) = &args.publish {
        report::readme::publish(&report, readme, &readme.with_file_name(PICTURE))?;
    }
    let page = args.output.join("report.html");
    let seconds = started.elapsed().as_secs();
    plan::print_line(&format!("report: {}, after {seconds} s", page.display()));
    Ok(())
}

/// Returns the other software of this run.
fn companies(args: &Args) -> impl Iterator<Item = Company> + use<> {
    let chosen = match args.company.as_slice() {
        [] if args.quick => vec![Company::Alone],
        [] => Company::ALL.to_vec(),
        chosen => chosen.to_vec(),
    };
    chosen.into_iter()
}

/// Measures a family with the rules of `company` on the nodes.
fn beside(args: &Args, family: &Family, company: Company) -> Result<Vec<Row>> {
    let plan = Plan::new(args.quick, company, args.rounds, family.name);
    let name = company.name();
    if let Some(name) = name {
        plan::print_line(&format!("   beside {name}"));
    }
    let rows = (family.measure)(&plan).with_context(|| format!("family {}", family.name))?;
    let labelled = |row| Row {
        beside: name,
        ..row
    };
    Ok(rows.into_iter().map(labelled).collect())
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
                None => bail!("unknown family: {name}; `list` prints all"),
            }
        })
        .collect()
}
