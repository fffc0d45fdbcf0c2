//! `demo`: every feature shown live, by the real agent and the real plugin.

use std::ffi::OsString;
use std::process::Command;

use anyhow::Result;

use crate::setup::{self, Scope};
use crate::{command, dist, privilege, project};

/// Arguments of `demo`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Passed on to the demo: `--keep` leaves its world standing, `--help` lists the rest
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
    // As the tests have built it, if they have: what it measures is the work of others.
    let build = ["build", "--workspace", "--bin", "demo"];
    command::run(Command::new("cargo").args(build))?;
    let mut demo = privilege::as_root(project::target().join("debug/demo"))?;
    demo.args(&args.rest).env("VIADUCT_DIST", project::dist());
    command::run(&mut demo)
}
