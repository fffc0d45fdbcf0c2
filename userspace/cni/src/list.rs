//! Network configuration lists, and the configuration that each plugin of a list receives.
//!
//! This is the runtime's side of the protocol, for delegates and for operators; the rules are
//! libcni's. Reading files and executing plugins is left to the caller.

pub(crate) mod cache;
pub(crate) mod delegates;
pub(crate) mod installation;
pub(crate) mod selection;

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use crate::{Error, Version, json as text};

/// Types of `ipam` whose results repeat the routes of their configuration.
const GIVES_ROUTES: [&str; 3] = ["host-local", "static", "whereabouts"];

/// A network configuration list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkList {
    /// `name`: the network's name.
    pub name: String,
    /// The protocol version of all requests to the list's plugins.
    pub version: Version,
    /// `disableCheck`: CHECK is not executed for this list.
    pub disable_check: bool,
    /// `disableGC`: GC is not executed for this list.
    pub disable_gc: bool,
    /// The plugins, in the order of an ADD; DEL runs them in reverse.
    pub plugins: Vec<PluginConfig>,
}

/// One plugin of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginConfig {
    /// `type`: the name of its program.
    pub kind: String,
    /// Capabilities that the plugin declares: it receives these members of `runtimeConfig`.
    capabilities: BTreeSet<String>,
    config: Map<String, Value>,
}

/// Whether a file is a list or the configuration of one plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// `.conflist`: a list of plugins.
    List,
    /// `.conf` or `.json`: one plugin.
    Single,
}

impl FileKind {
    /// Returns the kind for a file name's extension; `None` if the file is not a configuration.
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
    /// Parses a configuration without fragments. A single plugin becomes a list of one.
    pub fn parse(kind: FileKind, config: &str) -> Result<Self, Error> {
        Self::parse_with_fragments(kind, config, |_| Ok(Vec::new()))
    }

    /// Parses a configuration that may have plugin files in a directory of the network's name.
    ///
    /// `fragments` returns the contents of these files for a network's name; their plugins are
    /// appended to those of the list. It is called only for a list, and not with
    /// `loadOnlyInlinedPlugins` (behaviour S17).
    pub fn parse_with_fragments(
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
            (FileKind::List, None) if !fragments.is_empty() => parse_fragments(&fragments)?,
            (FileKind::Single, Some(_)) | (FileKind::List, _) => {
                let mut plugins = plugins(&map)?;
                plugins.extend(parse_fragments(&fragments)?);
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

    /// Adds these members to `args.cni` of every plugin.
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

    /// Replaces the list's default routes by routes through these gateways, at most one per family.
    ///
    /// The routes go into `ipam.routes`, so the list needs an `ipam` whose results repeat its
    /// configured routes; otherwise the error has code 2.
    pub fn with_default_routes(mut self, gateways: &[IpAddr]) -> Result<Self, Error> {
        if gateways.is_empty() {
            return Ok(self);
        }
        let unsupported = || Error::unsupported_field("default-route", &self.name);
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
                unsupported().with_details("no ipam of the network returns configured routes")
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

    /// Returns the configuration that a plugin of the list receives: its own, with the list's name
    /// and version, the previous plugin's result, and those of `capabilities` that it declares
    /// (behaviour S17).
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
        let declared: Map<String, Value> = capabilities
            .iter()
            .filter(|(name, _)| plugin.capabilities.contains(*name))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        if !declared.is_empty() {
            config.insert("runtimeConfig".to_owned(), Value::Object(declared));
        }
        text::print(&config)
    }

    /// Returns those of `capabilities` that no plugin of the list declares: their arguments would
    /// reach no plugin.
    pub fn undeclared<'a>(&self, capabilities: &'a Map<String, Value>) -> Vec<&'a str> {
        let is_declared = |name: &String| {
            let mut plugins = self.plugins.iter();
            plugins.any(|plugin| plugin.capabilities.contains(name))
        };
        capabilities
            .keys()
            .filter(|name| !is_declared(name))
            .map(String::as_str)
            .collect()
    }

    /// Returns the configuration that a plugin receives for GC: with the valid attachments under
    /// both keys, the specification's and libcni's earlier one.
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

    /// Returns the list as JSON, as the result cache stores it.
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
    /// Returns whether the configuration has this key.
    pub fn has(&self, key: &str) -> bool {
        self.config.contains_key(key)
    }

