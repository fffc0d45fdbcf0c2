//! cargo-deny, pinned: the one on PATH, else built into `target/tools`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::progress::{Steps, Voice};
use crate::{command, privilege, project};

/// The pinned version.
const VERSION: &str = "0.20.2";
const INSTALL_LIMIT: Duration = Duration::from_mins(20);

/// Returns cargo-deny of the pinned version, installed where it is missing.
pub(crate) fn ensure_deny() -> Result<PathBuf> {
    ensure(&Steps::new(Voice::QuietIfDone))
}

pub(super) fn ensure(steps: &Steps) -> Result<PathBuf> {
    let own = project::tools().join("bin/cargo-deny");
    let on_path = privilege::find("cargo-deny");
    let mut candidates = on_path.into_iter().chain([own.clone()]);
    if let Some(found) = candidates.find(|path| has_version(path)) {
        steps.already(&format!("dependencies checked by cargo-deny {VERSION}"));
        return Ok(found);
    }
    let mut install = Command::new("cargo");
    install
        .args(["install", "cargo-deny", "--locked", "--version", VERSION])
        // Unoptimised: it builds in half the time, and runs for less than a second.
        .arg("--debug")
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .arg("--root")
        .arg(project::tools());
    let what = format!("build cargo-deny {VERSION}");
    steps.run(&what, &mut install, INSTALL_LIMIT)?;
    if !has_version(&own) {
        bail!("{} does not run", own.display());
    }
    Ok(own)
}

fn has_version(program: &Path) -> bool {
    command::output(Command::new(program).arg("--version"))
        .is_ok_and(|version| version.trim() == format!("cargo-deny {VERSION}"))
}
