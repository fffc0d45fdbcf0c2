//! `bench`: measures Viaduct and the reference plugins, and writes the report to `target/bench`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::setup::{self, Scope};
use crate::{command, dist, privilege, project, soak, vm};

/// Arguments of `bench`. They are those of the programs that it builds, so that `--help` need not
/// build them.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Families of measurements to run [default: all]; `list` prints them, `soak` runs random
    /// operations under traffic against a model instead
    families: Vec<String>,
    /// Fewer rounds and sizes: minutes in place of half an hour, and wider quartiles
    #[arg(long)]
    quick: bool,
    /// Rounds of each measurement [default: as each family needs]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Other software whose recorded rules are on the nodes, `none` among them: kube-proxy, docker
    /// [default: all; none with --quick]
    #[arg(long, value_delimiter = ',', value_name = "SOFTWARE")]
    company: Vec<String>,
    /// README that gets the table of results; docs/speed.svg beside it gets the picture
    #[arg(long, value_name = "README")]
    publish: Option<PathBuf>,
    /// Folder of the report [default: target/bench]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Measure in three guests with this kernel, a series of Debian's or the path of an image: two
    /// nodes and a client
    #[arg(long, value_name = "KERNEL")]
    vm: Option<String>,
    /// Minutes after which guests are ended
    #[arg(long, default_value_t = 60, requires = "vm", value_name = "MINUTES")]
    limit: u64,
    /// Of `soak`: its duration in minutes [default: 1]
    #[arg(long, value_name = "N")]
    minutes: Option<u64>,
    /// Of `soak`: seed of an earlier run, to repeat its choices [default: random]
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Of `soak`: the most pods at a time [default: 40]
    #[arg(long, value_name = "N")]
    pods: Option<usize>,
    /// Of `soak`: flows that a pod keeps open meanwhile [default: 10000]
    #[arg(long, value_name = "N")]
    flows: Option<u16>,
}

impl Args {
    /// Returns the command line of the benchmark.
    fn words(&self) -> Vec<String> {
        let mut words = self.families.clone();
        if self.quick {
            words.push("--quick".to_owned());
        }
        words.extend(option("--rounds", self.rounds.as_ref()));
        if !self.company.is_empty() {
            words.extend(["--company".to_owned(), self.company.join(",")]);
        }
        let path = |path: &PathBuf| path.display().to_string();
        words.extend(option(
            "--publish",
            self.publish.as_ref().map(path).as_ref(),
        ));
        words.extend(option("--output", self.output.as_ref().map(path).as_ref()));
        words
    }

    /// The command line of the soak test.
    fn soak_words(&self) -> Vec<String> {
        option("--minutes", self.minutes.as_ref())
            .chain(option("--seed", self.seed.as_ref()))
            .chain(option("--pods", self.pods.as_ref()))
            .chain(option("--flows", self.flows.as_ref()))
            .collect()
    }
}

/// An option and its value, where there is one.
fn option<T: ToString>(name: &str, value: Option<&T>) -> impl Iterator<Item = String> {
    value
        .map(|value| [name.to_owned(), value.to_string()])
        .into_iter()
        .flatten()
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(kernel) = &args.vm {
        let mut words = args.words();
        if args.families.is_empty() {
            words.push("pair".to_owned());
        }
        return vm::pair::measure(kernel, Duration::from_mins(args.limit), &words);
    }
    if args.families == ["soak"] {
        return soak::run(&args.soak_words());
    }
    setup::ensure(Scope::Everything)?;
    build()?;
    let mut bench = privilege::as_root(program())?;
    bench
        .args(args.words())
        .env("VIADUCT_DIST", project::dist());
    command::run(&mut bench)
}

/// Builds the installed programs and the benchmark.
pub(crate) fn build() -> Result<()> {
    dist::run(dist::Args::default())?;
    // Optimised: the benchmark's own cost is part of every figure.
    let build = ["build", "--release", "-p", "e2e", "--bin", "bench"];
    command::run(Command::new("cargo").args(build))
}

/// Path of the benchmark program.
pub(crate) fn program() -> PathBuf {
    project::target().join("release/bench")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parsed(words: &[&str]) -> Args {
        Line::parse_from([&["bench"], words].concat()).args
    }

    #[test]
    fn options_are_passed_to_the_program_that_measures() {
        let args = parsed(&["add", "--quick", "--rounds", "3", "--publish", "README.md"]);
        assert_eq!(
            args.words(),
            ["add", "--quick", "--rounds", "3", "--publish", "README.md"]
        );
        let beside = parsed(&["path", "--company", "none,docker"]);
        assert_eq!(beside.words(), ["path", "--company", "none,docker"]);
        let soak = parsed(&["soak", "--minutes", "5", "--seed", "7"]);
        assert_eq!(soak.soak_words(), ["--minutes", "5", "--seed", "7"]);
    }
}
