//! The compiler of BPF code: any rustc of the linker's LLVM that has the sources of `core` beside
//! it.
//!
//! `core` for BPF is not shipped compiled, so it is built from source. That is an unstable feature
//! of cargo, enabled by `RUSTC_BOOTSTRAP`, so that no nightly is needed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::apt::Apt;
use crate::progress::Steps;
use crate::{command, privilege, project};

/// The LLVM that compiler and linker share.
pub(super) const LLVM: u32 = 22;
/// Name under which Debian's compiler is linked into rustup.
const DISTRO: &str = "distro";
const DISTRO_PACKAGES: [&str; 3] = ["rustc-web", "cargo-web", "rust-web-src"];
/// Environment variable that chooses a rustup toolchain, to compare compilers.
const CHOICE: &str = "VIADUCT_BPF_TOOLCHAIN";
/// Limit of a download: behind some proxies it hangs.
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(20);
const LINK_LIMIT: Duration = Duration::from_secs(20);

/// A compiler, and how to call its cargo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Toolchain {
    /// Its name in rustup; `None` for the active toolchain.
    pub(super) name: Option<String>,
    /// `rustc`'s version line.
    pub(super) version: String,
}

impl Toolchain {
    /// Returns the toolchain of that name, if it can compile BPF code.
    pub(super) fn examine(name: Option<&str>) -> Option<Self> {
        let facts = command::output(tool(name, "rustc").arg("-vV")).ok()?;
        let sysroot = command::output(tool(name, "rustc").args(["--print", "sysroot"])).ok()?;
        let version = facts.lines().next()?.to_owned();
        let matches = llvm_of(&facts) == Some(LLVM) && has_sources(Path::new(sysroot.trim()));
        matches.then(|| Self {
            name: name.map(str::to_owned),
            version,
        })
    }

    /// Returns the version line of its compiler.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Returns the directory that has its libraries and their sources.
    pub(crate) fn sysroot(&self) -> Result<PathBuf> {
        let mut rustc = tool(self.name.as_deref(), "rustc");
        let path = command::output(rustc.args(["--print", "sysroot"]))?;
        Ok(PathBuf::from(path.trim()))
    }

    /// Returns its cargo.
    pub(crate) fn cargo(&self) -> Command {
        tool(self.name.as_deref(), "cargo")
    }
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().unwrap_or("the active toolchain");
        let compiler = self
            .version
            .split_whitespace()
            .take(2)
            .collect::<Vec<_>>()
            .join(" ");
        write!(f, "{compiler} ({name}, LLVM {LLVM}, with its sources)")
    }
}

/// Returns the first suitable toolchain: the active one, Debian's, or one that can be installed.
pub(super) fn ensure(steps: &Steps, apt: &mut Apt<'_>) -> Result<Toolchain> {
    if let Some(name) = chosen() {
        return Toolchain::examine(Some(&name))
            .with_context(|| format!("{CHOICE}={name} has not LLVM {LLVM} and rust-src"));
    }
    if let Some(found) = Toolchain::examine(None).or_else(|| Toolchain::examine(Some(DISTRO))) {
        return Ok(found);
    }
    if download_sources(steps)?
        && let Some(found) = Toolchain::examine(None)
    {
        return Ok(found);
    }
    apt.install("compile BPF code", &DISTRO_PACKAGES)?;
    link_distro(steps)?;
    Toolchain::examine(Some(DISTRO)).with_context(|| {
        format!("the packages {DISTRO_PACKAGES:?} bring no rustc of LLVM {LLVM} with sources")
    })
}

/// Returns the toolchain that the environment chooses.
pub(super) fn chosen() -> Option<String> {
    std::env::var(CHOICE).ok().filter(|name| !name.is_empty())
}

/// Installs the sources of the active toolchain by rustup. Tried once: a failure is recorded.
fn download_sources(steps: &Steps) -> Result<bool> {
    let refused = refusal_marker();
    let facts = command::output(tool(None, "rustc").arg("-vV"))?;
    if privilege::find("rustup").is_none() || llvm_of(&facts) != Some(LLVM) || refused.exists() {
        return Ok(false);
    }
    let mut add = Command::new("rustup");
    add.args(["component", "add", "rust-src"]);
    let came = steps.works("download rust-src", &mut add, DOWNLOAD_LIMIT)?;
    if !came {
        std::fs::write(
            &refused,
            "rust-src did not come; remove this file to try again\n",
        )?;
        steps.note(&format!(
            "Debian's compiler it is; remove {} to try again",
            project::short(&refused)
        ));
    }
    Ok(came)
}

fn link_distro(steps: &Steps) -> Result<()> {
    if privilege::find("rustup").is_none() {
        bail!("rustup is needed to choose between compilers");
    }
    let mut link = Command::new("rustup");
    link.args(["toolchain", "link", DISTRO, "/usr"]);
    steps.run("give Debian's compiler a name", &mut link, LINK_LIMIT)
}

fn tool(toolchain: Option<&str>, program: &str) -> Command {
    let Some(name) = toolchain else {
        return Command::new(program);
    };
    let mut command = Command::new("rustup");
    command.args(["run", name, program]);
    command
}

fn llvm_of(facts: &str) -> Option<u32> {
    let version = facts
        .lines()
        .find_map(|line| line.strip_prefix("LLVM version: "))?;
    version.split('.').next()?.parse().ok()
}

fn has_sources(sysroot: &Path) -> bool {
    sysroot
        .join("lib/rustlib/src/rust/library/core/Cargo.toml")
        .exists()
}

fn refusal_marker() -> PathBuf {
    project::tools().join("rust-src-refused")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_llvm_of_a_compiler_is_its_major_number() {
        let facts = "rustc 1.95.0\nrelease: 1.95.0\nLLVM version: 22.1.2\n";
        assert_eq!(llvm_of(facts), Some(22));
    }

    #[test]
    fn a_compiler_that_names_no_llvm_does_not_serve() {
        assert_eq!(llvm_of("rustc 1.95.0"), None);
    }
}
