//! A list of plugins, ours and the reference's mixed, called as a runtime calls it: forward for ADD, each with the result
//! of the one before, and in reverse for DEL.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::{Answer, Call, Config, Machine, Verb, program};

/// Where Debian has the reference plugins.
const REFERENCE: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

/// Whose plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// Ours.
    Ours,
    /// The reference's.
    Reference,
}

/// A list.
#[derive(Clone, Debug)]
pub struct Chain {
    version: String,
    name: String,
    plugins: Vec<(Maker, Value)>,
    runtime: Value,
    variables: Vec<(String, String)>,
}

impl Chain {
    /// An empty list.
    pub fn new(version: &str, name: &str) -> Self {
        Self {
            version: version.to_owned(),
            name: name.to_owned(),
            plugins: Vec::new(),
            runtime: json!({}),
            variables: Vec::new(),
        }
    }

    /// With another plugin at the end; `settings` has its `type`.
    #[must_use]
    pub fn with(mut self, maker: Maker, settings: Value) -> Self {
        self.plugins.push((maker, settings));
        self
    }

    /// With what the runtime hands to plugins that declare the capability.
    #[must_use]
    pub fn hand(mut self, capability: &str, value: Value) -> Self {
        self.runtime[capability] = value;
        self
    }

    /// With a variable of the plugins' environment.
    #[must_use]
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.variables.push((key.to_owned(), value.to_owned()));
        self
    }

    /// ADD; returns the last result.
    pub fn add(&self, node: &Machine, pod: &Machine) -> Result<Value> {
        let mut result = Value::Null;
        for plugin in &self.plugins {
            let answer = self.call(Verb::Add, plugin, &result, node, pod)?;
            result = answer
                .result()
                .with_context(|| format!("ADD by {plugin:?} behind {result}"))?;
        }
        Ok(result)
    }

    /// CHECK with the last result.
    pub fn check(&self, node: &Machine, pod: &Machine, result: &Value) -> Result<()> {
        for plugin in &self.plugins {
            let answer = self.call(Verb::Check, plugin, result, node, pod)?;
            answer
                .success()
                .with_context(|| format!("CHECK by {plugin:?}"))?;
        }
        Ok(())
    }

    /// DEL with the last result, in reverse.
    pub fn del(&self, node: &Machine, pod: &Machine, result: &Value) -> Result<()> {
        for plugin in self.plugins.iter().rev() {
            let answer = self.call(Verb::Del, plugin, result, node, pod)?;
            answer
                .success()
                .with_context(|| format!("DEL by {plugin:?}"))?;
        }
        Ok(())
    }

    fn call(
        &self,
        verb: Verb,
        (maker, settings): &(Maker, Value),
        result: &Value,
        node: &Machine,
        pod: &Machine,
    ) -> Result<Answer> {
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
        call.run_at(node, &folder.join(kind))
    }
}

/// Where a maker's plugins are.
pub fn folder(maker: Maker) -> Result<PathBuf> {
    if maker == Maker::Ours {
        return Ok(program("cni"));
    }
    let mut folders = REFERENCE.iter().map(Path::new);
    let found = folders.find(|folder| folder.join("bridge").exists());
    found
        .map(Path::to_owned)
        .context("the reference plugins are not installed: `cargo xtask setup`")
}
