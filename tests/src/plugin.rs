//! The plugin under test, called as a container runtime calls it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::machine::command;
use crate::{Machine, is_slow, program};

/// What a runtime asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Attach.
    Add,
    /// Detach.
    Del,
    /// Is it still as it was made?
    Check,
    /// Forget what is not listed.
    Gc,
    /// Could an ADD be served?
    Status,
    /// Which versions are spoken?
    Version,
}

impl Verb {
    /// As in `CNI_COMMAND`.
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

/// A port to publish.
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
    /// By TCP.
    pub const fn tcp(host: u16, container: u16) -> Self {
        Self {
            host,
            container,
            protocol: "tcp",
        }
    }

    /// By UDP.
    pub const fn udp(host: u16, container: u16) -> Self {
        Self {
            host,
            container,
            protocol: "udp",
        }
    }

    /// By TCP and by UDP.
    pub const fn both(host: u16, container: u16) -> [Self; 2] {
        [Self::tcp(host, container), Self::udp(host, container)]
    }
}

/// A network configuration, as a runtime hands it to the plugin.
#[derive(Clone, Debug, PartialEq)]
pub struct Config(pub Value);

impl Config {
    /// The agent's default network.
    pub fn new(version: &str) -> Self {
        Self(json!({ "cniVersion": version, "name": "viaduct", "type": "viaduct" }))
    }

    /// With these ports published.
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

    /// With these ports published, in the runtime's own words.
    #[must_use]
    pub fn map_ports(self, mappings: &[Value]) -> Self {
        self.with("runtimeConfig", json!({ "portMappings": mappings }))
    }

    /// With the key set to the value.
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
    /// As a runtime does it: every variable that the verb needs, and `config` on standard input.
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

    /// With the variable set.
    #[must_use]
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.environment.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Without the variable.
    #[must_use]
    pub fn without(mut self, key: &str) -> Self {
        self.environment.remove(key);
        self
    }

    /// With something else on standard input.
    #[must_use]
    pub fn stdin(mut self, text: &str) -> Self {
        text.clone_into(&mut self.stdin);
        self
    }

    /// Runs the plugin on `node`, as the program that is installed under the name `viaduct`.
    pub fn run(&self, node: &Machine) -> Result<Answer> {
        self.run_as(node, "viaduct")
    }

    /// Runs the plugin under another of its names.
    pub fn run_as(&self, node: &Machine, name: &str) -> Result<Answer> {
        self.run_at(node, &program("cni").join(name))
    }

    /// Runs a plugin by its path, whoever made it. As a runtime does on a slow machine, some more times where it says that
    /// the agent has had no time for it.
    pub fn run_at(&self, node: &Machine, path: &Path) -> Result<Answer> {
        let most = if is_slow() { 10 } else { 0 };
        let mut put_off = 0;
        loop {
            let answer = node
                .run(|| self.execute(path))
                .with_context(|| format!("cannot run {}", path.display()))?;
            if put_off == most || !answer.is_put_off() {
                return Ok(Answer { put_off, ..answer });
            }
            put_off += 1;
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
        let mut stdin = child.stdin.take().context("the input was asked for")?;
        // A plugin may refuse without reading; that is no error of the caller's.
        let _ = stdin.write_all(self.stdin.as_bytes());
        drop(stdin);
        let output = child.wait_with_output()?;
        Ok(Answer {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            took: start.elapsed(),
            put_off: 0,
        })
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Standard output: the result or the error.
    pub stdout: String,
    /// Standard error: the log.
    pub stderr: String,
    /// From the start of the program to its end.
    pub took: Duration,
    /// How often it was executed before, and put off.
    pub put_off: usize,
}

/// A CNI error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniError {
    /// Its number.
    pub code: u64,
    /// What is wrong.
    pub msg: String,
    /// More of it.
    pub details: String,
}

impl Answer {
    /// The result, of a call that succeeded with one.
    pub fn result(&self) -> Result<Value> {
        self.success()?;
        serde_json::from_str(&self.stdout).with_context(|| format!("no result: {self:?}"))
    }

    /// Succeeds if the call did, with or without a result.
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

    /// Whether an agent was there, and did not take the connection in time.
    fn is_put_off(&self) -> bool {
        self.code == Some(1) && self.stdout.contains("accepts no connection")
    }

    /// The error, of a call that failed as the protocol says.
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
