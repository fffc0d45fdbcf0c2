//! `verify`: what the kernel's verifier makes of the BPF object, compared with the committed table.

use std::process::Command;

use anyhow::Result;

use crate::setup::{self, Scope};
use crate::{build, command, privilege, project};

/// The committed table.
const TABLE: &str = "ebpf-programs/datapath/verifier.txt";

/// Arguments of `verify`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Accept the numbers of today as the new table
    #[arg(long)]
    bless: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    build::bpf_object(&setup::ensure(Scope::Build)?)?;
    let mut cargo = Command::new("cargo");
    cargo
        .args(["run", "-p", "e2e", "--bin", "verify", "--"])
        .arg(project::bpf_object())
        .arg(project::root().join(TABLE));
    if args.bless {
        cargo.arg("--bless");
    }
    privilege::run_built_as_root(&mut cargo)?;
    command::run(&mut cargo)
}
