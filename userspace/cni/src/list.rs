//! Network configurations as a runtime has them: lists of plugins in files, and what each plugin is handed.
//!
//! The other side of the protocol, for delegates and for people: the rules are libcni's. Refuses to know where files are
//! and how a plugin is executed.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use crate::{Error, Version, json as text};

/// Types of `ipam` whose results have the routes of their configuration.
const GIVES_ROUTES: [&str; 3] = ["host-local", "static", "whereabouts"];

/// A network configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkList {
    /// `name`.
    pub name: String,
    /// The version that every plugin is spoken to in.
    pub version: Version,
    /// Whether CHECK is not to be asked for.
    pub disable_check: bool,
    /// Whether GC is not to be asked for.
    pub disable_gc: bool,
    /// The plugins, in the order of an ADD.
    pub plugins: Vec<PluginConfig>,
}

/// One plugin of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginConfig {
    /// `type`: the name of its program.
    pub kind: String,
    /// The capabilities that it declares.
    capabilities: BTreeSet<String>,
    config: Map<String, Value>,
}

/// Whether a file is a list or the configuration of one plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// `.conflist`.
    List,
    /// `.conf` and `.json`.
    Single,
}

impl FileKind {
    /// By the end of a file's name; `None` for files that are no configuration.
    pub fn of_name(name: &str) -> Option<Self> {
        let (_, end) = name.rsplit_once('.')?;
        match end {
            "conflist" => Some(Self::List),
            "conf" | "json" => Some(Self::Single),
            _ => None,
        }
    }
}

impl NetworkList {
    /// Reads a configuration that stands alone. A single plugin is a list of one.
    pub fn parse(kind: FileKind, config: &str) -> Result<Self, Error> {
        Self::parse_beside(kind, config, |_| Ok(Vec::new()))
    }

    /// Reads a configuration that may have plugins beside it: `fragments` gives their configurations by the network's name,
    /// and they come behind those of the list. It is asked for a list alone, and not where `loadOnlyInlinedPlugins` says
    /// so (behaviour S17).
    pub fn parse_beside(
        kind: FileKind,
        config: &str,
        fragments: impl FnOnce(&str) -> Result<Vec<String>, Error>,
    ) -> Result<Self, Error> {
        let parsed: Value = serde_json::from_str(config)
            .map_err(|error| Error::decode(format!("network configuration: {error}")))?;
        let Value::Object(map) = parsed else {
            return Err(Error::decode("the network configuration is not an object"));
        };
        let name = string(&map, "name")?;
        let alone = kind == FileKind::Single || flag(&map, "loadOnlyInlinedPlugins")?;
        let fragments = if alone { Vec::new() } else { fragments(&name)? };
        let plugins = match (kind, map.get("plugins")) {
            (FileKind::Single, None) => vec![PluginConfig::read(map.clone())?],
            (FileKind::List, None) if !fragments.is_empty() => beside(&fragments)?,
            (FileKind::Single, Some(_)) | (FileKind::List, _) => {
                let mut plugins = plugins(&map)?;
                plugins.extend(beside(&fragments)?);
                plugins
            }
        };
        Ok(Self {
            name,
            version: version(&map)?,
            disable_check: flag(&map, "disableCheck")?,
            disable_gc: flag(&map, "disableGC")?,
            plugins,
        })
    }

    /// With these in `args.cni` of every plugin.
    #[must_use]
    pub fn with_args(mut self, args: &Map<String, Value>) -> Self {
        if args.is_empty() {
            return self;
        }
        for plugin in &mut self.plugins {
            let own = plugin.config.entry("args").or_insert_with(|| json!({}));
            if !own["cni"].is_object() {
                *own = json!({ "cni": {} });
            }
            for (key, value) in args {
                own["cni"][key] = value.clone();
            }
        }
        self
    }

