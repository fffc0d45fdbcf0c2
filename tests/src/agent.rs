//! Starts, stops and queries the agent under test.

use std::iter;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{Cgroup, Machine, Pod, Process, deadline, until};

/// Path of the agent's API socket, inside the sandbox.
pub const SOCKET: &str = "/run/viaduct/viaduct.sock";

/// Default pod CIDRs of the node, IPv4 first.
pub const POD_CIDRS: [&str; 2] = ["10.244.1.0/24", "fd00:10:244:1::/64"];

/// The agent of a node. Dropping it kills the process.
#[derive(Debug)]
pub struct Agent {
    node: Machine,
    /// Additional environment, as `NAME=value`.
    environment: Vec<String>,
    /// Program and arguments.
    words: Vec<String>,
    process: Option<Process>,
    /// Cgroup to which the agent attaches its cgroup programs. It must outlive them.
    cgroup: Option<Cgroup>,
}

impl Agent {
    /// Starts `viaductd` with [`POD_CIDRS`] and `flags`, and waits until its API answers.
    pub fn start(node: &Machine, flags: &[&str]) -> Result<Self> {
        let cidrs = POD_CIDRS.map(|cidr| format!("--pod-cidr={cidr}"));
        let flags = flags.iter().map(ToString::to_string);
        Self::start_with(node, cidrs.into_iter().chain(flags).collect())
    }

    /// Starts `viaductd` with exactly `flags` and a new cgroup, and waits until its API answers.
    pub fn start_with(node: &Machine, flags: Vec<String>) -> Result<Self> {
        let mut words = vec![program("bin/viaductd").display().to_string()];
        words.extend(flags);
        let cgroup = Cgroup::new()?;
        if let Some(own) = &cgroup {
            words.push(format!("--cgroup={}", own.path_on(node)?.display()));
        }
        let mut agent = Self {
            node: node.clone(),
            environment: Vec::new(),
            words,
            process: None,
            cgroup,
        };
        agent.restart()?;
        Ok(agent)
    }

    /// Starts the agent again after it was killed or has exited.
    pub fn restart(&mut self) -> Result<()> {
        let process = self.launch(&[])?;
        let serves = until("the agent's API accepts connections", || {
            if let Some(status) = process.ended()? {
                bail!("the agent exited during start ({status})");
            }
            let connected = self
                .node
                .mounts()
                .run(|| UnixStream::connect(SOCKET).is_ok());
            Ok(connected.then_some(()))
        });
        if let Err(error) = serves {
            bail!("{error:#}; its output:\n{}", process.kill_and_read_output());
        }
        self.process = Some(process);
        Ok(())
    }

    /// Starts the agent, and waits until it exits by itself.
    pub fn start_until_exit(&mut self) -> Result<()> {
        let process = self.launch(&[])?;
        until("the agent exits", || process.ended()).map(drop)
    }

    /// Runs the agent with additional `flags` until it exits, and returns its output.
    ///
    /// An exit status other than 0 is an error.
    pub fn run(&self, flags: &[&str]) -> Result<String> {
        let process = self.launch(flags)?;
        let status = until("the agent exits", || process.ended())?;
        let output = process.kill_and_read_output();
        ensure!(status.success(), "the agent failed ({status}): {output}");
        Ok(output)
    }

    fn launch(&self, flags: &[&str]) -> Result<Process> {
        let environment = self.environment.iter().map(String::as_str);
        let words = self.words.iter().map(String::as_str);
        let flags = flags.iter().copied();
        let words = iter::once("env").chain(environment).chain(words);
        Process::start(&self.node, &words.chain(flags).collect::<Vec<_>>())
    }

    /// Sets an environment variable, from the next start on.
    pub fn set(&mut self, name: &str, value: &str) {
        self.environment.push(format!("{name}={value}"));
    }

    /// Waits until the agent exits by itself, and returns its status.
    pub fn wait_for_end(&mut self) -> Result<ExitStatus> {
        let process = self.process.take().context("the agent does not run")?;
        until("the agent exits", || process.ended())
    }

    /// Replaces the agent's binary by `program`, from the next start on.
    pub fn replace(&mut self, program: &Path) {
        self.words[0] = program.display().to_string();
    }

    /// Sends SIGKILL, and waits for the exit.
    pub fn kill(&mut self) -> Result<()> {
        self.end(Signal::SIGKILL).map(drop)
    }

