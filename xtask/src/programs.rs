//! The programs that are shipped: built with optimisation, linked statically, and equal wherever
//! they are built from equal sources.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::setup::Tools;
use crate::{command, project, source};

/// The profile's `strip` does not apply to a package that has settings of its own.
const STRIPPED: [&str; 2] = ["--", "-Cstrip=symbols"];
/// Linked at a fixed address, so that nothing is relocated at start: writing to a page of pointers
/// costs a page fault and a copy of the page.
const IN_PLACE: &str = "-Crelocation-model=static";

/// The built programs.
pub(crate) struct Programs {
    pub(crate) agent: PathBuf,
    pub(crate) ctl: PathBuf,
    pub(crate) plugin: PathBuf,
    /// The target for which they are built.
    pub(crate) target: String,
}

/// Builds all programs.
pub(crate) fn build(tools: &Tools) -> Result<Programs> {
    // Once, so that all programs name the same commit.
    let commit = source::commit().unwrap_or_default();
    let mut cargo = cargo("build", tools, &commit);
    command::run(cargo.args(["-p", "agent", "-p", "ctl"]))?;
    plugin(tools, &commit)?;
    let target = project::target();
    let folder = match &tools.static_target {
        Some(name) => target.join(name).join("release"),
        None => target.join("release"),
    };
    Ok(Programs {
        agent: folder.join("viaductd"),
        ctl: folder.join("viaductctl"),
        plugin: folder.join("viaduct"),
        target: tools.static_target.clone().unwrap_or_else(host),
    })
}

fn host() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// Builds the plugin, as small as it can be.
fn plugin(tools: &Tools, commit: &str) -> Result<()> {
    let mut cargo = cargo("rustc", tools, commit);
    cargo.args(["-p", "plugin"]);
    if tools.static_target.is_none() {
        return command::run(cargo.args(STRIPPED));
    }
    cargo
        .args(["--config", "profile.release.lto=\"fat\""])
        .args(["--config", "profile.release.codegen-units=1"])
        .args(["--config", "profile.release.opt-level=\"z\""])
        // Panics are not caught, and unwinding tables would be a tenth of the program.
        .args(["--config", "profile.release.panic=\"abort\""]);
    command::run(cargo.args(STRIPPED).arg(IN_PLACE))
}

/// Returns a call of cargo that builds for the static target, if there is one.
fn cargo(verb: &str, tools: &Tools, commit: &str) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.args([verb, "--release", "--locked"]);
    let target = tools.static_target.clone();
    cargo.args(target.iter().flat_map(|target| ["--target", target]));
    let flags = source::flags_in_config(&target.unwrap_or_else(host), &source::path_flags());
    cargo.args(["--config", &flags]);
    cargo.env(source::COMMIT, commit);
    cargo
}
