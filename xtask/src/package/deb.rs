//! Packages for Debian and its relatives, by dpkg-deb.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::stage::{self, Format};
use super::{Release, fresh, pages};
use crate::arch::Arch;
use crate::{command, project};

/// Puts the files of a package in place below a root.
type Stage = fn(Arch, Format, &Path) -> Result<()>;

/// The packages, each with the function that puts its files in place.
const PACKAGES: [(&str, Stage); 2] = [
    ("viaduct", stage::product),
    ("viaduct-plugins", stage::plugins),
];

/// Files that are no scripts.
const PLAIN: [&str; 2] = ["control", "conffiles"];

/// Writes the packages into `folder`.
pub(super) fn build(release: &Release, folder: &Path) -> Result<()> {
    for (name, place) in PACKAGES {
        let root = fresh(&folder.join("stage/deb").join(name))?;
        place(release.arch, Format::Deb, &root)?;
        if name == "viaduct" {
            pages::place(&folder.join("stage/pages"), &root, Format::Deb)?;
        }
        control(release, name, &root)?;
        let mut dpkg = Command::new("dpkg-deb");
        dpkg.args(["--root-owner-group", "-Zxz", "--threads-max=1", "--build"]);
        dpkg.arg(&root).arg(folder.join(file_name(release, name)));
        command::run(release.timed(&mut dpkg))?;
    }
    Ok(())
}

fn file_name(release: &Release, package: &str) -> String {
    let architecture = if package == "viaduct" {
        release.arch.debian()
    } else {
        "all"
    };
    format!("{package}_{}-1_{architecture}.deb", release.version)
}

/// Writes the control files of a package into `root`.
fn control(release: &Release, package: &str, root: &Path) -> Result<()> {
    let size = kibibytes(root)?;
    let sources = project::root().join("packaging/deb").join(package);
    let mut files: Vec<PathBuf> = fs::read_dir(&sources)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.sort();
    for file in files {
        let name = file.file_name().context("a file")?.to_string_lossy();
        let text = fs::read_to_string(&file)?
            .replace("@VERSION@", &format!("{}-1", release.version))
            .replace("@ARCHITECTURE@", release.arch.debian())
            .replace("@SIZE@", &size.to_string());
        let mode = if PLAIN.contains(&name.as_ref()) {
            0o644
        } else {
            0o755
        };
        stage::put(
            &root.join("DEBIAN").join(name.as_ref()),
            text.as_bytes(),
            mode,
        )?;
    }
    Ok(())
}

/// Returns the size of all files below `root`, each rounded up to KiB.
fn kibibytes(root: &Path) -> Result<u64> {
    let files = stage::files(root)?;
    let size = |path: &PathBuf| -> Result<u64> {
        let path = root.join(path.strip_prefix("/")?);
        Ok(path.symlink_metadata()?.len().div_ceil(1024))
    };
    files.iter().map(size).sum()
}
