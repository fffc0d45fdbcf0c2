//! The agent under test.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{Cgroup, Machine, Pod, Process, deadline, until};

/// Where the agent serves, inside the sandbox.
pub const SOCKET: &str = "/run/viaduct/viaduct.sock";

/// The node's pod CIDRs, unless a test says otherwise.
pub const POD_CIDRS: [&str; 2] = ["10.244.1.0/24", "fd00:10:244:1::/64"];

/// A node's agent. Dropping it kills it.
#[derive(Debug)]
pub struct Agent {
    node: Machine,
    /// `NAME=value`.
    environment: Vec<String>,
    words: Vec<String>,
    process: Option<Process>,
    /// Held for as long as the agent's programs may be attached to it.
    cgroup: Option<Cgroup>,
}

impl Agent {
    /// Starts `viaductd` with the usual pod CIDRs and `flags`, and waits until it serves.
    pub fn start(node: &Machine, flags: &[&str]) -> Result<Self> {
        let cidrs = POD_CIDRS.map(|cidr| format!("--pod-cidr={cidr}"));
        let flags = flags.iter().map(ToString::to_string);
        Self::start_with(node, cidrs.into_iter().chain(flags).collect())
    }

    /// Starts `viaductd` with exactly `flags` and a cgroup of its own, and waits until it serves.
    pub fn start_with(node: &Machine, flags: Vec<String>) -> Result<Self> {
        let mut words = vec![program("bin/viaductd").display().to_string()];
        words.extend(flags);
        let cgroup = Cgroup::new()?;
        words.extend(
            cgroup
                .iter()
                .map(|own| format!("--cgroup={}", own.path().display())),
        );
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

    /// Starts it again after it was killed or ended.
    pub fn restart(&mut self) -> Result<()> {
        let process = self.launch(&[])?;
        let serves = until("the agent serves", || {
            if let Some(status) = process.ended()? {
                bail!("the agent ended early ({status})");
            }
            let connected = self
                .node
                .mounts()
                .run(|| UnixStream::connect(SOCKET).is_ok());
            Ok(connected.then_some(()))
        });
        if let Err(error) = serves {
            bail!("{error:#}; it said:\n{}", process.last_words());
        }
        self.process = Some(process);
        Ok(())
    }

    /// Starts it, and waits until it ends by itself.
    pub fn start_and_die(&mut self) -> Result<()> {
        let process = self.launch(&[])?;
        until("the agent ends", || process.ended()).map(drop)
    }

    /// Runs it with `flags` to its end; what it printed.
    pub fn run(&self, flags: &[&str]) -> Result<String> {
        let process = self.launch(flags)?;
        let status = until("the agent ends", || process.ended())?;
        let words = process.last_words();
        ensure!(status.success(), "the agent ended ({status}): {words}");
        Ok(words)
    }

    fn launch(&self, flags: &[&str]) -> Result<Process> {
        let environment = self.environment.iter().map(String::as_str);
        let words = self.words.iter().map(String::as_str);
        let flags = flags.iter().copied();
        let words = ["env"].into_iter().chain(environment).chain(words);
        Process::start(&self.node, &words.chain(flags).collect::<Vec<_>>())
    }

    /// From its next start on, its environment has this.
    pub fn set(&mut self, name: &str, value: &str) {
        self.environment.push(format!("{name}={value}"));
    }

    /// Waits until it has ended by itself.
    pub fn wait_for_end(&mut self) -> Result<ExitStatus> {
        let process = self.process.take().context("the agent does not run")?;
        until("the agent ends", || process.ended())
    }

    /// From its next start on, it is another program.
    pub fn replace(&mut self, program: &Path) {
        self.words[0] = program.display().to_string();
    }

    /// `kill -9`.
    pub fn kill(&mut self) -> Result<()> {
        self.end(Signal::SIGKILL).map(drop)
    }

    /// Asks it to end, as a service manager does.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        self.end(Signal::SIGTERM)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let process = self.process.as_ref().context("the agent does not run")?;
        process.signal(signal)
    }

    /// What it has logged since it was last started.
    pub fn log(&self) -> String {
        self.process
            .as_ref()
            .map(Process::output)
            .unwrap_or_default()
    }

    /// Its process ID, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// The cgroup that it takes for the node's.
    pub fn cgroup(&self) -> Option<&Path> {
        self.cgroup.as_ref().map(Cgroup::path)
    }

    /// `GET` of its API.
    pub fn get(&self, path: &str) -> Result<Value> {
        get(&self.node, path)
    }

    /// The limits of a pod, as the API shows them.
    pub fn limits(&self, pod: &Pod) -> Result<Value> {
        let views = self.get(&format!("/v1/attachments/{}", pod.id()))?;
        Ok(views[0]["bandwidth"].clone())
    }

    /// Whether it has found that the kernel has a feature of that name.
    pub fn can(&self, feature: &str) -> Result<bool> {
        let status = self.get("/v1/status")?;
        let mut features = status["features"].as_array().into_iter().flatten();
        let found = features
            .find(|it| it["name"] == feature)
            .with_context(|| format!("the agent tells nothing of {feature}"))?;
        Ok(found["available"] == true)
    }

    /// `PUT` to its API: a JSON text, and the answer.
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

    /// Runs `viaductctl`.
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

/// `GET` of the API of the agent on `node`.
pub(crate) fn get(node: &Machine, path: &str) -> Result<Value> {
    node.call_json(&format!(
        "curl --silent --show-error --fail-with-body --max-time {} --unix-socket {SOCKET} http://viaduct{path}",
        deadline().as_secs()
    ))
}

/// A program of the distribution under test: `VIADUCT_DIST`, or what `cargo xtask dist` has laid out.
pub fn program(relative: &str) -> PathBuf {
    let dist = std::env::var_os("VIADUCT_DIST").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/dist"),
        PathBuf::from,
    );
    let path = dist.join(relative);
    path.canonicalize().unwrap_or(path)
}
