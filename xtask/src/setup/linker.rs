//! The BPF linker, pinned, and built against the LLVM of the compiler whose bitcode it reads.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::apt::Apt;
use super::toolchain::LLVM;
use crate::progress::Steps;
use crate::{command, privilege, project};

/// The pinned version.
pub(super) const VERSION: &str = "0.13.0";
const INSTALL_LIMIT: Duration = Duration::from_mins(15);
/// Packages that linking against LLVM needs; the C++ compiler brings the C++ library.
const PACKAGES: [&str; 6] = [
    "llvm-22-dev",
    "libpolly-22-dev",
    "libzstd-dev",
    "zlib1g-dev",
    "libxml2-dev",
    "g++",
];

/// The linker on PATH if its version is right, else our own in the checkout, built when missing.
pub(super) fn ensure(steps: &Steps, apt: &mut Apt<'_>) -> Result<PathBuf> {
    let own = project::tools().join("bin/bpf-linker");
    let on_path = privilege::find("bpf-linker");
    if let Some(found) = on_path
        .into_iter()
        .chain([own.clone()])
        .find(|path| has_version(path))
    {
        return Ok(found);
    }
    apt.install("build the BPF linker", &PACKAGES)?;
    let prefix = llvm_prefix()?;
    let path = std::env::var("PATH").unwrap_or_default();
    let mut install = Command::new("cargo");
    install
        .args(["install", "bpf-linker", "--locked", "--version", VERSION])
        .args([
            "--no-default-features",
            "--features",
            &format!("llvm-{LLVM}"),
        ])
        .arg("--root")
        .arg(project::tools())
        .env("LLVM_PREFIX", &prefix)
        .env("PATH", format!("{}/bin:{path}", prefix.display()));
    steps.run(
        &format!("build bpf-linker {VERSION}"),
        &mut install,
        INSTALL_LIMIT,
    )?;
    if !has_version(&own) {
        bail!("{} does not run", own.display());
    }
    Ok(own)
}

fn has_version(linker: &Path) -> bool {
    command::output(Command::new(linker).arg("--version"))
        .is_ok_and(|version| version.trim() == format!("bpf-linker {VERSION}"))
}

fn llvm_prefix() -> Result<PathBuf> {
    let debian = PathBuf::from(format!("/usr/lib/llvm-{LLVM}"));
    if debian.join("bin/llvm-config").exists() {
        return Ok(debian);
    }
    std::env::var_os("LLVM_PREFIX")
        .map(PathBuf::from)
        .with_context(|| format!("no LLVM {LLVM} found: set LLVM_PREFIX to where it is installed"))
}
