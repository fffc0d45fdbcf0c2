//! `bench`: Viaduct measured beside what it replaces; the report lands in `target/bench`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::setup::{self, Scope};
use crate::{command, dist, privilege, project, soak, vm};

/// Arguments of `bench`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Measure in three guests with this kernel, a series of Debian's or the path of an image: two nodes and a client
    #[arg(long, value_name = "KERNEL")]
    vm: Option<String>,
    /// Minutes after which guests are given up
    #[arg(long, default_value_t = 60, requires = "vm")]
    limit: u64,
    /// Passed on: families to measure (`list` names them), `--quick`, `--help` for the rest; or `soak --minutes N`: a
    /// random life under traffic, with a model that checks it
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(kernel) = &args.vm {
        let mut words = args.rest.clone();
        if !words.iter().any(|word| !word.starts_with('-')) {
            words.push("pair".to_owned());
        }
        return vm::pair::measure(kernel, Duration::from_mins(args.limit), &words);
    }
    if let [first, words @ ..] = args.rest.as_slice()
        && first == "soak"
    {
        return soak::run(words);
    }
    setup::ensure(Scope::Everything)?;
    build()?;
    let mut bench = privilege::as_root(program())?;
    bench.args(&args.rest).env("VIADUCT_DIST", project::dist());
    command::run(&mut bench)
}

/// Builds what is measured, and what measures.
pub(crate) fn build() -> Result<()> {
    dist::run(dist::Args::default())?;
    // With optimisation: what the measuring itself costs is part of every number.
    let build = ["build", "--release", "-p", "e2e", "--bin", "bench"];
    command::run(Command::new("cargo").args(build))
}

/// What measures.
pub(crate) fn program() -> PathBuf {
    project::target().join("release/bench")
}