    /// Sends SIGTERM, as a service manager does, and waits for the exit.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        self.end(Signal::SIGTERM)
    }

    /// Sends a signal, and does not wait.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let process = self.process.as_ref().context("the agent does not run")?;
        process.signal(signal)
    }

    /// Returns the log since the last start.
    pub fn log(&self) -> String {
        self.process
            .as_ref()
            .map(Process::output)
            .unwrap_or_default()
    }

    /// Returns the process ID, while the agent runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Returns the cgroup that the agent was given as the node's root (`--cgroup`).
    pub fn cgroup(&self) -> Option<&Path> {
        self.cgroup.as_ref().map(Cgroup::path)
    }

    /// Sends a `GET` to the API, and returns the JSON body.
    pub fn get(&self, path: &str) -> Result<Value> {
        get(&self.node, path)
    }

    /// Starts a client that prints drop events as lines of JSON until it is dropped.
    pub fn follow_drops(&self) -> Result<Process> {
        let url = "http://viaduct/v1/drops?follow=true";
        let words = [
            "curl",
            "--silent",
            "--no-buffer",
            "--unix-socket",
            SOCKET,
            url,
        ];
        Process::start(&self.node, &words)
    }

    /// Returns the bandwidth limits of a pod, as the API shows them.
    pub fn limits(&self, pod: &Pod) -> Result<Value> {
        let views = self.get(&format!("/v1/attachments/{}", pod.id()))?;
        Ok(views[0]["bandwidth"].clone())
    }

    /// Returns whether the agent has detected this kernel feature (`features` of `/v1/status`).
    pub fn has_feature(&self, feature: &str) -> Result<bool> {
        let status = self.get("/v1/status")?;
        let mut features = status["features"].as_array().into_iter().flatten();
        let found = features
            .find(|it| it["name"] == feature)
            .with_context(|| format!("/v1/status does not list the feature {feature}"))?;
        Ok(found["available"] == true)
    }

    /// Sends a `PUT` with a JSON body to the API, and returns the JSON response.
    pub fn put(&self, path: &str, body: &str) -> Result<Value> {
        let url = format!("http://viaduct{path}");
        let words = [
            "curl",
            "--silent",
            "--show-error",
            "--fail-with-body",
            "--max-time",
            &deadline().as_secs().to_string(),
            "--unix-socket",
            SOCKET,
            "--request",
            "PUT",
            "--data",
            body,
            &url,
        ];
        Ok(serde_json::from_str(&self.node.call_words(&words)?)?)
    }

    /// Waits until no pod and no container is attached.
    pub fn await_detached(&self) -> Result<()> {
        until("no attachment is left", || {
            let left = self.get("/v1/attachments")?;
            Ok(left.as_array().is_some_and(Vec::is_empty).then_some(()))
        })
        .with_context(|| {
            let left = self.ctl("list").unwrap_or_default();
            format!("{left}\n{}", self.log())
        })
    }

    /// Runs `viaductctl` with `arguments`, separated by spaces, and returns its output.
    pub fn ctl(&self, arguments: &str) -> Result<String> {
        let ctl = program("bin/viaductctl");
        self.node.call(&format!("{} {arguments}", ctl.display()))
    }

    fn end(&mut self, signal: Signal) -> Result<ExitStatus> {
        let process = self.process.take().context("the agent does not run")?;
        let (status, _) = process.end(signal)?;
        Ok(status)
    }
}

/// Sends a `GET` to the API of the agent on `node`.
pub(crate) fn get(node: &Machine, path: &str) -> Result<Value> {
    node.call_json(&format!(
        "curl --silent --show-error --fail-with-body --max-time {} --unix-socket {SOCKET} http://viaduct{path}",
        deadline().as_secs()
    ))
}

/// Returns the path of a program of the distribution under test: below `VIADUCT_DIST`, by default
/// the output folder of `cargo xtask dist`.
pub fn program(relative: &str) -> PathBuf {
    let dist = std::env::var_os("VIADUCT_DIST").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/dist"),
        PathBuf::from,
    );
    let path = dist.join(relative);
    path.canonicalize().unwrap_or(path)
}

/// Returns the path of the BPF object that tests load themselves: `VIADUCT_BPF_OBJECT`, by default
/// the output of `cargo xtask build`. Agents have their own beside them.
pub fn bpf_object() -> PathBuf {
    std::env::var_os("VIADUCT_BPF_OBJECT").map_or_else(
        || {
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../target/bpf/bpfel-unknown-none/release/datapath")
        },
        PathBuf::from,
    )
}
