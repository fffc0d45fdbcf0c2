//! Root file systems of distributions, for guests on which packages are installed.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::apt::Apt;
use super::archive::Suite;
use crate::privilege;
use crate::progress::Steps;

const LIMIT: Duration = Duration::from_mins(15);

/// What a node of containers has besides the essential packages.
const PACKAGES: [&str; 15] = [
    "busybox-static",
    "conmon",
    "containerd",
    "crun",
    "curl",
    "dbus",
    "iproute2",
    "iptables",
    "kmod",
    "nftables",
    "podman",
    "procps",
    "runc",
    "systemd",
    "systemd-sysv",
];

/// Installs a release into `folder`, with these packages in addition.
pub(super) fn install(
    steps: &Steps,
    apt: &mut Apt<'_>,
    (suite, further): (Suite, &[&str]),
    folder: &Path,
) -> Result<()> {
    if privilege::find("mmdebstrap").is_none() {
        apt.install("install a distribution for a guest", &["mmdebstrap"])?;
    }
    let partial = folder.with_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    let source = suite.source(steps)?.context("its archive has no address")?;
    let packages = [&PACKAGES[..], further].concat().join(",");
    let mut make = privilege::as_root("mmdebstrap")?;
    make.args(["--quiet", "--variant=minbase"])
        .arg(format!("--include={packages}"))
        .arg(suite.name())
        .arg(&partial)
        .arg(format!("deb {source}"));
    let what = format!("install {} for guests", suite.name());
    steps.run(&what, &mut make, LIMIT)?;
    Ok(fs::rename(partial, folder)?)
}
