//! Packages for Fedora and its relatives, by rpmbuild.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::stage::{self, CONFIGURATION, Format};
use super::{Release, fresh, pages};
use crate::{command, project};

/// Settings by which equal files give equal packages, whatever the distribution of this machine
/// configures: times and host, and nothing that changes the programs.
const SETTINGS: [&str; 10] = [
    "use_source_date_epoch_as_buildtime 1",
    "clamp_mtime_to_source_date_epoch 1",
    "source_date_epoch_from_changelog 0",
    "_buildhost viaduct",
    "_build_id_links none",
    "_binary_payload w9.xzdio",
    "debug_package %{nil}",
    "__os_install_post %{nil}",
    "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
    "optflags %{nil}",
];

/// Writes the packages into `folder`.
pub(super) fn build(release: &Release, folder: &Path) -> Result<()> {
    let top = fresh(&folder.join("stage/rpm"))?;
    let root = top.join("root");
    stage::product(release.arch, Format::Rpm, &root)?;
    pages::place(&folder.join("stage/pages"), &root, Format::Rpm)?;
    let list = top.join("viaduct.files");
    fs::write(&list, files(&root)?)?;
    stage::plugins(release.arch, Format::Rpm, &root)?;
    let mut rpmbuild = Command::new("rpmbuild");
    rpmbuild.args(["-bb", "--quiet"]);
    rpmbuild.arg(format!("--target={}", release.arch.name()));
    let own = [
        format!("_topdir {}", top.join("work").display()),
        format!("_rpmdir {}", folder.display()),
        format!("_dbpath {}", top.join("db").display()),
        format!("staged {}", root.display()),
        format!("staged_files {}", list.display()),
        format!("product_version {}", release.version),
    ];
    let settings = SETTINGS.map(str::to_owned);
    for setting in settings.iter().chain(&own) {
        rpmbuild.args(["--define", setting]);
    }
    rpmbuild.arg(project::root().join("packaging/rpm/viaduct.spec"));
    command::run(release.timed(&mut rpmbuild)).context("cannot build the RPM packages")
}

/// Returns the list of the product's files for the spec file's `%files`.
fn files(root: &Path) -> Result<String> {
    let line = |path: &Path| {
        let path = path.display();
        if path.to_string() == format!("/{CONFIGURATION}") {
            format!("%config(noreplace) {path}\n")
        } else {
            format!("{path}\n")
        }
    };
    let files = stage::files(root)?;
    let own = [
        // Shared with other packages: the last one removes them.
        "/opt/cni",
        "/opt/cni/bin",
        "/usr/libexec/cni",
        "/usr/libexec/netavark",
        "/usr/share/bash-completion",
        "/usr/share/bash-completion/completions",
        "/usr/share/fish",
        "/usr/share/fish/vendor_completions.d",
        "/usr/share/zsh",
        "/usr/share/zsh/site-functions",
        "/etc/viaduct",
        "/usr/lib/viaduct",
        "/usr/share/doc/viaduct",
        "/usr/share/doc/viaduct/sbom",
        "/usr/share/viaduct",
        "/usr/share/viaduct/packages",
    ];
    let folders = own.map(|folder| format!("%dir {folder}\n"));
    let list = files.iter().map(|path| line(path));
    Ok(folders.into_iter().chain(list).collect())
}