    /// With default routes by these gateways, one for each family at most, instead of what the list itself says of them.
    /// An `ipam` gives them: it must be one that gives the routes that its configuration has.
    pub fn with_default_routes(mut self, gateways: &[IpAddr]) -> Result<Self, Error> {
        if gateways.is_empty() {
            return Ok(self);
        }
        let refused = || Error::unsupported_field("default-route", &self.name);
        let mut giving = self
            .plugins
            .iter_mut()
            .filter_map(|plugin| plugin.config.get_mut("ipam"))
            .filter(|ipam| {
                let kind = ipam["type"].as_str().unwrap_or_default();
                GIVES_ROUTES.contains(&kind)
            });
        let Some(Value::Object(ipam)) = giving.next() else {
            return Err(
                refused().with_details("no ipam of the network gives routes that it is told")
            );
        };
        let routes = ipam.get("routes").and_then(Value::as_array);
        let kept = routes.into_iter().flatten().filter(|route| {
            !["0.0.0.0/0", "::/0"]
                .map(Some)
                .contains(&route["dst"].as_str())
        });
        let default = gateways.iter().map(|gateway| {
            let dst = if gateway.is_ipv4() {
                "0.0.0.0/0"
            } else {
                "::/0"
            };
            json!({ "dst": dst, "gw": gateway.to_string() })
        });
        let routes = kept.cloned().chain(default).collect();
        ipam.insert("routes".to_owned(), Value::Array(routes));
        Ok(self)
    }

    /// What a plugin of the list is handed: its own configuration with the list's name and version, the result of the one
    /// before, and of `capabilities` those that it declares (behaviour S17).
    pub fn config_for(
        &self,
        plugin: &PluginConfig,
        prev_result: Option<&Value>,
        capabilities: &Map<String, Value>,
    ) -> String {
        let mut config = plugin.config.clone();
        config.insert("name".to_owned(), json!(self.name));
        config.insert("cniVersion".to_owned(), json!(self.version.as_str()));
        if let Some(result) = prev_result {
            config.insert("prevResult".to_owned(), result.clone());
        }
        let handed: Map<String, Value> = capabilities
            .iter()
            .filter(|(name, _)| plugin.capabilities.contains(*name))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        if !handed.is_empty() {
            config.insert("runtimeConfig".to_owned(), Value::Object(handed));
        }
        text::print(&config)
    }

    /// What a plugin is handed for GC: the attachments that are still wanted, by both keys that there have been.
    pub fn config_for_gc(&self, plugin: &PluginConfig, valid: &[Value], force: bool) -> String {
        let mut plugin = plugin.clone();
        for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
            plugin.config.insert(key.to_owned(), json!(valid));
        }
        if force {
            plugin.config.insert("forceGC".to_owned(), json!(true));
        }
        self.config_for(&plugin, None, &Map::new())
    }

    /// The list in its own text, as the cache keeps it.
    pub fn to_json(&self) -> String {
        let plugins: Vec<&Map<String, Value>> =
            self.plugins.iter().map(|plugin| &plugin.config).collect();
        text::print(&json!({
            "cniVersion": self.version.as_str(),
            "name": self.name,
            "disableCheck": self.disable_check,
            "disableGC": self.disable_gc,
            "plugins": plugins,
        }))
    }
}

impl PluginConfig {
    fn read(config: Map<String, Value>) -> Result<Self, Error> {
        let kind = string(&config, "type")?;
        // It becomes a file's name in folders of programs.
        if kind.contains('/') {
            return Err(Error::invalid_config(format!(
                "invalid plugin type {kind:?}"
            )));
        }
        let capabilities = config.get("capabilities").and_then(Value::as_object);
        let declared = capabilities
            .into_iter()
            .flatten()
            .filter(|(_, on)| on.as_bool() == Some(true));
        Ok(Self {
            kind,
            capabilities: declared.map(|(name, _)| name.clone()).collect(),
            config,
        })
    }
}

fn plugins(map: &Map<String, Value>) -> Result<Vec<PluginConfig>, Error> {
    let list = map.get("plugins").and_then(Value::as_array);
    let list = list.filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| Error::invalid_config("no plugins in the list"))?;
    list.iter()
        .map(|plugin| {
            let config = plugin.as_object().cloned();
            PluginConfig::read(config.ok_or_else(|| Error::decode("plugins: expected objects"))?)
        })
        .collect()
}

