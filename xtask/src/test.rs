//! `test`: the ladder, from what needs nothing to the real binaries on a real kernel.

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::rungs::{Outcome, Rung};
use crate::setup::{self, Scope};

/// Arguments of `test`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(value_enum, default_value_t = Which::All)]
    rung: Which,
    /// A part of the names of the tests to run
    part: Option<String>,
    /// Passed on to the test binaries: a part of test names, `--nocapture`, …
    #[arg(last = true)]
    filter: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Which {
    /// Needs neither root nor a BPF toolchain
    Unit,
    /// The kernel crate and the BPF object against this kernel; needs root
    Netns,
    /// The real binaries in network namespaces; needs root
    E2e,
    /// Formatting, tidiness and every rung
    All,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let filter: Vec<String> = args.part.iter().chain(&args.filter).cloned().collect();
    match args.rung {
        Which::Unit => climb(&[Rung::Unit], &filter),
        Which::Netns => climb(&[Rung::Netns], &filter),
        Which::E2e => climb(&[Rung::E2e], &filter),
        Which::All => all(&filter),
    }
}

/// The whole ladder.
pub(crate) fn everything() -> Result<()> {
    all(&[])
}

/// What is missing is installed first: better to learn early that it cannot be.
fn all(filter: &[String]) -> Result<()> {
    setup::ensure(Scope::Everything)?;
    climb(&Rung::ALL, filter)
}

/// A failed rung does not hide what the ones above it would say.
fn climb(rungs: &[Rung], filter: &[String]) -> Result<()> {
    let outcomes: Vec<Outcome> = rungs.iter().map(|rung| rung.climb(filter)).collect();
    println!("\n{}", table(&outcomes));
    let bad: Vec<&str> = outcomes
        .iter()
        .filter(|it| !it.good)
        .map(|it| it.rung.name())
        .collect();
    if !bad.is_empty() {
        bail!("failed: {}", bad.join(", "));
    }
    Ok(())
}

/// A line without what makes terminals show it in colour.
pub(crate) fn without_colour(line: &str) -> String {
    let mut plain = String::new();
    let mut rest = line;
    while let Some((before, code)) = rest.split_once('\u{1b}') {
        plain.push_str(before);
        let end = code.find(|c: char| c.is_ascii_alphabetic());
        rest = end.map_or("", |end| &code[end + 1..]);
    }
    plain + rest
}

fn table(outcomes: &[Outcome]) -> String {
    let mut lines = vec![format!(
        "{:<8} {:>7} {:>7} {:>8}",
        "rung", "passed", "failed", "time"
    )];
    for Outcome {
        rung,
        passed,
        failed,
        good,
        time,
    } in outcomes
    {
        let mark = if *good { "" } else { "  ✗" };
        let seconds = time.as_secs_f32();
        lines.push(format!(
            "{:<8} {passed:>7} {failed:>7} {seconds:>6.1} s{mark}",
            rung.name()
        ));
    }
    lines.join("\n")
}
