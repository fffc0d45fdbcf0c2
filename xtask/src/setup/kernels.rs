//! Kernels that the machine's own suite does not have: of older releases that are in use.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::archive::{Archive, Kind, Suite, numbers};
use crate::progress::Steps;

/// A kernel of another suite.
struct Kernel {
    series: &'static str,
    suite: Suite,
    /// What the names of its packages begin with, before the release: image first.
    packages: &'static [&'static str],
    /// What they end with.
    flavour: &'static str,
}

const KERNELS: [Kernel; 2] = [
    // That of Ubuntu 22.04.
    Kernel {
        series: "5.15",
        suite: Suite::ubuntu("jammy-updates"),
        packages: &["linux-image-unsigned-", "linux-modules-"],
        flavour: "-generic",
    },
    // That of Debian 11.
    Kernel {
        series: "5.10",
        suite: Suite::debian("bullseye"),
        packages: &["linux-image-"],
        flavour: "-cloud-amd64",
    },
];

/// Unpacks the newest kernel of a series, and returns the folder with `boot` and `lib/modules`.
/// `None` for a series of the machine's own suite.
pub(super) fn unpack(steps: &Steps, series: &str) -> Result<Option<PathBuf>> {
    let Some(kernel) = KERNELS.iter().find(|it| it.series == series) else {
        return Ok(None);
    };
    let archive = Archive::open(steps, Kind::Binary, kernel.suite)?
        .with_context(|| format!("the archive with kernel {series} does not answer"))?;
    let (image, prefix) = (
        kernel.packages[0],
        format!("{}{series}.", kernel.packages[0]),
    );
    let names = archive.names(&prefix)?;
    let releases = names.iter().filter_map(|name| {
        let release = name.strip_prefix(image)?;
        release.ends_with(kernel.flavour).then_some(release)
    });
    let newest = releases
        .max_by_key(|release| numbers(release))
        .with_context(|| format!("no package has kernel {series}"))?;
    let packages: Vec<String> = (kernel.packages.iter())
        .map(|package| format!("{package}{newest}"))
        .collect();
    archive.unpack_all(&packages).map(Some)
}
