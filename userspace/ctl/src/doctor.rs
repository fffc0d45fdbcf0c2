//! `viaductctl doctor`: checks the agent, the kernel, the node and the CNI installation, and says
//! what to do. Reads only. Works before an agent is installed, and without one.
//!
//! Decisions that the agent takes too are those of `planner`; a fault that the agent has reported
//! already is not repeated.

mod configuration;
mod files;
mod installation;
mod kernel;
mod network;
mod node;
mod report;
mod unit;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use api::{Client, ClientError, Status, path};
use model::NodeCheck;

use crate::output::Output;
use files::Files;
use node::Times;
use report::{Check, Section};
pub(crate) use report::{Report, render};

/// Options of `viaductctl doctor`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Doctor {
    /// Directory of network configurations
    #[arg(long, value_name = "DIR", env = "NETCONFPATH", default_value = invoke::DEFAULT_CONFIGURATIONS)]
    configurations: PathBuf,
    /// Directories of CNI plugins, separated by colons
    #[arg(
        long,
        value_name = "DIRS",
        env = "CNI_PATH",
        default_value = "/opt/cni/bin:/usr/lib/cni:/usr/libexec/cni"
    )]
    path: String,
    /// Configuration file of the agent, read without an agent
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/viaduct/viaductd.toml"
    )]
    config: String,
    #[command(flatten)]
    pub(crate) output: Output,
}

impl Doctor {
    /// Checks everything at the time `now`, in seconds since 1970; `advice` says what to do about
    /// an agent that does not answer.
    pub(crate) fn run(
        &self,
        client: &Client,
        now: u64,
        advice: impl FnOnce(&ClientError) -> Option<&'static str>,
    ) -> Report {
        let answer = client.get(path::STATUS).and_then(|reply| {
            let status: Status = crate::decode(&reply)?;
            Ok(status)
        });
        let status = answer.as_ref().ok();
        let agent = match &answer {
            Ok(status) => agent(status),
            Err(error) => Section {
                name: "agent",
                checks: vec![unreachable(error, advice(error))],
            },
        };
        let root = Files::below(Path::new("/"));
        let features = status.map(|status| status.features.as_slice());
        let times = Times {
            now,
            program: built(),
        };
        let path: Vec<PathBuf> = std::env::split_paths(&self.path).collect();
        let serves = status.is_some();
        let (configured, file) = configuration::read(root, &self.config);
        let mut network = network::section(&configured, serves);
        if !serves {
            network.checks.insert(0, file);
        }
        Report::of(vec![
            agent,
            node::section(root, serves, configured.cgroup.as_deref(), times),
            network,
            installation::section(&self.configurations, &path, status),
            kernel::section(root, features.unwrap_or_default()),
        ])
    }
}

fn unreachable(error: &ClientError, advice: Option<&str>) -> Check {
    let mut check = Check::fail(NodeCheck::Agent, error.to_string());
    check.reason = Some("agent-unreachable".to_owned());
    check.with_advice(advice.unwrap_or_default())
}

/// Returns the agent's degradations, or that there are none.
fn agent(status: &Status) -> Section {
    let version = &status.version.agent;
    let mut checks = vec![Check::ok(
        NodeCheck::Agent,
        format!("version {version} serves"),
    )];
    checks.extend(status.degraded.iter().map(|degraded| {
        let mut check = Check::fail(NodeCheck::Agent, &degraded.message);
        check.reason = Some(degraded.reason.clone());
        check.with_advice(&degraded.advice)
    }));
    let own = env!("CARGO_PKG_VERSION");
    if version != own {
        let text = format!("the agent is of version {version}, and viaductctl of version {own}");
        checks.push(Check::warn(NodeCheck::Version, text));
    }
    checks.extend(status.sandbox.as_ref().map(|view| {
        let privileges = crate::render::sandbox(view);
        if view.no_new_privs {
            let text = format!("privileges of the agent: {privileges}");
            Check::ok(NodeCheck::Sandbox, text)
        } else {
            let text = format!("the agent keeps its privileges: {privileges}");
            Check::warn(NodeCheck::Sandbox, text)
        }
    }));
    Section {
        name: "agent",
        checks,
    }
}

/// Returns when this program was built or packaged, in seconds since 1970; 0 if that is unknown.
fn built() -> u64 {
    let modified = fs::metadata("/proc/self/exe").and_then(|program| program.modified());
    let since = modified
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |duration| duration.as_secs())
}

#[cfg(test)]
mod tests;
