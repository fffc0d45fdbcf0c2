//! Files that an installation of Viaduct puts on a node and that outlive an uninstall of its state:
//! network configurations, plugin binaries, the unit, and Docker's networks.
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
use crate::docker::StateFile;

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
    /// The networks and addresses of Docker.
    DockerState,
    /// The same in a form that this agent does not know.
    UnknownDockerState,
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
            Kind::DockerState => {
                "networks of Docker: an agent with this docker-state makes them again"
            }
            Kind::UnknownDockerState => {
                "docker-state, which is damaged or of a later agent: no agent starts with it"
            }
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
    /// `None` if Docker's drivers are not served.
    pub(crate) docker: Option<StateFile>,
}

impl Installation {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            root: PathBuf::from("/"),
            socket: config.socket.clone(),
            docker: config
                .docker
                .as_ref()
                .map(|files| StateFile::new(files.state.clone())),
        }
    }

    /// Finds the files, and removes those that are provably Viaduct's alone if `purge` is set.
    pub(crate) fn report(&self, purge: bool) -> Report {
        let mut report = Report::default();
        for file in self.files() {
            let stays = matches!(
                file.kind,
                Kind::SharedConfiguration | Kind::PackagedPlugin | Kind::UnknownDockerState
            );
            if !purge || stays {
                report.remaining.push(file.to_string());
                continue;
            }
            match self.remove(&file) {
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

    fn remove(&self, file: &InstalledFile) -> io::Result<()> {
        match &self.docker {
            Some(docker) if file.kind == Kind::DockerState => {
                docker.remove()?;
                let folder = docker.path().parent();
                let own = folder.filter(|it| it.file_name() == Some(OsStr::new(PLUGIN)));
                // It stays if it has other files.
                let _removed = own.map(fs::remove_dir);
                Ok(())
            }
            _ => fs::remove_file(&file.path),
        }
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
            .chain(self.docker_state())
            .map(|(kind, path)| InstalledFile { path, kind })
            .collect()
    }

    /// Returns the file with Docker's networks, if there is one.
    fn docker_state(&self) -> Option<(Kind, PathBuf)> {
        let docker = self.docker.as_ref()?;
        if !docker.path().exists() {
            return None;
        }
        let kind = match docker.read() {
            Ok(_) => Kind::DockerState,
            Err(_) => Kind::UnknownDockerState,
        };
        Some((kind, docker.path().to_owned()))
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
mod tests;
