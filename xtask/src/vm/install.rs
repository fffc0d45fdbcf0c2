//! A guest with a fresh distribution and systemd, on which the packages are installed, upgraded
//! under traffic and purged.
//!
//! The guest's script (`assets/guest-install.sh`) makes the checks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::guest::{Boot, Guest};
use super::kernel::Kernel;
use super::{Args, prepare};
use crate::progress::{Steps, Voice};
use crate::setup::{self, Suite};
use crate::{command, dist, package, project};

const SCRIPT: &str = include_str!("../../assets/guest-install.sh");

/// Where the guest finds the packages.
const PACKAGES: &str = "srv/packages";

/// A release of a distribution.
struct Release {
    /// Series of its kernel.
    kernel: &'static str,
    suite: Suite,
    /// How its podman makes networks.
    podman: &'static str,
    /// What that needs.
    packages: &'static [&'static str],
}

const RELEASES: [Release; 2] = [
    Release {
        kernel: "6.1",
        suite: Suite::debian("bookworm"),
        podman: "cni",
        packages: &["containernetworking-plugins"],
    },
    Release {
        kernel: "6.12",
        suite: Suite::debian("trixie"),
        podman: "netavark",
        packages: &["aardvark-dns", "netavark"],
    },
];

/// Runs a guest with the release of each kernel.
pub(super) fn run(args: &Args) -> Result<()> {
    let (kernels, accelerator) = prepare(&args.kernels)?;
    if !args.staged {
        dist::run(dist::Args {
            next: true,
            ..dist::Args::default()
        })?;
        package::of_dist()?;
    }
    let steps = Steps::new(Voice::Full);
    for kernel in kernels {
        let release = (RELEASES.iter())
            .find(|it| it.kernel == kernel.name)
            .with_context(|| format!("no known distribution has kernel {}", kernel.name))?;
        let name = release.suite.name();
        let files = project::target().join("vm").join(name);
        if !files.is_dir() {
            setup::install_distribution(&steps, (release.suite, release.packages), &files)?;
        }
        stage(&files)?;
        let kernel = with_files(kernel, files)?;
        let guest = Guest {
            boot: Boot::Systemd,
            ..Guest::alone(&kernel, accelerator, Duration::from_mins(args.limit))
        };
        let script = format!("export PODMAN={}\n{SCRIPT}", release.podman);
        let status = guest.run(&script, |line| println!("{name:>8} │ {line}"))?;
        ensure!(status == 0, "{name}: the script failed");
    }
    Ok(())
}

/// Returns the kernel with these files, which get its modules.
fn with_files(kernel: Kernel, files: PathBuf) -> Result<Kernel> {
    let Some(modules) = &kernel.modules else {
        return Ok(Kernel { files, ..kernel });
    };
    let place = files.join("usr/lib/modules");
    fs::create_dir_all(&place)?;
    copy(modules, &place)?;
    let release = modules.file_name().context("modules of a release")?;
    Ok(Kernel {
        modules: Some(place.join(release)),
        files,
        ..kernel
    })
}

/// Puts the packages, and the programs of the next release, among the files.
fn stage(files: &Path) -> Result<()> {
    let packages = files.join(PACKAGES);
    if packages.exists() {
        fs::remove_dir_all(&packages)?;
    }
    fs::create_dir_all(packages.join("next"))?;
    for entry in fs::read_dir(package::folder_of_host())? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "deb") {
            copy(&path, &packages)?;
        }
    }
    let next = project::next_dist();
    for path in ["bin/viaductd", "lib/viaduct/datapath.o"] {
        copy(&next.join(path), &packages.join("next"))?;
    }
    Ok(())
}

/// Copies a file or directory into a folder, as links where that is possible.
fn copy(from: &PathBuf, folder: &Path) -> Result<()> {
    let mut copy = Command::new("cp");
    copy.args(["--archive", "--link", "--force"]).arg(from);
    command::output(copy.arg(folder)).map(drop)
}
