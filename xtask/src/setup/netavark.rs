//! netavark, pinned, for the tests of its plugin interface: built from its crate into
//! `target/tools`.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::apt::Apt;
use crate::progress::Steps;
use crate::{command, privilege, project};

/// The pinned version.
const VERSION: &str = "2.1.0";
/// A build script of it compiles a protocol definition.
const COMPILER: (&str, &str) = ("protoc", "protobuf-compiler");
/// Limit on a busy machine; a free one takes three minutes.
const INSTALL_LIMIT: Duration = Duration::from_mins(40);

/// Builds netavark, unless it is there. Where it cannot be built, its tests are skipped.
pub(super) fn ensure(steps: &Steps, apt: &mut Apt<'_>) -> Result<()> {
    let refused = project::tools().join("netavark-refused");
    let folder = project::tools().join("netavark").join(VERSION);
    if folder.join("bin/netavark").exists() || refused.exists() {
        return Ok(());
    }
    let Err(error) = build(steps, apt) else {
        return Ok(());
    };
    fs::create_dir_all(project::tools())?;
    fs::write(&refused, format!("{error:#}\n"))?;
    steps.note(&format!(
        "no netavark; remove {} to try again",
        project::short(&refused)
    ));
    Ok(())
}

fn build(steps: &Steps, apt: &mut Apt<'_>) -> Result<()> {
    let (program, package) = COMPILER;
    if privilege::find(program).is_none() {
        apt.install("build netavark", &[package])?;
    }
    let root = project::tools().join("netavark").join(VERSION);
    let mut install = Command::new("nice");
    install
        .args(["-n", "10", "cargo", "install", "netavark", "--locked"])
        .args(["--version", VERSION, "--bin", "netavark"])
        // Unoptimised: it runs for milliseconds.
        .arg("--debug")
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .arg("--root")
        .arg(&root);
    steps.run(
        &format!("build netavark {VERSION}"),
        &mut install,
        INSTALL_LIMIT,
    )?;
    let mut shown = Command::new(root.join("bin/netavark"));
    let shown = command::output(shown.arg("--version"))?;
    ensure!(shown.contains(VERSION), "netavark calls itself {shown}");
    Ok(())
}
