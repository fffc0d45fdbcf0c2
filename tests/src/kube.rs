//! `viaduct-kube` on a node, with an API server of the tests.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitStatus;

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::api_server::ApiServer;
use crate::{Agent, Machine, Process, Sandbox, program, until};

/// The Node of the tests with one agent.
pub const OWN: &str = "node-1";
/// Address of the API server, on each node.
pub const API: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 6443);
/// Address of metrics, health and readiness.
const METRICS: &str = "127.0.0.1:9465";
const KUBECONFIG: &str = "/run/kubeconfig";
/// The file of the client's token.
pub const TOKEN: &str = "/run/kube-token";
/// The token of a new client.
pub const FIRST_TOKEN: &str = "first";
/// The configuration list that `viaduct-kube` keeps.
pub const CONFLIST: &str = "/run/net.d/05-viaduct.conflist";

/// The rights at the API server that `viaduct-kube` uses.
pub const RIGHTS: [&str; 9] = [
    "list namespaces",
    "list networkpolicies",
    "list nodes",
    "list pods",
    "patch nodes/status",
    "watch namespaces",
    "watch networkpolicies",
    "watch nodes",
    "watch pods",
];

/// Starts an agent without pod CIDRs, and `viaduct-kube` for the Node [`OWN`].
pub fn start(server: &ApiServer, flags: &[&str]) -> Result<(Sandbox, Agent, Kube)> {
    let sandbox = Sandbox::new()?;
    let agent = Agent::start_with(&sandbox.node, Vec::new())?;
    let kube = Kube::start(server, &sandbox.node, OWN, flags)?;
    Ok((sandbox, agent, kube))
}

/// A running `viaduct-kube`. Dropping it kills the process.
#[derive(Debug)]
pub struct Kube {
    node: Machine,
    words: Vec<String>,
    process: Process,
}

impl Kube {
    /// Makes `server` listen on the node, and starts `viaduct-kube` for the Node `name`.
    pub fn start(server: &ApiServer, node: &Machine, name: &str, flags: &[&str]) -> Result<Self> {
        server.listen(node, API)?;
        write_token(node, FIRST_TOKEN)?;
        let cluster = json!({ "server": format!("http://{API}") });
        let config = kubeconfig(&cluster, &json!({ "tokenFile": TOKEN }));
        Self::start_with(node, name, &config, flags)
    }

    /// Starts `viaduct-kube` for the Node `name` with this kubeconfig, which may name [`TOKEN`].
    pub fn start_with(node: &Machine, name: &str, config: &str, flags: &[&str]) -> Result<Self> {
        write(node, KUBECONFIG, config)?;
        // With fewer capabilities than in the DaemonSet: none.
        let mut words: Vec<String> = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
            .map(str::to_owned)
            .to_vec();
        words.extend([
            program("bin/viaduct-kube").display().to_string(),
            format!("--node-name={name}"),
            format!("--kubeconfig={KUBECONFIG}"),
            format!("--metrics-listen={METRICS}"),
        ]);
        words.extend(flags.iter().map(ToString::to_string));
        let process = launch(node, &words)?;
        Ok(Self {
            node: node.clone(),
            words,
            process,
        })
    }

    /// Kills the process, and starts another one.
    pub fn restart(&mut self) -> Result<()> {
        self.process.signal(Signal::SIGKILL)?;
        until("viaduct-kube has ended", || self.process.ended())?;
        self.process = launch(&self.node, &self.words)?;
        Ok(())
    }

    /// Ends the process as a service manager does.
    pub fn terminate(self) -> Result<ExitStatus> {
        Ok(self.process.end(Signal::SIGTERM)?.0)
    }

    /// Returns the log since the last start.
    pub fn log(&self) -> String {
        self.process.output()
    }

    /// Returns the resident memory in KiB, and its peak.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let path = format!("/proc/{}/status", self.process.pid());
        let status = std::fs::read_to_string(path)?;
        let value = |key: &str| -> Result<u64> {
            let line = status.lines().find(|line| line.starts_with(key));
            let number = line.and_then(|line| line.split_whitespace().nth(1));
            Ok(number.with_context(|| format!("no {key}"))?.parse()?)
        };
        Ok((value("VmRSS:")?, value("VmHWM:")?))
    }

    /// Waits until the log has `words`.
    pub fn await_log(&self, words: &str) -> Result<()> {
        let waited = until(&format!("the log has {words:?}"), || {
            Ok(self.log().contains(words).then_some(()))
        });
        waited.with_context(|| self.log())
    }

    /// Waits until a sample of the metrics has the value.
    pub fn await_metric(&self, sample: &str, value: &str) -> Result<()> {
        let line = format!("viaduct_kube_{sample} {value}");
        let waited = until(&line, || {
            let metrics = self.get("metrics")?;
            Ok(metrics.lines().any(|one| one == line).then_some(()))
        });
        waited.with_context(|| self.log())
    }

    /// Waits until a counter of the metrics is above zero.
    pub fn await_counted(&self, sample: &str) -> Result<()> {
        let start = format!("viaduct_kube_{sample} ");
        let waited = until(&format!("{start} is counted"), || {
            let metrics = self.get("metrics")?;
            let mut values = metrics.lines().filter_map(|line| line.strip_prefix(&start));
            Ok(values.any(|value| value != "0").then_some(()))
        });
        waited.with_context(|| self.log())
    }

    /// Waits until the agent has pod CIDRs and peers.
    pub fn await_ready(&self) -> Result<()> {
        let waited = until("viaduct-kube is ready", || {
            Ok((self.get("readyz")? == "ok\n").then_some(()))
        });
        waited.with_context(|| self.log())
    }

    /// Returns the answer of `--metrics-listen`; empty while nothing listens.
    fn get(&self, path: &str) -> Result<String> {
        let url = format!("http://{METRICS}/{path}");
        let answer = self
            .node
            .output(&["curl", "--silent", "--max-time", "60", &url])?;
        Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
    }
}

/// Starts a program with its arguments.
pub(crate) fn launch(node: &Machine, words: &[String]) -> Result<Process> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Process::start(node, &words)
}

/// Waits until the status says that the list of peers may be out of date, with the program and its
/// error, or no longer says so. An outage is reported after ten seconds.
pub fn await_stale(agent: &Agent, expected: bool) -> Result<()> {
    let what = format!("the list of peers is stale: {expected}");
    until(&what, || {
        let degraded = agent.get("/v1/status")?["degraded"].to_string();
        let named = ["peers-stale", "viaduct-kube", "nodes: "];
        let is_stale = named.iter().all(|word| degraded.contains(word));
        let is_gone = !degraded.contains("peers-stale");
        Ok((if expected { is_stale } else { is_gone }).then_some(()))
    })
}

/// Replaces the client's token.
pub fn write_token(node: &Machine, token: &str) -> Result<()> {
    write(node, TOKEN, token)
}

/// Writes a file of the node.
pub fn write(node: &Machine, path: &str, text: &str) -> Result<()> {
    Ok(node.mounts().run(|| std::fs::write(path, text))?)
}

/// Returns the text of a file of the node; `None` if there is none.
pub fn read(node: &Machine, path: &str) -> Option<String> {
    node.mounts().run(|| std::fs::read_to_string(path).ok())
}

/// Returns a kubeconfig for a user of a cluster. It is YAML, and JSON is YAML.
pub(crate) fn kubeconfig(cluster: &Value, user: &Value) -> String {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{ "name": "test", "cluster": cluster }],
        "users": [{ "name": "test", "user": user }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
    });
    config.to_string()
}
