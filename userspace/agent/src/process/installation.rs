//! Files that an installation of Viaduct puts on a node and that outlive an uninstall of its state:
//! network configurations, plugin binaries, and the unit.
//!
//! A file is Viaduct's by its contents, never by its name alone. Files that other software shares
//! are reported and left.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use serde_json::Value;

use crate::config::Config;

/// Directories of network configurations: CNI's default, and those of k3s and RKE2.
const CONFIGURATIONS: [&str; 3] = [
    "etc/cni/net.d",
    "var/lib/rancher/k3s/agent/etc/cni/net.d",
    "var/lib/rancher/rke2/agent/etc/cni/net.d",
];

/// Directories of plugins: CNI's default, Debian's, and those that podman searches for CNI and for
/// netavark.
const PLUGINS: [&str; 9] = [
    "opt/cni/bin",
    "usr/lib/cni",
    "usr/libexec/cni",
    "usr/local/lib/cni",
    "usr/local/libexec/cni",
    "usr/lib/netavark",
    "usr/libexec/netavark",
    "usr/local/lib/netavark",
    "usr/local/libexec/netavark",
];

/// Names under which the plugin may be installed.
const PLUGIN_NAMES: [&str; 8] = [
    PLUGIN,
    "bridge",
    "host-local",
    "portmap",
    "bandwidth",
    "firewall",
    "tuning",
    "loopback",
];

/// The plugin's own name, and its type in a configuration.
const PLUGIN: &str = "viaduct";

/// Directory of units that are no part of a package.
const UNITS: &str = "etc/systemd/system";

/// Names of the units.
const UNIT_NAMES: [&str; 2] = ["viaductd.service", "viaductd.socket"];

/// Directory of lists, one for each installed package, of the plugins that the package manager
/// removes: one absolute path in each line.
const PACKAGES: &str = "usr/share/viaduct/packages";

/// Maximum size in bytes of a file that is read.
const MAX_BYTES: u64 = 8 << 20;

/// A file of the installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InstalledFile {
    path: PathBuf,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A network configuration of which every plugin is `viaduct`.
    Configuration,
    /// A network configuration that other plugins share.
    SharedConfiguration,
    /// The plugin, under one of its names.
    Plugin,
    /// The plugin, as a file of a package.
    PackagedPlugin,
    /// A link that makes systemd start a unit.
    EnabledUnit,
    /// A unit.
    Unit,
}

impl fmt::Display for InstalledFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meaning = match self.kind {
            Kind::Configuration => {
                "network configuration of Viaduct: new pods fail until it is removed"
            }
            Kind::SharedConfiguration => {
                "network configuration that names the plugin viaduct: new pods fail until it is changed"
            }
            Kind::Plugin => "plugin of Viaduct, which does not work without the agent",
            Kind::PackagedPlugin => {
                "plugin of an installed package, which the package manager removes"
            }
            Kind::EnabledUnit => "enabled unit: systemd starts the agent at the next boot",
            Kind::Unit => "unit of the agent",
        };
        write!(f, "{}: {meaning}", self.path.display())
    }
}

/// What an uninstall did to the files of the installation.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Removed files, one line each.
    pub(crate) removed: Vec<String>,
    /// Files that remain, each with the consequence.
    pub(crate) remaining: Vec<String>,
}

/// The files of the installation that belongs to an agent.
#[derive(Clone, Debug)]
pub(crate) struct Installation {
    root: PathBuf,
    /// Configurations with another socket are those of another agent.
    socket: PathBuf,
}

