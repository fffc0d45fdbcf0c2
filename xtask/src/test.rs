//! `test`: the test ladder, from tests without prerequisites to the real binaries on a real kernel.

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::changed::{self, Reach};
use crate::metadata;
use crate::rungs::{Count, Outcome, Rung, Selection};
use crate::setup::{self, Scope};

/// Arguments of `test`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(value_enum, default_value_t = Which::All)]
    rung: Which,
    /// Part of test names: only matching tests run
    part: Option<String>,
    /// Run only the tests that the difference from BASE can reach, uncommitted changes included
    #[arg(
        long,
        value_name = "BASE",
        num_args = 0..=1,
        default_missing_value = "HEAD"
    )]
    changed: Option<String>,
    /// Arguments of the test binaries: a part of test names, `--nocapture`, …
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
    /// The real binaries on nodes of a real Kubernetes, which is built once; needs root
    Cluster,
    /// Formatting, `cargo xtask tidy`, `cargo xtask deny`, and every rung but that of the cluster
    All,
}

impl Which {
    fn rungs(self) -> &'static [Rung] {
        match self {
            Self::Unit => &[Rung::Unit],
            Self::Netns => &[Rung::Netns],
            Self::E2e => &[Rung::E2e],
            Self::Cluster => &[Rung::Cluster],
            Self::All => &Rung::ALL,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let reach = match &args.changed {
        Some(base) => changed::since(base, &metadata::load()?)?,
        None => Reach::Everything,
    };
    let selection = Selection {
        reach,
        filter: args.part.iter().chain(&args.filter).cloned().collect(),
    };
    climb(args.rung.rungs(), &selection)
}

/// Runs the whole ladder.
pub(crate) fn everything() -> Result<()> {
    let selection = Selection {
        reach: Reach::Everything,
        filter: Vec::new(),
    };
    climb(&Rung::ALL, &selection)
}

/// Runs all rungs, also after a failed one.
fn climb(rungs: &[Rung], selection: &Selection) -> Result<()> {
    // Missing packages are installed first: it is better to fail early where they cannot be.
    if rungs == Rung::ALL && selection.reach == Reach::Everything {
        setup::ensure(Scope::Everything)?;
    }
    let outcomes: Vec<Outcome> = rungs.iter().map(|rung| rung.climb(selection)).collect();
    // Again, at the end of what may be thousands of lines.
    for failure in outcomes.iter().flat_map(|it| &it.count.failures) {
        println!("\n{failure}");
    }
    println!("\n{}", table(&outcomes));
    let bad: Vec<&str> = outcomes
        .iter()
        .filter(|it| !it.count.good)
        .map(|it| it.rung.name())
        .collect();
    if !bad.is_empty() {
        bail!("failed: {}", bad.join(", "));
    }
    Ok(())
}

/// Returns a line without terminal colour codes.
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
        "{:<8} {:>7} {:>7} {:>7} {:>8}",
        "rung", "passed", "failed", "skipped", "time"
    )];
    for Outcome { rung, count, time } in outcomes {
        let mark = if count.good { "" } else { "  ✗" };
        let seconds = time.as_secs_f32();
        let Count {
            passed,
            failed,
            skipped,
            ..
        } = count;
        lines.push(format!(
            "{:<8} {passed:>7} {failed:>7} {skipped:>7} {seconds:>6.1} s{mark}",
            rung.name()
        ));
    }
    lines.join("\n")
}
