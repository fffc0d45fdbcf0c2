//! The programs that are shipped: built with optimisation, linked statically, and equal wherever
//! they are built from equal sources.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::arch::Arch;
use crate::setup::Tools;
use crate::{command, project, source};

/// The profile's `strip` does not apply to a package that has settings of its own.
const STRIPPED: [&str; 2] = ["--", "-Cstrip=symbols"];
/// Packets do not wait for agent and ctl: what counts is the memory of a resident program, most of
/// which is its code.
const SMALL: &str = "profile.release.opt-level=\"s\"";
/// Packages that are built for speed nevertheless: an ADD waits for them (decision 173).
const FAST: [&str; 5] = ["cni", "engine", "kernel", "planner", "store"];
/// Links glibc statically.
const STATIC_GLIBC: &str = "-Ctarget-feature=+crt-static";
/// Packs relocations (`DT_RELR`): a program at a random address reads all of them at its start, so
/// they stay in its resident memory. They are a megabyte otherwise.
const PACKED_RELOCATIONS: &str = "-Clink-arg=-Wl,-z,pack-relative-relocs";
/// Linked at a fixed address, so that nothing is relocated at start: writing to a page of pointers
/// costs a page fault and a copy of the page.
const IN_PLACE: &str = "-Crelocation-model=static";
/// Code and constants share a segment: fewer pages to map, and to fill up.
const ONE_SEGMENT: &str = "-Clink-arg=-Wl,-z,noseparate-code";

/// The built programs.
pub(crate) struct Programs {
    pub(crate) agent: PathBuf,
    pub(crate) ctl: PathBuf,
    pub(crate) kube: PathBuf,
    pub(crate) plugin: PathBuf,
    /// The target for which they are built.
    pub(crate) target: String,
}

/// Builds all programs for an architecture, whose compilers are there.
pub(crate) fn build(tools: &Tools, arch: Arch) -> Result<Programs> {
    // Once, so that all programs name the same commit.
    let commit = source::commit().unwrap_or_default();
    let target = arch.gnu();
    let mut flags = source::path_flags();
    flags.extend([STATIC_GLIBC, PACKED_RELOCATIONS].map(str::to_owned));
    let mut cargo = cargo("build", (arch, &target), &flags, &commit);
    cargo.args(["--config", SMALL]);
    for package in FAST {
        let fast = format!("profile.release.package.{package}.opt-level=3");
        cargo.args(["--config", &fast]);
    }
    command::run(cargo.args(["-p", "agent", "-p", "ctl"]))?;
    kube(arch, &flags, &commit)?;
    let musl = if arch.is_host() {
        tools.static_target.clone()
    } else {
        Some(arch.musl())
    };
    let is_static = musl.is_some();
    let plugin_target = musl.unwrap_or_else(|| target.clone());
    plugin((arch, &plugin_target), is_static, &commit)?;
    let folder = |target: &str| project::target().join(target).join("release");
    Ok(Programs {
        agent: folder(&target).join("viaductd"),
        ctl: folder(&target).join("viaductctl"),
        kube: folder(&target).join("viaduct-kube"),
        plugin: folder(&plugin_target).join("viaduct"),
        target,
    })
}

/// Builds the Kubernetes source by itself, so that no feature of its libraries gets into the agent.
/// It waits for an API server nearly all of the time: with less optimisation, it is built in three
/// quarters of the time.
fn kube(arch: Arch, flags: &[String], commit: &str) -> Result<()> {
    let mut cargo = cargo("build", (arch, &arch.gnu()), flags, commit);
    cargo.args(["--config", "profile.release.opt-level=1"]);
    command::run(cargo.args(["-p", "viaduct-kube"]))
}

/// Builds the plugin, as small as it can be.
fn plugin(target: (Arch, &str), is_static: bool, commit: &str) -> Result<()> {
    let mut cargo = cargo("rustc", target, &source::path_flags(), commit);
    cargo.args(["-p", "plugin"]);
    if !is_static {
        return command::run(cargo.args(STRIPPED));
    }
    cargo
        .args(["--config", "profile.release.lto=\"fat\""])
        .args(["--config", "profile.release.codegen-units=1"])
        .args(["--config", "profile.release.opt-level=\"z\""])
        // Panics are not caught, and unwinding tables would be a tenth of the program.
        .args(["--config", "profile.release.panic=\"abort\""]);
    command::run(cargo.args(STRIPPED).args([IN_PLACE, ONE_SEGMENT]))
}

/// Returns a call of cargo that builds for a target with these compiler flags.
fn cargo(verb: &str, (arch, target): (Arch, &str), flags: &[String], commit: &str) -> Command {
    let mut cargo = Command::new("cargo");
    arch.cross(&mut cargo);
    cargo.args([verb, "--release", "--locked", "--target", target]);
    cargo.args(["--config", &source::flags_in_config(target, flags)]);
    cargo.env(source::COMMIT, commit);
    cargo
}
