//! The files of the packages, in place below a directory.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::arch::Arch;
use crate::dist::PLUGIN_NAMES;

/// Format of a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Deb,
    Rpm,
}

impl Format {
    /// The directory in which the distributions' packages have CNI plugins.
    fn plugins(self) -> &'static str {
        match self {
            Self::Deb => "usr/lib/cni",
            Self::Rpm => "usr/libexec/cni",
        }
    }
}

/// The directory in which container runtimes look for plugins, unless a distribution changes it.
const UPSTREAM_PLUGINS: &str = "opt/cni/bin";

/// A directory in which podman looks for plugins of netavark by default.
const NETAVARK_PLUGINS: &str = "usr/libexec/netavark";

/// The configuration, which upgrades keep.
pub(super) const CONFIGURATION: &str = "etc/viaduct/viaductd.toml";

/// Files of `target/dist` and of the checkout, their places, and their modes.
const FILES: [(&str, &str, u32); 14] = [
    ("target/dist/bin/viaductd", "usr/bin/viaductd", 0o755),
    ("target/dist/bin/viaductctl", "usr/bin/viaductctl", 0o755),
    (
        "target/dist/bin/viaduct-kube",
        "usr/bin/viaduct-kube",
        0o755,
    ),
    (
        "target/dist/lib/viaduct/datapath.o",
        "usr/lib/viaduct/datapath.o",
        0o644,
    ),
    ("target/dist/etc/viaductd.toml", CONFIGURATION, 0o644),
    (
        "target/dist/etc/viaductd.service",
        "usr/lib/systemd/system/viaductd.service",
        0o644,
    ),
    (
        "target/dist/etc/viaductd.socket",
        "usr/lib/systemd/system/viaductd.socket",
        0o644,
    ),
    (
        "target/dist/etc/viaduct-kube.service",
        "usr/lib/systemd/system/viaduct-kube.service",
        0o644,
    ),
    (
        "packaging/systemd/80-viaduct.preset",
        "usr/lib/systemd/system-preset/80-viaduct.preset",
        0o644,
    ),
    (
        "packaging/systemd/viaduct.tmpfiles",
        "usr/lib/tmpfiles.d/viaduct.conf",
        0o644,
    ),
    (
        "target/dist/etc/05-viaduct.conflist",
        "usr/share/viaduct/05-viaduct.conflist",
        0o644,
    ),
    ("LICENSE", "usr/share/doc/viaduct/copyright", 0o644),
    ("CHANGELOG.md", "usr/share/doc/viaduct/CHANGELOG.md", 0o644),
    (
        "docs/operations.md",
        "usr/share/doc/viaduct/operations.md",
        0o644,
    ),
];

/// Puts the files of the package `viaduct` below `root`, which must not exist.
pub(super) fn product(arch: Arch, format: Format, root: &Path) -> Result<()> {
    for (from, to, mode) in FILES {
        install(&arch.file(from), &root.join(to), mode)?;
    }
    let bills = arch.dist().join("sbom");
    for entry in fs::read_dir(&bills)? {
        let bill = entry?;
        let to = root.join("usr/share/doc/viaduct/sbom");
        install(&bill.path(), &to.join(bill.file_name()), 0o644)?;
    }
    let plugin = Path::new(format.plugins()).join("viaduct");
    install(&arch.dist().join("cni/viaduct"), &root.join(&plugin), 0o755)?;
    let upstream = Path::new(UPSTREAM_PLUGINS).join("viaduct");
    let netavark = Path::new(NETAVARK_PLUGINS).join("viaduct");
    for name in [&upstream, &netavark] {
        link(root, name, &plugin)?;
    }
    let owned = [plugin, upstream, netavark];
    list(root, "viaduct", &owned)
}

/// Puts the files of the package `viaduct-plugins` below `root`, which must not exist: links under
/// the names of the reference plugins.
pub(super) fn plugins(_: Arch, format: Format, root: &Path) -> Result<()> {
    let plugin = Path::new(format.plugins()).join("viaduct");
    let folders: &[&str] = match format {
        Format::Deb => &[format.plugins(), UPSTREAM_PLUGINS],
        // RPM cannot rename files of other packages: the names are in a directory of their own.
        Format::Rpm => &["usr/libexec/viaduct/cni"],
    };
    let mut owned = Vec::new();
    for folder in folders {
        let own = (format == Format::Rpm).then_some("viaduct");
        for name in PLUGIN_NAMES.into_iter().chain(own) {
            let path = Path::new(folder).join(name);
            link(root, &path, &plugin)?;
            owned.push(path);
        }
    }
    list(root, "viaduct-plugins", &owned)
}

/// Writes the list of the package's plugins, by which the agent recognises them: an uninstall
/// leaves them to the package manager.
fn list(root: &Path, package: &str, owned: &[PathBuf]) -> Result<()> {
    let lines = owned.iter().map(|path| format!("/{}\n", path.display()));
    let path = root.join("usr/share/viaduct/packages").join(package);
    put(&path, lines.collect::<String>().as_bytes(), 0o644)
}

/// Makes the link `path` to `target`, both relative to `root`.
fn link(root: &Path, path: &Path, target: &Path) -> Result<()> {
    let place = root.join(path);
    let folder = path.parent().context("a folder")?;
    fs::create_dir_all(root.join(folder))?;
    // Relative, so that it leads to the same file in every root.
    let up: PathBuf = folder.components().map(|_| "..").collect();
    symlink(up.join(target), &place).with_context(|| format!("cannot make {}", place.display()))
}

fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    put(to, &bytes, mode)
}

/// Writes a file, and the directories above it, which everyone may read.
pub(super) fn put(to: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let folder = to.parent().context("every file lies in a folder")?;
    fs::create_dir_all(folder)?;
    fs::write(to, bytes).with_context(|| format!("cannot write {}", to.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// Returns files and links below `root`, sorted, as absolute paths of the node.
pub(super) fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else {
                found.push(Path::new("/").join(entry.path().strip_prefix(root)?));
            }
        }
    }
    found.sort();
    Ok(found)
}