fn beside(fragments: &[String]) -> Result<Vec<PluginConfig>, Error> {
    fragments
        .iter()
        .map(|fragment| {
            let config = serde_json::from_str(fragment)
                .map_err(|error| Error::decode(format!("plugin configuration: {error}")));
            PluginConfig::read(config?)
        })
        .collect()
}

/// The highest of `cniVersions` that we speak, or else `cniVersion`.
fn version(map: &Map<String, Value>) -> Result<Version, Error> {
    let list = map.get("cniVersions").and_then(Value::as_array);
    let known: Option<Version> = list
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .filter_map(|text| text.parse().ok())
        .max();
    match (known, map.get("cniVersion").and_then(Value::as_str)) {
        (Some(version), _) => Ok(version),
        (None, Some(text)) if !text.is_empty() => text.parse(),
        (None, _) => Ok(Version::V0_1_0),
    }
}

fn string(map: &Map<String, Value>, key: &str) -> Result<String, Error> {
    let text = map.get(key).and_then(Value::as_str);
    text.filter(|text| !text.is_empty())
        .map(str::to_owned)
        .ok_or_else(|| Error::invalid_config(format!("missing {key}")))
}

/// A boolean, or a text that says one (behaviour B0.2).
fn flag(map: &Map<String, Value>, key: &str) -> Result<bool, Error> {
    match map.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(on)) => Ok(*on),
        Some(Value::String(text)) => match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "t" => Ok(true),
            "false" | "0" | "f" | "" => Ok(false),
            other => Err(Error::invalid_config(format!(
                "{key}: {other:?} is no boolean"
            ))),
        },
        Some(_) => Err(Error::decode(format!("{key}: expected a boolean"))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIST: &str = r#"{
        "cniVersion": "0.4.0", "cniVersions": ["0.3.1", "1.0.0", "9.0.0"], "name": "net", "disableCheck": "true",
        "plugins": [
            {"type": "bridge", "ipam": {"type": "host-local"}},
            {"type": "portmap", "capabilities": {"portMappings": true, "bandwidth": false}, "x": null}
        ]
    }"#;

    /// behaviour S17
    #[test]
    fn a_list_is_read_with_what_is_meant_for_the_runtime() {
        let list = NetworkList::parse(FileKind::List, LIST).unwrap();
        assert_eq!((list.name.as_str(), list.version), ("net", Version::V1_0_0));
        assert!(list.disable_check && !list.disable_gc);
        let again = NetworkList::parse(FileKind::List, &list.to_json()).unwrap();
        assert_eq!(again, list);
    }

    #[test]
    fn a_plugin_is_handed_its_own_settings_and_the_capabilities_that_it_declares() {
        let list = NetworkList::parse(FileKind::List, LIST).unwrap();
        let result = json!({ "cniVersion": "1.0.0" });
        let capabilities = json!({ "portMappings": [1], "bandwidth": {}, "mac": "x" });
        let capabilities = capabilities.as_object().unwrap();
        let handed = |index: usize, result| -> Value {
            let config = list.config_for(&list.plugins[index], result, capabilities);
            serde_json::from_str(&config).unwrap()
        };
        let first = json!({ "cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": { "type": "host-local" } });
        assert_eq!(handed(0, None), first);
        let second = handed(1, Some(&result));
        assert_eq!(second["runtimeConfig"], json!({ "portMappings": [1] }));
        assert_eq!(second["prevResult"], result);
        assert!(second["x"].is_null() && second.get("capabilities").is_some());
    }

    /// behaviour C14
    #[test]
    fn a_pods_wishes_become_arguments_and_routes_of_the_list() {
        let list = NetworkList::parse(FileKind::List, LIST).unwrap();
        let args = json!({ "a": 1 });
        let adapted = list.clone().with_args(args.as_object().unwrap());
        let gateways = ["10.1.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        let adapted = adapted.with_default_routes(&gateways).unwrap();
        let config = adapted.config_for(&adapted.plugins[0], None, &Map::new());
        let config: Value = serde_json::from_str(&config).unwrap();
        assert_eq!(config["args"]["cni"]["a"], 1);
        let routes =
            json!([{ "dst": "0.0.0.0/0", "gw": "10.1.0.1" }, { "dst": "::/0", "gw": "fd00::1" }]);
        assert_eq!(config["ipam"]["routes"], routes);
        assert_eq!(list.clone().with_default_routes(&[]).unwrap(), list);
        let none = r#"{"name":"n","type":"macvlan","ipam":{"type":"dhcp"}}"#;
        let none = NetworkList::parse(FileKind::Single, none).unwrap();
        assert_eq!(none.with_default_routes(&gateways).unwrap_err().code, 2);
    }

    /// behaviour S12
    #[test]
    fn gc_hands_the_list_of_attachments_by_both_keys() {
        let list = NetworkList::parse(FileKind::List, LIST).unwrap();
        let valid = [json!({ "containerID": "a", "ifname": "eth0" })];
        let config = list.config_for_gc(&list.plugins[0], &valid, true);
        let config: Value = serde_json::from_str(&config).unwrap();
        assert_eq!(config["cni.dev/valid-attachments"], json!(valid));
        assert_eq!(config["cni.dev/attachments"], json!(valid));
        assert_eq!(config["forceGC"], true);
    }

    #[test]
    fn a_single_plugin_is_a_list_of_one_and_nonsense_is_refused() {
        let single = r#"{"name":"n","type":"macvlan","cniVersion":"0.3.1"}"#;
        let list = NetworkList::parse(FileKind::Single, single).unwrap();
        assert_eq!(list.plugins[0].kind, "macvlan");
        for wrong in [
            r#"{"name":"n"}"#,
            r#"{"type":"x"}"#,
            r#"{"name":"n","type":"../../bin/sh"}"#,
            r#"{"name":"n","plugins":[]}"#,
            r#"{"name":"n","plugins":[7]}"#,
            "[]",
            "{",
        ] {
            let error = NetworkList::parse(FileKind::Single, wrong).unwrap_err();
            assert!(matches!(error.code, 6 | 7), "{wrong}: {error:?}");
        }
        assert_eq!(FileKind::of_name("10-a.conflist"), Some(FileKind::List));
        assert_eq!(FileKind::of_name("a.json"), Some(FileKind::Single));
        assert_eq!(FileKind::of_name("README"), None);
    }

    /// behaviour S17: as libcni appends them.
    #[test]
    fn plugins_beside_a_list_come_behind_its_own_unless_it_says_no() {
        let beside = |list: &str| {
            let fragments = |name: &str| {
                assert_eq!(name, "n");
                Ok(vec![
                    r#"{"type": "x"}"#.to_owned(),
                    r#"{"type": "y"}"#.to_owned(),
                ])
            };
            let list = NetworkList::parse_beside(FileKind::List, list, fragments);
            list.map(|list| {
                list.plugins
                    .into_iter()
                    .map(|plugin| plugin.kind)
                    .collect::<String>()
            })
        };
        let own = r#"{"name": "n", "plugins": [{"type": "a"}]}"#;
        assert_eq!(beside(own).unwrap(), "axy");
        assert_eq!(beside(r#"{"name": "n"}"#).unwrap(), "xy");
        let alone = own.replace("\"n\"", "\"n\", \"loadOnlyInlinedPlugins\": \"true\"");
        assert_eq!(beside(&alone).unwrap(), "a");
        for wrong in [
            r#"{"name": "n", "plugins": []}"#,
            r#"{"name": "n", "loadOnlyInlinedPlugins": true}"#,
        ] {
            assert_eq!(beside(wrong).unwrap_err().code, 7, "{wrong}");
        }
        let broken = NetworkList::parse_beside(FileKind::List, own, |_| Ok(vec!["{}".to_owned()]));
        assert_eq!(broken.unwrap_err().code, 7);
        let single =
            NetworkList::parse_beside(FileKind::Single, r#"{"name":"n","type":"a"}"#, |_| {
                Err(Error::io("a single plugin has none beside it"))
            });
        assert_eq!(single.unwrap().plugins.len(), 1);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(config: String) {
            let _ = NetworkList::parse(FileKind::List, &config);
            let _ = NetworkList::parse(FileKind::Single, &config);
        }
    }
}
