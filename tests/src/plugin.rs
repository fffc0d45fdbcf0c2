//! Executes the plugin under test, as a container runtime does.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::machine::command;
use crate::{Machine, is_slow, program};

/// CNI operation, the value of `CNI_COMMAND`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Attaches a container.
    Add,
    /// Detaches a container.
    Del,
    /// Checks an attachment against its result.
    Check,
    /// Removes attachments that are not listed.
    Gc,
    /// Reports whether an ADD can be executed.
    Status,
    /// Reports the supported CNI versions.
    Version,
}

impl Verb {
    /// Returns the value of `CNI_COMMAND`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }
}

/// A port mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The node's port.
    pub host: u16,
    /// The pod's port.
    pub container: u16,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: &'static str,
}

impl Mapping {
    /// Creates a TCP mapping.
    pub const fn tcp(host: u16, container: u16) -> Self {
        Self {
            host,
            container,
            protocol: "tcp",
        }
    }

    /// Creates a UDP mapping.
    pub const fn udp(host: u16, container: u16) -> Self {
        Self {
            host,
            container,
            protocol: "udp",
        }
    }

    /// Creates a TCP and a UDP mapping of the same ports.
    pub const fn both(host: u16, container: u16) -> [Self; 2] {
        [Self::tcp(host, container), Self::udp(host, container)]
    }
}

/// A network configuration, as a runtime passes it to the plugin.
#[derive(Clone, Debug, PartialEq)]
pub struct Config(pub Value);

impl Config {
    /// Creates a configuration of the agent's default network.
    pub fn new(version: &str) -> Self {
        Self(json!({ "cniVersion": version, "name": "viaduct", "type": "viaduct" }))
    }

    /// Sets the port mappings.
    #[must_use]
    pub fn publish(self, mappings: &[Mapping]) -> Self {
        let list = mappings
            .iter()
            .map(|mapping| {
                json!({
                    "hostPort": mapping.host,
                    "containerPort": mapping.container,
                    "protocol": mapping.protocol,
                })
            })
            .collect::<Vec<_>>();
        self.map_ports(&list)
    }

    /// Sets `runtimeConfig.portMappings` to these JSON objects.
    #[must_use]
    pub fn map_ports(self, mappings: &[Value]) -> Self {
        self.with("runtimeConfig", json!({ "portMappings": mappings }))
    }

    /// Sets a key of the configuration.
    #[must_use]
    pub fn with(mut self, key: &str, value: Value) -> Self {
        self.0[key] = value;
        self
    }
}

/// One execution of the plugin.
#[derive(Clone, Debug)]
pub struct Call {
    environment: BTreeMap<String, String>,
    stdin: String,
}

impl Call {
    /// Prepares a call as a runtime does: all `CNI_*` variables of the verb, and `config` on
    /// standard input.
    pub fn new(verb: Verb, container: &str, netns: &str, config: &Config) -> Self {
        let folder = program("cni");
        let environment = [
            ("CNI_COMMAND", verb.name()),
            ("CNI_CONTAINERID", container),
            ("CNI_NETNS", netns),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", &folder.display().to_string()),
        ];
        Self {
            environment: environment
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            stdin: config.0.to_string(),
        }
    }

    /// Sets a variable of the environment.
    #[must_use]
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.environment.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Removes a variable from the environment.
    #[must_use]
    pub fn without(mut self, key: &str) -> Self {
        self.environment.remove(key);
        self
    }

    /// Replaces the standard input.
    #[must_use]
    pub fn stdin(mut self, text: &str) -> Self {
        text.clone_into(&mut self.stdin);
        self
    }

    /// Runs the plugin on `node` under the name `viaduct`.
    pub fn run(&self, node: &Machine) -> Result<Answer> {
        self.run_as(node, "viaduct")
    }

    /// Runs the plugin on `node` under another of its names.
    pub fn run_as(&self, node: &Machine, name: &str) -> Result<Answer> {
        self.run_at(node, &program("cni").join(name))
    }

    /// Runs the plugin binary at `path` on `node`. On a slow machine, repeats the call up to ten
    /// times while the agent does not accept the connection, as a runtime does.
    pub fn run_at(&self, node: &Machine, path: &Path) -> Result<Answer> {
        let most = if is_slow() { 10 } else { 0 };
        let mut retries = 0;
        loop {
            let answer = node
                .run(|| self.execute(path))
                .with_context(|| format!("cannot run {}", path.display()))?;
            if retries == most || !answer.agent_was_busy() {
                return Ok(Answer { retries, ..answer });
            }
            retries += 1;
        }
    }

    fn execute(&self, path: &Path) -> Result<Answer> {
        let mut plugin = command(path);
        let start = Instant::now();
        let mut child = plugin
            .envs(&self.environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut stdin = child.stdin.take().context("standard input is piped")?;
        // A plugin may exit without reading its input: then this write fails, which is no error.
        let _ = stdin.write_all(self.stdin.as_bytes());
        drop(stdin);
        let output = child.wait_with_output()?;
        Ok(Answer {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            took: start.elapsed(),
            retries: 0,
        })
    }
}

/// Exit code and output of one call.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The exit code; `None` if a signal killed the plugin.
    pub code: Option<i32>,
    /// Standard output: the result or the error.
    pub stdout: String,
    /// Standard error: the log.
    pub stderr: String,
    /// Time from the start of the process to its exit.
    pub took: Duration,
    /// Number of calls before this one that failed because the agent was busy.
    pub retries: usize,
}

/// A CNI error object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniError {
    /// Error code of the CNI specification, or of the plugin from 100.
    pub code: u64,
    /// Short error message.
    pub msg: String,
    /// Longer description.
    pub details: String,
}

impl Answer {
    /// Returns the result object of a successful call.
    pub fn result(&self) -> Result<Value> {
        self.success()?;
        serde_json::from_str(&self.stdout).with_context(|| format!("no result: {self:?}"))
    }

    /// Returns an error with the plugin's output if the call failed.
    pub fn success(&self) -> Result<()> {
        ensure!(
            self.code == Some(0),
            "the plugin failed ({:?}): {} {}",
            self.code,
            self.stdout,
            self.stderr,
        );
        Ok(())
    }

    /// Returns whether an agent was listening, but did not accept the connection in time.
    fn agent_was_busy(&self) -> bool {
        self.code == Some(1) && self.stdout.contains("accepts no connection")
    }

    /// Returns the error object of a failed call.
    pub fn error(&self) -> Result<CniError> {
        if self.code == Some(0) {
            bail!("the plugin succeeded: {}", self.stdout);
        }
        let error: Value = serde_json::from_str(&self.stdout)
            .with_context(|| format!("no error object on stdout: {self:?}"))?;
        let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
        Ok(CniError {
            code: error["code"]
                .as_u64()
                .with_context(|| format!("no code in {error}"))?,
            msg: text("msg"),
            details: text("details"),
        })
    }
}
