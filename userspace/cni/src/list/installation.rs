//! Checks of an installation: which configuration runtimes use, and whether its plugins are there.
//!
//! containerd, CRI-O and libcni read the files of the configuration directory in the order of their
//! names. Runtimes with one network per pod use the first valid one. Reading directories is left to
//! the caller.

use std::collections::BTreeMap;
use std::fmt;

use crate::{FileKind, NetworkList, Plugin};

/// Capabilities by which runtimes pass published ports and bandwidth limits. They pass nothing to a
/// plugin that does not declare them.
const CAPABILITIES: [&str; 2] = ["portMappings", "bandwidth"];

/// A file of the configuration directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigurationFile {
    /// Name without the directory.
    pub name: String,
    /// Content.
    pub text: String,
}

/// A fault of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstallationFault {
    /// No configuration names the plugin `viaduct`.
    NotConfigured,
    /// Another configuration comes before that of the default network.
    Shadowed {
        /// File name of the default network's configuration.
        ours: String,
        /// File name of the first valid configuration.
        first: String,
    },
    /// A configuration with the plugin `viaduct` needs a plugin that is not installed.
    PluginMissing {
        /// Name of the network.
        network: String,
        /// File name of the configuration.
        file: String,
        /// Type of the plugin.
        plugin: String,
    },
    /// A file that names the plugin `viaduct` is no valid configuration.
    Invalid {
        /// File name.
        file: String,
        /// The error.
        why: String,
    },
}

/// What the files of an installation say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installation {
    /// Whether a configuration is for the agent's default network.
    pub uses_default_network: bool,
    /// Whether a configuration names the plugin `viaduct`.
    pub is_configured: bool,
    /// Capabilities that no plugin of a configuration with the plugin `viaduct` declares, by file
    /// name: published ports and limits of its pods have no effect.
    pub undeclared: BTreeMap<String, Vec<&'static str>>,
    /// Faults, in the order of the files.
    pub faults: Vec<InstallationFault>,
}

impl Installation {
    /// Checks the files of a configuration directory, in any order. `is_installed` returns whether
    /// a directory of plugins has the program.
    pub fn check(
        mut files: Vec<ConfigurationFile>,
        mut is_installed: impl FnMut(&str) -> bool,
    ) -> Self {
        files.sort_by(|a, b| a.name.cmp(&b.name));
        let mut found = Self::default();
        let mut first: Option<String> = None;
        for file in files {
            let Some(kind) = FileKind::of_name(&file.name) else {
                continue;
            };
            let list = match NetworkList::parse(kind, &file.text) {
                Ok(list) => list,
                Err(error) => {
                    found.add_invalid(&file, &error.to_string());
                    continue;
                }
            };
            found.add(&file.name, &list, first.as_deref(), &mut is_installed);
            first.get_or_insert(file.name);
        }
        if !found.is_configured {
            found.faults.push(InstallationFault::NotConfigured);
        }
        found
    }

    fn add(
        &mut self,
        file: &str,
        list: &NetworkList,
        first: Option<&str>,
        is_installed: &mut impl FnMut(&str) -> bool,
    ) {
        let own = Plugin::Viaduct.name();
        let Some(plugin) = list.plugins.iter().find(|plugin| plugin.kind == own) else {
            return;
        };
        self.is_configured = true;
        let is_declared = |capability: &&str| {
            let mut plugins = list.plugins.iter();
            plugins.any(|plugin| plugin.capabilities.contains(*capability))
        };
        let undeclared: Vec<&str> = CAPABILITIES
            .into_iter()
            .filter(|capability| !is_declared(capability))
            .collect();
        if !undeclared.is_empty() {
            self.undeclared.insert(file.to_owned(), undeclared);
        }
        // Networks with their own IPAM are chosen by name.
        if !plugin.has("ipam") {
            let is_first_of_ours = !self.uses_default_network;
            self.uses_default_network = true;
            if let Some(first) = first.filter(|_| is_first_of_ours) {
                self.faults.push(InstallationFault::Shadowed {
                    ours: file.to_owned(),
                    first: first.to_owned(),
                });
            }
        }
        let missing = list
            .plugins
            .iter()
            .map(|plugin| plugin.kind.as_str())
            .filter(|kind| !is_installed(kind));
        let faults = missing.map(|kind| InstallationFault::PluginMissing {
            network: list.name.clone(),
            file: file.to_owned(),
            plugin: kind.to_owned(),
        });
        self.faults.extend(faults);
    }

    /// Adds an invalid file if it would be ours: other files are of other software.
    fn add_invalid(&mut self, file: &ConfigurationFile, why: &str) {
        if file.text.contains("\"viaduct\"") {
            self.faults.push(InstallationFault::Invalid {
                file: file.name.clone(),
                why: why.to_owned(),
            });
        }
    }
}

