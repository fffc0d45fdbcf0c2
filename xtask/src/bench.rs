//! `bench`: Viaduct measured beside what it replaces; the report lands in `target/bench`.

use std::ffi::OsString;
use std::process::Command;

use anyhow::Result;

use crate::setup::{self, Scope};
use crate::{command, dist, privilege, project};

/// Arguments of `bench`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Passed on: families to measure (`list` names them), `--quick`, `--help` for the rest
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    rest: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    setup::ensure(Scope::Everything)?;
    dist::run(dist::Args::default())?;
    // With optimisation: what the measuring itself costs is part of every number.
    let build = ["build", "--release", "-p", "e2e", "--bin", "bench"];
    command::run(Command::new("cargo").args(build))?;
    let mut bench = privilege::as_root(project::target().join("release/bench"))?;
    bench.args(&args.rest).env("VIADUCT_DIST", project::dist());
    command::run(&mut bench)
}
