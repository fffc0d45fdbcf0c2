//! `bench soak`: random operations on a node under traffic, checked against a model.

use std::process::Command;

use anyhow::Result;

use crate::setup::{self, Scope};
use crate::{command, dist, privilege, project};

/// Builds two versions of the agent, and runs the soak test with the arguments `words`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    setup::ensure(Scope::Everything)?;
    dist::run(dist::Args {
        next: true,
        ..dist::Args::default()
    })?;
    let build = ["build", "--release", "-p", "e2e", "--bin", "soak"];
    command::run(Command::new("cargo").args(build))?;
    let mut soak = privilege::as_root(project::target().join("release/soak"))?;
    soak.args(words).env("VIADUCT_DIST", project::dist());
    command::run(&mut soak)
}
