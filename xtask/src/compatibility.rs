//! `compatibility`: measures Viaduct and the reference plugins beside other software of a node, and
//! writes `docs/compatibility.md`.

use std::process::Command;

use anyhow::Result;

use crate::setup::{self, Scope};
use crate::{command, dist, privilege, project};

/// The page that it writes.
const PAGE: &str = "docs/compatibility.md";
/// The folder of recorded rules.
const RULES: &str = "tests/src/company/recorded";

/// Arguments of `compatibility`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Software to run: plain, docker, firewalld, ufw, kube-proxy, podman [default: all]
    software: Vec<String>,
    /// Write the results as docs/compatibility.md
    #[arg(long, conflicts_with = "software")]
    bless: bool,
    /// Record the rules of kube-proxy and Docker for tests and benchmarks, and measure nothing
    #[arg(long, conflicts_with_all = ["software", "bless"])]
    record: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    setup::ensure(Scope::Runtimes)?;
    setup::ensure_company()?;
    dist::run(dist::Args::default())?;
    let build = ["build", "--workspace", "--bin", "compatibility"];
    command::run(Command::new("cargo").args(build))?;
    let mut measure = privilege::as_root(project::target().join("debug/compatibility"))?;
    measure
        .args(&args.software)
        .env("VIADUCT_DIST", project::dist())
        .env("VIADUCT_TOOLS", project::tools());
    if args.bless {
        measure.arg("--bless").arg(project::root().join(PAGE));
    }
    if args.record {
        measure.arg("--record").arg(project::root().join(RULES));
    }
    command::run(&mut measure)
}