impl Installation {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            root: PathBuf::from("/"),
            socket: config.socket.clone(),
        }
    }

    /// Finds the files, and removes those that are provably Viaduct's alone if `purge` is set.
    pub(crate) fn report(&self, purge: bool) -> Report {
        let mut report = Report::default();
        for file in self.files() {
            let stays = matches!(file.kind, Kind::SharedConfiguration | Kind::PackagedPlugin);
            if !purge || stays {
                report.remaining.push(file.to_string());
                continue;
            }
            match fs::remove_file(&file.path) {
                Ok(()) => report
                    .removed
                    .push(format!("removed {}", file.path.display())),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => report
                    .remaining
                    .push(format!("{file}; cannot remove it: {error}")),
            }
        }
        report
    }

    /// Returns the files in the order in which they are removed: configurations first, so that no
    /// runtime looks for a plugin that is gone.
    fn files(&self) -> Vec<InstalledFile> {
        let configurations = CONFIGURATIONS
            .iter()
            .flat_map(|folder| entries(&self.root.join(folder)))
            .filter_map(|path| Some((self.configuration(&path)?, path)));
        let packaged = self.packaged();
        let plugins = PLUGINS
            .iter()
            .flat_map(|folder| PLUGIN_NAMES.map(|name| self.root.join(folder).join(name)))
            .filter(|path| contains(path, api::DEFAULT_SOCKET))
            .map(|path| {
                if packaged.contains(&path) {
                    (Kind::PackagedPlugin, path)
                } else {
                    (Kind::Plugin, path)
                }
            });
        let units = self.root.join(UNITS);
        let enabled = entries(&units)
            .into_iter()
            .flat_map(|folder| UNIT_NAMES.map(|name| folder.join(name)))
            .filter(|path| path.is_symlink())
            .map(|path| (Kind::EnabledUnit, path));
        let own = UNIT_NAMES
            .iter()
            .map(|name| units.join(name))
            .filter(|path| is_unit(path))
            .map(|path| (Kind::Unit, path));
        configurations
            .chain(enabled)
            .chain(own)
            .chain(plugins)
            .map(|(kind, path)| InstalledFile { path, kind })
            .collect()
    }

    /// Returns the plugins that are files of installed packages.
    fn packaged(&self) -> BTreeSet<PathBuf> {
        let lists = entries(&self.root.join(PACKAGES));
        let texts = lists.iter().filter_map(|list| read(list).ok());
        texts
            .flat_map(|text| {
                let text = String::from_utf8_lossy(&text).into_owned();
                let paths = text.lines().map(|path| path.trim_start_matches('/'));
                paths.map(|path| self.root.join(path)).collect::<Vec<_>>()
            })
            .collect()
    }

    /// Returns the kind of a network configuration; `None` if it does not use this agent.
    fn configuration(&self, path: &Path) -> Option<Kind> {
        let is_configuration = path.extension().is_some_and(|end| {
            ["conflist", "conf", "json"]
                .iter()
                .any(|it| end == OsStr::new(it))
        });
        if !is_configuration {
            return None;
        }
        let config: Value = serde_json::from_slice(&read(path).ok()?).ok()?;
        let plugins = match config.get("plugins").and_then(Value::as_array) {
            Some(plugins) => plugins.iter().collect(),
            // A file for a single plugin.
            None => vec![&config],
        };
        let (own, others): (Vec<&Value>, Vec<&Value>) = plugins
            .into_iter()
            .partition(|plugin| plugin.get("type").is_some_and(|name| name == PLUGIN));
        let is_of_this_agent = |plugin: &&Value| {
            let socket = plugin.get("socket").and_then(Value::as_str);
            Path::new(socket.unwrap_or(api::DEFAULT_SOCKET)) == self.socket
        };
        match (own.iter().any(is_of_this_agent), others.is_empty()) {
            (false, _) => None,
            (true, true) => Some(Kind::Configuration),
            (true, false) => Some(Kind::SharedConfiguration),
        }
    }
}

/// Returns the entries of a directory, sorted; none if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Returns whether the file is a unit that runs the agent, or listens for it.
fn is_unit(path: &Path) -> bool {
    let Ok(bytes) = read(path) else { return false };
    let text = String::from_utf8_lossy(&bytes);
    text.lines().any(|line| {
        let (key, value) = line.split_once('=').unwrap_or_default();
        match key.trim() {
            "ExecStart" => {
                let program = value.split_whitespace().next().unwrap_or_default();
                Path::new(program).file_name() == Some(OsStr::new("viaductd"))
            }
            "ListenStream" => value.contains(PLUGIN),
            _ => false,
        }
    })
}

fn contains(path: &Path, text: &str) -> bool {
    read(path).is_ok_and(|bytes| {
        bytes
            .windows(text.len())
            .any(|window| window == text.as_bytes())
    })
}

