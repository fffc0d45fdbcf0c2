//! Software that tests run and that is not installed, below `target/tools`: newer releases than the
//! machine's of what Viaduct is compared with or works with (the reference plugins, Docker and
//! podman), Prometheus, and etcd.
//!
//! A release is of the first of Debian's suites whose program runs here. Where none is to be had,
//! tests use the installed one.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use super::archive::{Archive, Kind, Suite};
use crate::progress::Steps;
use crate::{command, project};

/// Debian's newest suite.
const NEWEST: &[&str] = &["sid"];
/// Also the suites whose programs run with older C libraries.
const ANY: &[&str] = &["sid", "trixie", "bookworm"];

/// Software that is unpacked.
#[derive(Clone, Copy)]
struct Release {
    /// Its folder below `target/tools`, which has a folder for each version.
    name: &'static str,
    /// Debian's package.
    package: &'static str,
    content: Content,
    /// Suites, the preferred one first.
    suites: &'static [&'static str],
}

/// What of a release is kept.
#[derive(Clone, Copy)]
enum Content {
    /// This folder of programs, if one of them runs here with this argument: built against a newer
    /// C library, it may not.
    Programs {
        folder: &'static str,
        proof: (&'static str, &'static str),
    },
    /// All files of the package, of these others, and of all that they depend on, with their own C
    /// library.
    Root(&'static [&'static str]),
}

const REFERENCE: Release = Release {
    name: "reference",
    package: "containernetworking-plugins",
    content: Content::Programs {
        folder: "usr/lib/cni",
        proof: ("bridge", "--version"),
    },
    suites: NEWEST,
};

const DOCKER: Release = Release {
    name: "docker",
    package: "docker.io",
    content: Content::Programs {
        folder: "usr/sbin",
        proof: ("dockerd", "--version"),
    },
    suites: NEWEST,
};

/// podman 5, whose networks have drivers of others. It runs with the C library of its suite only.
const PODMAN: Release = Release {
    name: "podman",
    package: "podman",
    content: Content::Root(&["netavark", "aardvark-dns", "conmon", "crun"]),
    suites: &["trixie"],
};

const PROMETHEUS: Release = Release {
    name: "prometheus",
    package: "prometheus",
    content: Content::Programs {
        folder: "usr/bin",
        proof: ("promtool", "--version"),
    },
    suites: ANY,
};

/// Of the suite whose Kubernetes is built: its server keeps the objects of that API server.
const ETCD: Release = Release {
    name: "etcd",
    package: "etcd-server",
    content: Content::Programs {
        folder: "usr/bin",
        proof: ("etcd", "--version"),
    },
    suites: &["bookworm"],
};

/// Unpacks etcd, unless a release is there. An installed package would start with the machine.
pub(super) fn ensure_etcd(steps: &Steps) -> Result<()> {
    ETCD.ensure(steps)
}

/// Unpacks Prometheus, and promtool, which checks metrics and alert rules, unless a release is
/// there.
pub(super) fn ensure_prometheus(steps: &Steps) -> Result<()> {
    PROMETHEUS.ensure(steps)
}

/// Unpacks the newest reference plugins, unless a release is there.
pub(super) fn ensure_reference(steps: &Steps) -> Result<()> {
    REFERENCE.ensure(steps)
}

/// Unpacks the newest Docker, unless a release is there.
pub(super) fn ensure_docker(steps: &Steps) -> Result<()> {
    DOCKER.ensure(steps)
}

/// Unpacks podman 5, unless a release is there.
pub(super) fn ensure_podman(steps: &Steps) -> Result<()> {
    PODMAN.ensure(steps)
}

impl Release {
    fn ensure(self, steps: &Steps) -> Result<()> {
        let releases = project::tools().join(self.name);
        let refused = project::tools().join(format!("{}-refused", self.name));
        let has_release = fs::read_dir(&releases).is_ok_and(|mut found| found.next().is_some());
        // Of a marker that lacks a suite, that suite was not tried yet.
        let tried = fs::read_to_string(&refused).unwrap_or_default();
        let is_refused = |suite: &&str| tried.contains(&format!("{suite}: "));
        if has_release || self.suites.iter().all(is_refused) {
            return Ok(());
        }
        let mut reasons = String::new();
        for suite in self.suites {
            let reason = match self.unpack(steps, suite, &releases) {
                Ok(true) => return Ok(()),
                Ok(false) => "it does not come".to_owned(),
                Err(error) => format!("{error:#}"),
            };
            let _always_fits = writeln!(reasons, "{suite}: {reason}");
        }
        fs::create_dir_all(project::tools())?;
        fs::write(&refused, reasons)?;
        steps.note(&format!(
            "no newer {}; remove {} to try again",
            self.package,
            project::short(&refused)
        ));
        Ok(())
    }

    /// Returns whether the release was unpacked.
    fn unpack(self, steps: &Steps, suite: &'static str, releases: &Path) -> Result<bool> {
        let Some(archive) = Archive::open(steps, Kind::Binary, Suite::debian(suite))? else {
            return Ok(false);
        };
        let version = archive.version(self.package)?;
        let files = match self.content {
            Content::Programs { folder, proof } => {
                let programs = archive.unpack(self.package)?.join(folder);
                let mut proven = Command::new(programs.join(proof.0));
                proven.arg(proof.1).stdin(Stdio::null());
                command::output(&mut proven)?;
                programs
            }
            Content::Root(others) => archive.unpack_root(&[&[self.package], others].concat())?,
        };
        fs::create_dir_all(releases)?;
        let release = releases.join(version);
        fs::rename(&files, &release).with_context(|| format!("cannot move {}", files.display()))?;
        Ok(true)
    }
}
