//! Compilers for another architecture: the standard library from rustup, C compiler and libraries
//! from Debian.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::apt::Apt;
use super::musl;
use crate::arch::Arch;
use crate::privilege;
use crate::progress::Steps;

/// Limit of the download of a standard library.
const DOWNLOAD_LIMIT: Duration = Duration::from_mins(2);

pub(super) fn ensure(steps: &Steps, apt: &mut Apt<'_>, arch: Arch) -> Result<()> {
    if privilege::find(&arch.compiler()).is_none() {
        let compiler = format!("gcc-{}-linux-gnu", arch.name());
        let libraries = format!("libc6-dev-{}-cross", arch.debian());
        apt.install("compile for another architecture", &[&compiler, &libraries])?;
    }
    for target in [arch.gnu(), arch.musl()] {
        if !musl::is_installed(&target) {
            let mut add = Command::new("rustup");
            add.args(["target", "add", &target]);
            steps.run(&format!("download {target}"), &mut add, DOWNLOAD_LIMIT)?;
        }
    }
    Ok(())
}
