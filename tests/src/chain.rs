//! A CNI plugin list of Viaduct's and the reference's plugins, executed as by a runtime: ADD in
//! list order, each plugin with the previous result, and DEL in reverse order.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::company::newest;
use crate::{Answer, Call, Config, Machine, Verb, program};

/// Folders in which Debian and other distributions install the reference plugins.
const REFERENCE: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

/// Origin of a plugin binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginSource {
    /// Viaduct, from the distribution under test.
    Ours,
    /// The reference plugins, as installed on this machine.
    Reference,
    /// The newest release of the reference plugins, below `target/tools`.
    NewestReference,
}

/// A network configuration list with its runtime configuration.
#[derive(Clone, Debug)]
pub struct Chain {
    version: String,
    name: String,
    plugins: Vec<(PluginSource, Value)>,
    runtime: Value,
    variables: Vec<(String, String)>,
}

impl Chain {
    /// Creates an empty list of this CNI version and network name.
    pub fn new(version: &str, name: &str) -> Self {
        Self {
            version: version.to_owned(),
            name: name.to_owned(),
            plugins: Vec::new(),
            runtime: json!({}),
            variables: Vec::new(),
        }
    }

    /// Creates the list of a configuration file, with all plugins of the same origin, in this CNI
    /// version.
    pub fn of_file(version: &str, file: &Value, maker: PluginSource) -> Result<Self> {
        let name = file["name"].as_str().context("a list has a name")?;
        let plugins = file["plugins"].as_array().context("a list has plugins")?;
        let empty = Self::new(version, name);
        Ok(plugins
            .iter()
            .fold(empty, |list, plugin| list.with(maker, plugin.clone())))
    }

    /// Appends a plugin; `settings` includes its `type`.
    #[must_use]
    pub fn with(mut self, maker: PluginSource, settings: Value) -> Self {
        self.plugins.push((maker, settings));
        self
    }

    /// Sets the `runtimeConfig` value for plugins that declare the capability.
    #[must_use]
    pub fn with_capability(mut self, capability: &str, value: Value) -> Self {
        self.runtime[capability] = value;
        self
    }

    /// Sets an environment variable of all plugins.
    #[must_use]
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.variables.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Executes ADD; returns the result of the last plugin.
    pub fn add(&self, node: &Machine, pod: &Machine) -> Result<Value> {
        self.add_after(&Value::Null, node, pod)
    }

    /// Executes ADD after plugins with this result; returns the result of the last plugin.
    pub fn add_after(&self, before: &Value, node: &Machine, pod: &Machine) -> Result<Value> {
        let mut result = before.clone();
        for plugin in &self.plugins {
            let answer = self.call(Verb::Add, plugin, &result, node, pod)?;
            result = answer
                .result()
                .with_context(|| format!("ADD by {plugin:?} with prevResult {result}"))?;
        }
        Ok(result)
    }

    /// Executes CHECK with the last result as `prevResult`.
    pub fn check(&self, node: &Machine, pod: &Machine, result: &Value) -> Result<()> {
        for plugin in &self.plugins {
            let answer = self.call(Verb::Check, plugin, result, node, pod)?;
            answer
                .success()
                .with_context(|| format!("CHECK by {plugin:?}"))?;
        }
        Ok(())
    }

    /// Executes DEL with the last result as `prevResult`, in reverse order.
    pub fn del(&self, node: &Machine, pod: &Machine, result: &Value) -> Result<()> {
        for plugin in self.plugins.iter().rev() {
            let answer = self.call(Verb::Del, plugin, result, node, pod)?;
            answer
                .success()
                .with_context(|| format!("DEL by {plugin:?}"))?;
        }
        Ok(())
    }

    /// Executes STATUS of all plugins, which the versions from 1.1.0 on have.
    pub fn status(&self, node: &Machine) -> Result<()> {
        for plugin in &self.plugins {
            let (call, path) = self.prepare(Verb::Status, plugin, &Value::Null, node)?;
            let call = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"]
                .into_iter()
                .fold(call, Call::without);
            call.run_at(node, &path)?
                .success()
                .with_context(|| format!("STATUS of {plugin:?}"))?;
        }
        Ok(())
    }

    fn call(
        &self,
        verb: Verb,
        plugin: &(PluginSource, Value),
        result: &Value,
        node: &Machine,
        pod: &Machine,
    ) -> Result<Answer> {
        let (call, path) = self.prepare(verb, plugin, result, pod)?;
        call.run_at(node, &path)
    }

    /// Returns the call of a plugin for `pod`, and the path of its binary.
    fn prepare(
        &self,
        verb: Verb,
        (maker, settings): &(PluginSource, Value),
        result: &Value,
        pod: &Machine,
    ) -> Result<(Call, PathBuf)> {
        let mut config = settings.clone();
        config["cniVersion"] = json!(self.version);
        config["name"] = json!(self.name);
        if !result.is_null() {
            config["prevResult"] = result.clone();
        }
        for (capability, value) in self.runtime.as_object().into_iter().flatten() {
            if config["capabilities"][capability] == json!(true) {
                config["runtimeConfig"][capability] = value.clone();
            }
        }
        let kind = settings["type"].as_str().context("a plugin has a type")?;
        let folder = folder(*maker)?;
        let mut call = Call::new(verb, pod.name(), &pod.path(), &Config(config));
        call = call.set("CNI_PATH", &folder.display().to_string());
        for (key, value) in &self.variables {
            call = call.set(key, value);
        }
        Ok((call, folder.join(kind)))
    }
}

/// Returns the folder of the plugins of this origin.
pub fn folder(maker: PluginSource) -> Result<PathBuf> {
    match maker {
        PluginSource::Ours => Ok(program("cni")),
        PluginSource::Reference => {
            let mut folders = REFERENCE.iter().map(Path::new);
            let found = folders.find(|folder| folder.join("bridge").exists());
            found
                .map(Path::to_owned)
                .context("the reference plugins are not installed: `cargo xtask setup`")
        }
        PluginSource::NewestReference => newest_reference()
            .map(|(_, folder)| folder)
            .context("no newer reference plugins below target/tools: `cargo xtask setup`"),
    }
}

/// Returns version and folder of the newest reference plugins below `target/tools`, if `cargo xtask
/// setup` could get them.
pub fn newest_reference() -> Option<(String, PathBuf)> {
    newest("reference", "bridge")
}