impl fmt::Display for InstallationFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotConfigured => {
                f.write_str("no configuration names the plugin viaduct: runtimes do not use it")
            }
            Self::Shadowed { ours, first } => write!(
                f,
                "{first} comes before {ours}: runtimes that use the first configuration do not use Viaduct"
            ),
            Self::PluginMissing {
                network,
                file,
                plugin,
            } => write!(
                f,
                "network {network} of {file} needs the plugin {plugin}, which is not installed: its ADDs fail"
            ),
            Self::Invalid { file, why } => write!(f, "runtimes skip {file}: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, network: &str, plugins: &[&str]) -> ConfigurationFile {
        let plugins: Vec<_> = plugins
            .iter()
            .map(|kind| match kind.strip_suffix('!') {
                Some(kind) => serde_json::json!({ "type": kind, "ipam": { "type": "host-local" } }),
                None => serde_json::json!({ "type": kind }),
            })
            .collect();
        let list = serde_json::json!({
            "cniVersion": "1.0.0", "name": network, "plugins": plugins,
        });
        ConfigurationFile {
            name: name.to_owned(),
            text: list.to_string(),
        }
    }

    fn faults(files: Vec<ConfigurationFile>) -> Vec<String> {
        let installation = Installation::check(files, |kind| kind != "portmap");
        installation
            .faults
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn a_conflist_before_that_of_the_default_network_shadows_it() {
        let ours = || file("10-viaduct.conflist", "pods", &["viaduct"]);
        let podman = |name: &str| file(name, "podman", &["bridge!"]);
        assert_eq!(faults(vec![podman("87-podman.conflist"), ours()]), [""; 0]);
        assert_eq!(
            faults(vec![podman("05-podman.conflist"), ours()]),
            [
                "05-podman.conflist comes before 10-viaduct.conflist: runtimes that use the first configuration do not use Viaduct"
            ]
        );
        let broken = ConfigurationFile {
            name: "00-broken.conflist".to_owned(),
            text: "{".to_owned(),
        };
        assert_eq!(faults(vec![broken, ours()]), [""; 0], "runtimes skip it");
    }

    #[test]
    fn conflists_with_their_own_ipam_are_chosen_by_name_and_not_shadowed() {
        let named = file("90-mine.conflist", "mine", &["viaduct!"]);
        let podman = file("87-podman.conflist", "podman", &["bridge!"]);
        let found = Installation::check(vec![named, podman], |_| true);
        assert!(found.is_configured && !found.uses_default_network);
        assert_eq!(found.faults, []);
    }

    #[test]
    fn capabilities_that_no_plugin_of_a_conflist_declares_are_listed() {
        let list = |capabilities: serde_json::Value| ConfigurationFile {
            name: "10-viaduct.conflist".to_owned(),
            text: serde_json::json!({
                "cniVersion": "1.0.0", "name": "pods",
                "plugins": [
                    { "type": "viaduct", "capabilities": capabilities },
                    { "type": "portmap", "capabilities": { "portMappings": true } },
                ],
            })
            .to_string(),
        };
        let undeclared = |capabilities| {
            let found = Installation::check(vec![list(capabilities)], |_| true);
            found.undeclared.into_values().flatten().collect::<Vec<_>>()
        };
        assert_eq!(undeclared(serde_json::json!({})), ["bandwidth"]);
        assert_eq!(
            undeclared(serde_json::json!({ "bandwidth": true })),
            [""; 0]
        );
        let bridge = file("10-podman.conflist", "podman", &["bridge!"]);
        assert!(
            Installation::check(vec![bridge], |_| true)
                .undeclared
                .is_empty()
        );
    }

    #[test]
    fn missing_plugins_and_invalid_files_of_viaducts_conflists_are_faults() {
        let ours = file("10-viaduct.conflist", "pods", &["viaduct", "portmap"]);
        let other = file("20-other.conflist", "other", &["bridge!", "portmap"]);
        assert_eq!(
            faults(vec![ours, other]),
            [
                "network pods of 10-viaduct.conflist needs the plugin portmap, which is not installed: its ADDs fail"
            ]
        );
        let mut broken = file("10-viaduct.conflist", "pods", &["viaduct"]);
        broken.text.push('}');
        let found = faults(vec![broken]);
        assert!(
            found[0].starts_with("runtimes skip 10-viaduct.conflist: "),
            "{found:?}"
        );
        assert_eq!(found[1], InstallationFault::NotConfigured.to_string());
        assert_eq!(faults(Vec::new()).len(), 1);
    }
}
