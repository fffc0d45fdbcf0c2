//! `build`: the BPF object and the three programs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::setup::{self, Scope, Tools};
use crate::{command, project, source};

/// The target of the BPF object.
pub(crate) const BPF_TARGET: &str = "bpfel-unknown-none";

/// Arguments of `build`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build the programs with optimisation; the BPF object always is
    #[arg(long)]
    release: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    bpf_object(&setup::ensure(Scope::Build)?)?;
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "-p", "agent", "-p", "ctl", "-p", "plugin"]);
    if args.release {
        cargo.arg("--release");
    }
    command::run(&mut cargo)
}

/// Builds the BPF object. Debug information is kept: BTF is generated from it, and it is not loaded
/// into the kernel.
pub(crate) fn bpf_object(tools: &Tools) -> Result<()> {
    bpf_object_with(tools, &project::bpf_target(), None)
}

/// Builds the BPF object in a target directory, with a feature of the package `abi`.
pub(crate) fn bpf_object_with(tools: &Tools, target: &Path, feature: Option<&str>) -> Result<()> {
    let folder = tools.linker.parent().context("a linker lies in a folder")?;
    let path = std::env::var("PATH").unwrap_or_default();
    let mut cargo = tools.toolchain.cargo();
    cargo
        .args([
            "build",
            "-Zbuild-std=core",
            "--target",
            BPF_TARGET,
            "--release",
        ])
        .args(["-p", "datapath", "--target-dir"])
        .arg(target)
        .args(feature.map(|feature| format!("--features=abi/{feature}")))
        .env("PATH", format!("{}:{path}", folder.display()))
        .env("RUSTC_BOOTSTRAP", "1")
        .args(["--config", &bpf_flags(tools)?])
        // Would replace the flags.
        .env_remove("RUSTFLAGS")
        // Its many units inline less: functions then need more stack than the kernel allows.
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_PROFILE_RELEASE_STRIP", "none")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "2")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "false")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort");
    command::run(&mut cargo)
}

/// `v3` has 32-bit arithmetic and atomics with a result; every supported kernel has it.
const CODE: [&str; 4] = [
    "-Clink-arg=--btf",
    "-Cdebuginfo=2",
    "-Ctarget-cpu=v3",
    "-Cpanic=abort",
];

/// Returns the compiler flags of the BPF object, as a value of `cargo --config`.
fn bpf_flags(tools: &Tools) -> Result<String> {
    let host = format!("bpf_target_arch=\"{}\"", std::env::consts::ARCH);
    let sysroot = tools.toolchain.sysroot()?;
    let core = format!("--remap-path-prefix={}=/rustc", sysroot.display());
    let flags: Vec<String> = ["--cfg", &host, "-Clinker=bpf-linker"]
        .into_iter()
        .chain(CODE)
        .map(str::to_owned)
        .chain([core])
        .chain(source::path_flags())
        .collect();
    Ok(source::flags_in_config(BPF_TARGET, &flags))
}
