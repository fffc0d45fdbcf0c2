//! `demo`: shows every feature live, with the real agent and the real plugin.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::setup::{self, Scope};
use crate::{command, dist, privilege, project};

/// Arguments of `demo`. They are those of the program that it builds, so that `--help` need not
/// build it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Keep everything running at the end, and print how to inspect it
    #[arg(long)]
    keep: bool,
    /// Show only the hairpin modes: datagrams sent and received in each
    #[arg(long)]
    hairpin: bool,
    /// Show only hostports: from each client location, with each protocol, family and kind of
    /// mapping
    #[arg(long)]
    hostports: bool,
    /// Write what is shown as a picture (SVG) in which the lines appear in their time
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

impl Args {
    fn words(&self) -> impl Iterator<Item = &'static str> {
        [
            ("--keep", self.keep),
            ("--hairpin", self.hairpin),
            ("--hostports", self.hostports),
        ]
        .into_iter()
        .filter(|(_, is_given)| *is_given)
        .map(|(word, _)| word)
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    setup::ensure(Scope::Everything)?;
    dist::run(dist::Args::default())?;
    // Unoptimised, as the tests build it: it measures other programs, not itself.
    let build = ["build", "--workspace", "--bin", "demo"];
    command::run(Command::new("cargo").args(build))?;
    let mut demo = privilege::as_root(project::target().join("debug/demo"))?;
    demo.args(args.words()).env("VIADUCT_DIST", project::dist());
    if let Some(file) = &args.record {
        demo.arg("--record").arg(std::path::absolute(file)?);
    }
    command::run(&mut demo)
}