    fn read(config: Map<String, Value>) -> Result<Self, Error> {
        let kind = string(&config, "type")?;
        // The type becomes a file name in the directories of CNI_PATH: no path separators.
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

/// Parses the contents of plugin files.
fn parse_fragments(fragments: &[String]) -> Result<Vec<PluginConfig>, Error> {
    fragments
        .iter()
        .map(|fragment| {
            let config = serde_json::from_str(fragment)
                .map_err(|error| Error::decode(format!("plugin configuration: {error}")));
            PluginConfig::read(config?)
        })
        .collect()
}

/// Returns the highest supported version of `cniVersions`, or else `cniVersion`, or else 0.1.0.
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

/// Returns a boolean, also if it is written as a string (behaviour B0.2).
fn flag(map: &Map<String, Value>, key: &str) -> Result<bool, Error> {
    match map.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(on)) => Ok(*on),
        Some(Value::String(text)) => match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "t" => Ok(true),
            "false" | "0" | "f" | "" => Ok(false),
            other => Err(Error::invalid_config(format!(
                "{key}: {other:?} is not a boolean"
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
    fn a_network_list_is_parsed_with_its_runtime_settings() {
        let list = NetworkList::parse(FileKind::List, LIST).unwrap();
        assert_eq!((list.name.as_str(), list.version), ("net", Version::V1_0_0));
        assert!(list.disable_check && !list.disable_gc);
        let again = NetworkList::parse(FileKind::List, &list.to_json()).unwrap();
        assert_eq!(again, list);
    }

    /// behaviour S17
    #[test]
    fn capabilities_that_no_plugin_declares_are_listed() {
        let list = NetworkList::parse(FileKind::List, LIST).unwrap();
        let arguments = json!({ "portMappings": [], "bandwidth": {}, "ips": [] });
        assert_eq!(
            list.undeclared(arguments.as_object().unwrap()),
            ["bandwidth", "ips"]
        );
        assert!(list.undeclared(&Map::new()).is_empty());
    }

    #[test]
    fn a_plugin_receives_its_own_settings_and_its_declared_capabilities() {
        let list = NetworkList::parse(FileKind::List, LIST).unwrap();
        let result = json!({ "cniVersion": "1.0.0" });
        let given = json!({ "portMappings": [1], "bandwidth": {}, "mac": "x" });
        let capabilities = given.as_object().unwrap();
        let config_of = |index: usize, result| -> Value {
            let config = list.config_for(&list.plugins[index], result, capabilities);
            serde_json::from_str(&config).unwrap()
        };
        let first = json!({ "cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": { "type": "host-local" } });
        assert_eq!(config_of(0, None), first);
        let second = config_of(1, Some(&result));
        assert_eq!(second["runtimeConfig"], json!({ "portMappings": [1] }));
        assert_eq!(second["prevResult"], result);
        assert!(second["x"].is_null() && second.get("capabilities").is_some());
    }

    /// behaviour C14
    #[test]
    fn cni_args_and_default_routes_of_a_pod_are_added_to_the_network_list() {
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
    fn gc_passes_the_valid_attachments_under_both_keys() {
        let list = NetworkList::parse(FileKind::List, LIST).unwrap();
        let valid = [json!({ "containerID": "a", "ifname": "eth0" })];
        let config = list.config_for_gc(&list.plugins[0], &valid, true);
        let config: Value = serde_json::from_str(&config).unwrap();
        assert_eq!(config["cni.dev/valid-attachments"], json!(valid));
        assert_eq!(config["cni.dev/attachments"], json!(valid));
        assert_eq!(config["forceGC"], true);
    }

    #[test]
    fn a_single_plugin_is_a_list_of_one_and_nonsense_is_unsupported() {
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
    fn plugin_files_are_appended_to_the_network_list_unless_only_inlined_plugins_are_loaded() {
        let plugin_types = |list: &str| {
            let fragments = |name: &str| {
                assert_eq!(name, "n");
                Ok(vec![
                    r#"{"type": "x"}"#.to_owned(),
                    r#"{"type": "y"}"#.to_owned(),
                ])
            };
            let list = NetworkList::parse_with_fragments(FileKind::List, list, fragments);
            list.map(|list| {
                list.plugins
                    .into_iter()
                    .map(|plugin| plugin.kind)
                    .collect::<String>()
            })
        };
        let own = r#"{"name": "n", "plugins": [{"type": "a"}]}"#;
        assert_eq!(plugin_types(own).unwrap(), "axy");
        assert_eq!(plugin_types(r#"{"name": "n"}"#).unwrap(), "xy");
        let alone = own.replace("\"n\"", "\"n\", \"loadOnlyInlinedPlugins\": \"true\"");
        assert_eq!(plugin_types(&alone).unwrap(), "a");
        for wrong in [
            r#"{"name": "n", "plugins": []}"#,
            r#"{"name": "n", "loadOnlyInlinedPlugins": true}"#,
        ] {
            assert_eq!(plugin_types(wrong).unwrap_err().code, 7, "{wrong}");
        }
        let broken =
            NetworkList::parse_with_fragments(FileKind::List, own, |_| Ok(vec!["{}".to_owned()]));
        assert_eq!(broken.unwrap_err().code, 7);
        let single = NetworkList::parse_with_fragments(
            FileKind::Single,
            r#"{"name":"n","type":"a"}"#,
            |_| Err(Error::io("a single plugin has none beside it")),
        );
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
