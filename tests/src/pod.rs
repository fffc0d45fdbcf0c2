//! A pod: a network namespace that gets its interface from the plugin.

use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{Answer, Call, Config, Machine, Verb};

/// A pod.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Its namespace.
    pub machine: Machine,
    /// Its addresses, once it is attached, IPv4 first.
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

    /// Its container ID.
    pub fn id(&self) -> &str {
        self.machine.name()
    }

    /// What the plugin answered to its ADD.
    pub fn result(&self) -> &Value {
        &self.result
    }

    /// The host's end of its veth.
    pub fn host_link(&self) -> &str {
        self.result["interfaces"][1]["name"]
            .as_str()
            .unwrap_or_default()
    }

    /// The configuration of its ADD.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The address of that family.
    pub fn address(&self, like: IpAddr) -> Result<IpAddr> {
        self.addresses
            .iter()
            .copied()
            .find(|address| address.is_ipv4() == like.is_ipv4())
            .with_context(|| format!("{} has no address like {like}", self.id()))
    }

    /// The call a runtime would make for this pod.
    pub fn prepare(&self, verb: Verb, config: &Config) -> Call {
        Call::new(verb, self.id(), &self.machine.path(), config)
    }

    /// ADD to the default network.
    pub fn add(&mut self) -> Result<Answer> {
        self.add_with(Config::new("1.1.0"))
    }

    /// ADD with `config`.
    pub fn add_with(&mut self, config: Config) -> Result<Answer> {
        let answer = self.prepare(Verb::Add, &config).run(&self.node)?;
        self.result = answer
            .result()
            .with_context(|| format!("ADD of {}", self.id()))?;
        self.addresses = addresses(&self.result)?;
        self.config = config;
        Ok(answer)
    }

    /// DEL, with what ADD was given and has answered.
    pub fn del(&self) -> Result<Answer> {
        let answer = self
            .prepare(Verb::Del, &self.with_result())
            .run(&self.node)?;
        answer
            .success()
            .with_context(|| format!("DEL of {}", self.id()))?;
        ensure!(
            answer.stdout.is_empty(),
            "DEL prints nothing, not {}",
            answer.stdout
        );
        Ok(answer)
    }

    /// CHECK, with what ADD was given and has answered.
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

/// The addresses in a result of CNI 0.3.0 or later.
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