/// Reads a regular file of at most [`MAX_BYTES`] bytes: a FIFO or a device would block the agent.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let found = fs::metadata(path)?;
    if found.is_file() && found.len() <= MAX_BYTES {
        fs::read(path)
    } else {
        Err(ErrorKind::InvalidInput.into())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Node(tempfile::TempDir);

    impl Node {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn link(&self, path: &str, target: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(target, path).unwrap();
        }

        fn report(&self, purge: bool) -> Report {
            let installation = Installation {
                root: self.0.path().to_owned(),
                socket: PathBuf::from(api::DEFAULT_SOCKET),
            };
            let relative = |lines: Vec<String>| {
                let root = format!("{}/", self.0.path().display());
                lines.iter().map(|line| line.replace(&root, "")).collect()
            };
            let report = installation.report(purge);
            Report {
                removed: relative(report.removed),
                remaining: relative(report.remaining),
            }
        }
    }

    /// A node with an installation, and with files of other software under similar names.
    fn node() -> Node {
        let node = Node::new();
        let plugin = "\u{7f}ELF…/run/viaduct/viaduct.sock…";
        for (path, text) in [
            (
                "etc/cni/net.d/05-viaduct.conflist",
                include_str!("../../../../xtask/assets/05-viaduct.conflist"),
            ),
            (
                "etc/cni/net.d/10-shared.conflist",
                r#"{"plugins": [{"type": "viaduct"}, {"type": "sbr"}]}"#,
            ),
            ("etc/cni/net.d/20-single.conf", r#"{"type": "viaduct"}"#),
            (
                "etc/cni/net.d/30-other-agent.conflist",
                r#"{"plugins": [{"type": "viaduct", "socket": "/run/other/v.sock"}]}"#,
            ),
            (
                "etc/cni/net.d/40-viaduct.conflist",
                r#"{"plugins": [{"type": "bridge"}]}"#,
            ),
            ("etc/cni/net.d/50-broken.conflist", "{"),
            (
                "etc/cni/net.d/60-viaduct.conflist.bak",
                r#"{"type": "viaduct"}"#,
            ),
            ("opt/cni/bin/viaduct", plugin),
            ("opt/cni/bin/portmap", plugin),
            ("opt/cni/bin/bridge", "the reference's"),
            ("opt/cni/bin/other", plugin),
            (
                "etc/systemd/system/viaductd.service",
                include_str!("../../../../xtask/assets/viaductd.service"),
            ),
            (
                "etc/systemd/system/viaductd.socket",
                "[Socket]\nExecStartPre=/bin/true\n",
            ),
            ("usr/bin/viaductd", plugin),
        ] {
            node.put(path, text);
        }
        node.link("opt/cni/bin/loopback", "viaduct");
        let wanted = "etc/systemd/system/multi-user.target.wants/viaductd.service";
        node.link(wanted, "/etc/systemd/system/viaductd.service");
        node
    }

    #[test]
    fn an_uninstall_reports_installed_files_with_their_consequence() {
        let report = node().report(false);
        assert!(report.removed.is_empty());
        insta::assert_snapshot!(report.remaining.join("\n"), @r"
        etc/cni/net.d/05-viaduct.conflist: network configuration of Viaduct: new pods fail until it is removed
        etc/cni/net.d/10-shared.conflist: network configuration that names the plugin viaduct: new pods fail until it is changed
        etc/cni/net.d/20-single.conf: network configuration of Viaduct: new pods fail until it is removed
        etc/systemd/system/multi-user.target.wants/viaductd.service: enabled unit: systemd starts the agent at the next boot
        etc/systemd/system/viaductd.service: unit of the agent
        opt/cni/bin/viaduct: plugin of Viaduct, which does not work without the agent
        opt/cni/bin/portmap: plugin of Viaduct, which does not work without the agent
        opt/cni/bin/loopback: plugin of Viaduct, which does not work without the agent
        ");
    }

    #[test]
    fn a_purge_removes_installed_files_and_nothing_of_other_software() {
        let node = node();
        let report = node.report(true);
        assert_eq!(report.removed.len(), 7, "{report:?}");
        assert_eq!(report.remaining.len(), 1, "{report:?}");
        assert!(report.remaining[0].starts_with("etc/cni/net.d/10-shared.conflist"));
        let left = |folder: &str| -> Vec<String> {
            let paths = entries(&node.0.path().join(folder));
            let names = paths.iter().filter_map(|path| path.file_name()?.to_str());
            names.map(str::to_owned).collect()
        };
        assert_eq!(
            left("etc/cni/net.d"),
            [
                "10-shared.conflist",
                "30-other-agent.conflist",
                "40-viaduct.conflist",
                "50-broken.conflist",
                "60-viaduct.conflist.bak",
            ]
        );
        assert_eq!(left("opt/cni/bin"), ["bridge", "other"]);
        assert_eq!(left("usr/bin"), ["viaductd"]);
        assert_eq!(
            left("etc/systemd/system"),
            ["multi-user.target.wants", "viaductd.socket"]
        );
        let again = node.report(true);
        assert!(again.removed.is_empty() && again.remaining.len() == 1);
    }

    #[test]
    fn a_purge_leaves_the_plugins_of_packages_to_the_package_manager() {
        let node = node();
        let list = "/opt/cni/bin/viaduct\n/opt/cni/bin/absent\n";
        node.put("usr/share/viaduct/packages/viaduct", list);
        let report = node.report(true);
        assert_eq!(report.removed.len(), 6, "{report:?}");
        insta::assert_snapshot!(report.remaining.join("\n"), @r"
        etc/cni/net.d/10-shared.conflist: network configuration that names the plugin viaduct: new pods fail until it is changed
        opt/cni/bin/viaduct: plugin of an installed package, which the package manager removes
        ");
    }
}
