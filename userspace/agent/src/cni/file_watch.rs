//! Watches the files of the CNI installation: the order of configurations, and missing plugins.
//!
//! Runtimes read these files, not the agent. The agent reports what keeps an ADD from reaching it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cni::{ConfigurationFile, FileKind, Installation, InstallationFault};
use engine::Handle;
use planner::NodeCondition;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use crate::clock;

/// Interval between two reads. The files change by hand.
const INTERVAL: Duration = Duration::from_secs(5);

/// Directory of network configurations, unless another one is configured.
const CONFIGURATIONS: &str = "/etc/cni/net.d";

/// Directories of plugins, unless one is configured: CNI's, Debian's and Fedora's.
const PLUGINS: [&str; 3] = ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"];

/// Directories of the installation, as configured; `None` for the usual ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Directories {
    pub(crate) configurations: Option<PathBuf>,
    pub(crate) plugins: Option<PathBuf>,
}

impl Directories {
    /// Reads the files. A directory that cannot be read has none.
    fn read(&self) -> Installation {
        let configured = self.configurations.as_deref();
        let directory = configured.unwrap_or(Path::new(CONFIGURATIONS));
        let is_wanted = |name: &str| FileKind::of_name(name).is_some();
        let files = ipam::small_files::read_directory(directory, is_wanted)
            .unwrap_or_default()
            .into_iter()
            .map(|(name, text)| ConfigurationFile { name, text });
        let plugins = match &self.plugins {
            Some(directory) => vec![directory.clone()],
            None => PLUGINS.map(PathBuf::from).into(),
        };
        Installation::check(files.collect(), |kind| {
            plugins
                .iter()
                .any(|directory| directory.join(kind).exists())
        })
    }

    /// Returns what the agent reports. Without a configuration of Viaduct's there is nothing to
    /// report, unless the directory is configured: runtimes may read another one.
    fn conditions(&self, found: &Installation) -> Vec<NodeCondition> {
        let is_reported = |fault: &&InstallationFault| {
            **fault != InstallationFault::NotConfigured || self.configurations.is_some()
        };
        let faults = found.faults.iter().filter(is_reported);
        faults.map(condition).collect()
    }
}

fn condition(fault: &InstallationFault) -> NodeCondition {
    let why = fault.to_string();
    match fault {
        InstallationFault::Shadowed { .. } => NodeCondition::ConflistShadowed { why },
        InstallationFault::NotConfigured | InstallationFault::Invalid { .. } => {
            NodeCondition::ConflistUnusable { why }
        }
        InstallationFault::PluginMissing { network, .. } => NodeCondition::PluginMissing {
            network: network.clone(),
            why,
        },
    }
}

/// Starts to watch the files; must be called inside a tokio runtime, and ends with it.
pub(crate) fn watch(directories: Directories, handle: Handle) {
    tokio::spawn(follow(directories, handle));
}

async fn follow(directories: Directories, handle: Handle) {
    let mut tick = interval(INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = Installation::default();
    loop {
        tick.tick().await;
        let reader = directories.clone();
        let Ok(found) = spawn_blocking(move || reader.read()).await else {
            continue;
        };
        if found.uses_default_network {
            handle.want_default_network(clock::now()).await;
        }
        if found == last {
            continue;
        }
        // The next reconciliation emits the events.
        if handle
            .set_installation(directories.conditions(&found))
            .await
            .is_ok()
        {
            handle.reconcile(clock::now());
            last = found;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &Path, name: &str, plugins: &str) {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"pods","plugins":[{plugins}]}}"#);
        std::fs::write(directory.join(name), text).unwrap();
    }

    #[test]
    fn an_installation_without_a_configuration_of_viaducts_is_reported_where_one_is_expected() {
        let directory = tempfile::tempdir().unwrap();
        write(
            directory.path(),
            "87-podman.conflist",
            r#"{"type":"bridge"}"#,
        );
        let mut directories = Directories {
            configurations: Some(directory.path().to_owned()),
            plugins: Some(directory.path().to_owned()),
        };
        let found = directories.read();
        let words = |found: &[NodeCondition]| -> Vec<&str> {
            found.iter().map(|one| one.reason().word()).collect()
        };
        assert_eq!(
            words(&directories.conditions(&found)),
            ["conflist-unusable"]
        );
        directories.configurations = None;
        assert!(directories.conditions(&found).is_empty());
        directories.configurations = Some(directory.path().to_owned());
        write(
            directory.path(),
            "90-viaduct.conflist",
            r#"{"type":"viaduct"}"#,
        );
        let found = directories.conditions(&directories.read());
        assert_eq!(words(&found), ["conflist-shadowed", "plugin-missing"]);
        assert!(found[1].prevents_add(&"pods".parse().unwrap()));
        std::fs::remove_file(directory.path().join("87-podman.conflist")).unwrap();
        std::fs::write(directory.path().join("viaduct"), "").unwrap();
        assert!(directories.conditions(&directories.read()).is_empty());
    }
}
