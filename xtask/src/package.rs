//! `package`: packages for Debian and Fedora, a tarball and an OCI image, under `target/package`.
//!
//! Made from `target/dist` by the tools of the distributions. Equal files give equal packages: each
//! time in them is that of the sources, and each owner is root.

mod deb;
mod oci;
mod pages;
mod reproduce;
mod rpm;
mod stage;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, ScopedJoinHandle};

use anyhow::{Result, anyhow, ensure};
use sha2::{Digest as _, Sha256};

use crate::arch::Arch;
use crate::rungs::Count;
use crate::sbom::hexadecimal;
use crate::{command, dist, project, setup, source};

/// File with the checksums of the others, in the format of `sha256sum`.
const SUMS: &str = "SHA256SUMS";

/// Arguments of `package`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build everything a second time in a copy of the checkout, and compare the checksums
    #[arg(long)]
    reproduce: bool,
    /// Package the programs of this architecture, under target/package-ARCH
    #[arg(long, conflicts_with = "reproduce")]
    arch: Option<Arch>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    dist::run(dist::Args {
        arch: args.arch,
        ..dist::Args::default()
    })?;
    let arch = args.arch.unwrap_or(Arch::HOST);
    let folder = folder(arch);
    write(arch, &folder)?;
    print!("{}", fs::read_to_string(folder.join(SUMS))?);
    if args.reproduce {
        reproduce::compare(&folder)?;
    }
    Ok(())
}

/// Packages `target/dist` twice and compares the results, for the test ladder. Both at once: each
/// compresses with one processor.
pub(crate) fn of_ladder() -> Result<Count> {
    setup::ensure_packaging()?;
    let folder = folder(Arch::HOST);
    let again = project::root().join("target/package-again");
    let written = thread::scope(|scope| {
        let writers = [&folder, &again].map(|each| scope.spawn(|| write(Arch::HOST, each)));
        writers.map(ScopedJoinHandle::join)
    });
    for result in written {
        result.map_err(|_panic| anyhow!("writing packages panicked"))??;
    }
    let mut count = Count::of_nothing();
    let same = same_sums(&folder, &again).inspect_err(|error| eprintln!("{error:#}"));
    count.add(same.is_ok());
    fs::remove_dir_all(&again)?;
    Ok(count)
}

/// Writes the packages of the programs that are built for this machine.
pub(crate) fn of_dist() -> Result<()> {
    write(Arch::HOST, &folder_of_host())
}

/// The folder of the packages for this machine.
pub(crate) fn folder_of_host() -> PathBuf {
    folder(Arch::HOST)
}

/// The folder of the packages.
fn folder(arch: Arch) -> PathBuf {
    let name = if arch.is_host() {
        "target/package".to_owned()
    } else {
        format!("target/package-{}", arch.name())
    };
    project::root().join(name)
}

/// What identifies the packaged release.
struct Release {
    version: &'static str,
    arch: Arch,
    /// In seconds since 1970.
    epoch: u64,
}

impl Release {
    /// Makes a tool write the time of the sources instead of the present one.
    fn timed<'a>(&self, tool: &'a mut Command) -> &'a mut Command {
        tool.env(source::EPOCH, self.epoch.to_string())
    }
}

/// Writes packages, tarball, image, bills of materials and checksums into `folder`, and removes
/// what an earlier run has left there.
fn write(arch: Arch, folder: &Path) -> Result<()> {
    setup::ensure_packaging()?;
    fresh(folder)?;
    let release = Release {
        version: env!("CARGO_PKG_VERSION"),
        arch,
        epoch: source::epoch()?,
    };
    pages::write(&folder.join("stage/pages"))?;
    deb::build(&release, folder)?;
    rpm::build(&release, folder)?;
    tarball(&release, folder)?;
    oci::build(&release, folder)?;
    for entry in fs::read_dir(arch.dist().join("sbom"))? {
        let bill = entry?;
        fs::copy(bill.path(), folder.join(bill.file_name()))?;
    }
    fs::remove_dir_all(folder.join("stage"))?;
    fs::write(folder.join(SUMS), sums(folder)?)?;
    Ok(())
}

/// Packs `target/dist` with licence and documents, by GNU tar.
fn tarball(release: &Release, folder: &Path) -> Result<()> {
    let name = format!("viaduct-{}-{}", release.version, release.arch.name());
    let mut tar = Command::new("tar");
    tar.args(["--create", "--format=gnu", "--sort=name"]);
    tar.args(["--owner=root:0", "--group=root:0", "--mode=u=rwX,go=rX"]);
    tar.arg(format!("--mtime=@{}", release.epoch));
    tar.arg("--use-compress-program=gzip -9n");
    tar.arg(format!("--transform=s,^,{name}/,RSh"));
    tar.arg("--file").arg(folder.join(format!("{name}.tar.gz")));
    tar.arg("--directory").arg(project::root());
    tar.args(["LICENSE", "README.md", "CHANGELOG.md", "docs/operations.md"]);
    tar.arg("deploy/kubernetes");
    tar.arg("--directory").arg(release.arch.dist());
    tar.args(["bin", "cni", "etc", "lib", "sbom"]);
    tar.arg("--directory")
        .arg(folder.join("stage"))
        .arg("pages");
    command::run(&mut tar)
}

/// Returns the checksums of the files in `folder`, one line each, sorted by name.
fn sums(folder: &Path) -> Result<String> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let digest = Sha256::digest(fs::read(folder.join(&name))?);
        lines.push((name, hexadecimal(&digest)));
    }
    lines.sort();
    let line = |(name, digest)| format!("{digest}  {name}\n");
    Ok(lines.into_iter().map(line).collect())
}

/// Fails with the differing lines unless two folders have the same checksums.
fn same_sums(one: &Path, other: &Path) -> Result<()> {
    let read = |folder: &Path| fs::read_to_string(folder.join(SUMS));
    let (ours, theirs) = (read(one)?, read(other)?);
    let has = |text: &str, line: &str| text.lines().any(|it| it == line);
    let only = |left: &str, right: &str| -> Vec<String> {
        let lines = left.lines().filter(|line| !has(right, line));
        lines.map(str::to_owned).collect()
    };
    let differing = [only(&ours, &theirs), only(&theirs, &ours)].concat();
    ensure!(
        differing.is_empty(),
        "two builds of the same sources differ:\n{}",
        differing.join("\n")
    );
    Ok(())
}

/// Returns `folder`, empty.
fn fresh(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    Ok(folder.to_owned())
}
