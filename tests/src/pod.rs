//! A pod: a network namespace whose interface the plugin creates.

use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{Answer, Call, Config, Machine, Verb};

/// A pod, attached or not.
#[derive(Clone, Debug)]
pub struct Pod {
    /// The network namespace.
    pub machine: Machine,
    /// The addresses of the last ADD, IPv4 first.
    pub addresses: Vec<IpAddr>,
    node: Machine,
    config: Config,
    result: Value,
}

impl Pod {
    pub(crate) fn new(machine: Machine, node: Machine) -> Self {
        Self {
            machine,
            addresses: Vec::new(),
            node,
            config: Config::new("1.1.0"),
            result: Value::Null,
        }
    }

    /// Returns the container ID.
    pub fn id(&self) -> &str {
        self.machine.name()
    }

    /// Returns the result of the last ADD.
    pub fn result(&self) -> &Value {
        &self.result
    }

    /// Returns the name of the veth's host end.
    pub fn host_link(&self) -> &str {
        self.result["interfaces"][1]["name"]
            .as_str()
            .unwrap_or_default()
    }

    /// Returns the configuration of the last ADD.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the address of the same family as `like`.
    pub fn address(&self, like: IpAddr) -> Result<IpAddr> {
        self.addresses
            .iter()
            .copied()
            .find(|address| address.is_ipv4() == like.is_ipv4())
            .with_context(|| format!("{} has no address of the family of {like}", self.id()))
    }

    /// Prepares a call with this pod's container ID and namespace.
    pub fn prepare(&self, verb: Verb, config: &Config) -> Call {
        Call::new(verb, self.id(), &self.machine.path(), config)
    }

    /// Executes ADD to the default network.
    pub fn add(&mut self) -> Result<Answer> {
        self.add_with(Config::new("1.1.0"))
    }

    /// Executes ADD with `config`. A failure of the plugin is an error.
    pub fn add_with(&mut self, config: Config) -> Result<Answer> {
        let answer = self.prepare(Verb::Add, &config).run(&self.node)?;
        self.result = answer
            .result()
            .with_context(|| format!("ADD of {}", self.id()))?;
        self.addresses = addresses(&self.result)?;
        self.config = config;
        Ok(answer)
    }

    /// Executes DEL with the configuration and the result of the last ADD.
    pub fn del(&self) -> Result<Answer> {
        let answer = self
            .prepare(Verb::Del, &self.with_result())
            .run(&self.node)?;
        answer
            .success()
            .with_context(|| format!("DEL of {}", self.id()))?;
        ensure!(
            answer.stdout.is_empty(),
            "DEL must print nothing, printed {}",
            answer.stdout
        );
        Ok(answer)
    }

    /// Executes CHECK with the configuration and the result of the last ADD.
    pub fn check(&self) -> Result<Answer> {
        self.prepare(Verb::Check, &self.with_result())
            .run(&self.node)
    }

    fn with_result(&self) -> Config {
        let config = self.config.clone();
        if self.result.is_null() {
            return config;
        }
        config.with("prevResult", self.result.clone())
    }
}

/// Returns the addresses in a result of CNI 0.3.0 or later.
pub fn addresses(result: &Value) -> Result<Vec<IpAddr>> {
    let ips = result["ips"]
        .as_array()
        .with_context(|| format!("no ips in {result}"))?;
    ips.iter()
        .map(|ip| {
            let text = ip["address"].as_str().unwrap_or_default();
            let (address, _) = text
                .split_once('/')
                .with_context(|| format!("no prefix length in {ip}"))?;
            Ok(address.parse()?)
        })
        .collect()
}
