//! `viaductctl doctor`: checks the agent, the node, the CNI installation and the kernel, and says
//! what to do. Works without the agent, with the checks that do not need it.

mod report;

use std::fs;
use std::path::{Path, PathBuf};

use ::cni::{Installation, InstallationFault};
use api::{Client, ClientError, DEFAULT_BPFFS, FeatureView, Status, path};

use crate::output::Output;
use report::{Check, Outcome, Section};
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
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Unit of the agent, as enabled by `systemctl enable`.
const ENABLED_UNIT: &str = "etc/systemd/system/multi-user.target.wants/viaductd.service";
/// Directory that exists where systemd manages the services.
const SYSTEMD: &str = "run/systemd/system";

impl Doctor {
    /// Checks everything; `advice` says what to do about an agent that does not answer.
    pub(crate) fn run(
        &self,
        client: &Client,
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
                name: "agent".to_owned(),
                checks: vec![Check::new(
                    "agent-unreachable",
                    Outcome::Bad,
                    error.to_string(),
                    advice(error).unwrap_or_default(),
                )],
            },
        };
        let mut sections = vec![agent];
        sections.push(node(Path::new("/"), status));
        sections.push(self.installation(status));
        sections.extend(status.map(|status| kernel(&status.features)));
        Report::of(sections)
    }

    fn installation(&self, status: Option<&Status>) -> Section {
        let path: Vec<PathBuf> = std::env::split_paths(&self.path).collect();
        let mut checks = match invoke::installation(&self.configurations, &path) {
            Ok(found) => configurations(&self.configurations, &found, status),
            Err(error) => vec![Check::new(
                "configurations",
                Outcome::Bad,
                format!("{}: {error}", self.configurations.display()),
                "",
            )],
        };
        checks.push(plugin(&path, status));
        Section {
            name: "CNI installation".to_owned(),
            checks,
        }
    }
}

/// Returns the agent's degradations, or that there are none.
fn agent(status: &Status) -> Section {
    let version = &status.version.agent;
    let mut checks = vec![Check::good("agent", format!("version {version} serves"))];
    checks.extend(status.degraded.iter().map(|degraded| {
        let (message, advice) = (degraded.message.clone(), &degraded.advice);
        Check::new(&degraded.reason, Outcome::Bad, message, advice)
    }));
    checks.extend(status.sandbox.as_ref().map(|view| {
        let privileges = crate::render::sandbox(view);
        if view.no_new_privs {
            Check::good("sandbox", format!("privileges of the agent: {privileges}"))
        } else {
            let text = format!("the agent keeps its privileges: {privileges}");
            let advice = "Start the agent without `--sandbox off`.";
            Check::new("sandbox", Outcome::Warning, text, advice)
        }
    }));
    Section {
        name: "agent".to_owned(),
        checks,
    }
}

/// Checks what is visible below `/proc`, `/sys` and `/etc`; `root` is `/`. The agent checks the
/// rest.
fn node(root: &Path, status: Option<&Status>) -> Section {
    let mut checks = Vec::new();
    for (name, file) in [
        ("net.ipv4.ip_forward", "proc/sys/net/ipv4/ip_forward"),
        (
            "net.ipv6.conf.all.forwarding",
            "proc/sys/net/ipv6/conf/all/forwarding",
        ),
    ] {
        let Ok(value) = fs::read_to_string(root.join(file)) else {
            continue;
        };
        checks.push(match value.trim() {
            // A running agent turns on what its networks need.
            "0" if status.is_none() => Check::new(
                "forwarding-off",
                Outcome::Warning,
                format!("{name} is 0: packets of pods are not forwarded"),
                "Start the agent, which turns it on, or set it to 1.",
            ),
            value => Check::good("forwarding", format!("{name} is {value}")),
        });
    }
    let pins = root.join(DEFAULT_BPFFS.trim_start_matches('/'));
    checks.push(if pins.exists() {
        Check::good(
            "datapath",
            format!(
                "programs are pinned in {}: pods keep their network without the agent",
                pins.display()
            ),
        )
    } else {
        Check::info(
            "datapath",
            format!("nothing is pinned in {}", pins.display()),
        )
    });
    if root.join(SYSTEMD).exists() {
        checks.push(if root.join(ENABLED_UNIT).symlink_metadata().is_ok() {
            Check::good("unit", "viaductd.service is enabled".to_owned())
        } else {
            Check::info(
                "unit",
                "viaductd.service is not enabled in systemd".to_owned(),
            )
        });
    }
    Section {
        name: "node".to_owned(),
        checks,
    }
}

/// Returns the faults of the configurations. Another order is a fault only where the default
/// network is in use, which the file says.
fn configurations(directory: &Path, found: &Installation, status: Option<&Status>) -> Vec<Check> {
    let directory = directory.display();
    let mut checks = Vec::new();
    for fault in &found.faults {
        let (name, outcome, advice) = match fault {
            // Lists of bridge and the others are served too, so this need not be a fault.
            InstallationFault::NotConfigured => (
                "conflist-unusable",
                Outcome::Warning,
                "Copy Viaduct's configuration to this directory, unless runtimes read another one.",
            ),
            InstallationFault::Shadowed { .. } => (
                "conflist-shadowed",
                Outcome::Bad,
                "Rename one of the files: runtimes use the first in the order of names.",
            ),
            InstallationFault::PluginMissing { .. } => (
                "plugin-missing",
                Outcome::Bad,
                "Install the plugin in the runtime's CNI directory, or pass --path.",
            ),
            InstallationFault::Invalid { .. } => {
                ("conflist-unusable", Outcome::Bad, "Correct the file.")
            }
        };
        let text = format!("{directory}: {fault}");
        checks.push(Check::new(name, outcome, text, advice));
    }
    if found.faults.is_empty() {
        checks.push(Check::good(
            "conflist",
            format!("{directory}: runtimes find Viaduct's configuration"),
        ));
    }
    let has_ranges = |status: &Status| {
        let mut networks = status.networks.iter();
        networks.any(|network| network.is_default && !network.pools.is_empty())
    };
    if found.uses_default_network && status.is_some_and(|status| !has_ranges(status)) {
        checks.push(Check::new(
            "no-pod-cidr",
            Outcome::Bad,
            format!(
                "{directory}: a configuration uses the default network, which has no address range"
            ),
            "Give the agent a pod CIDR (`--pod-cidr`, `--pod-cidr-file`).",
        ));
    }
    checks
}

/// Compares the release of the plugin with that of the agent.
fn plugin(path: &[PathBuf], status: Option<&Status>) -> Check {
    let Some(program) = invoke::find_plugin("viaduct", path) else {
        return Check::new(
            "plugin",
            Outcome::Warning,
            "the plugin viaduct is in no directory of plugins".to_owned(),
            "Install it in the runtime's CNI directory, or pass --path.",
        );
    };
    let shown = program.display();
    let about = match invoke::plugin_about(&program) {
        Ok(about) => about,
        Err(error) => {
            let text = format!("{shown} cannot be executed: {error}");
            return Check::new("plugin", Outcome::Bad, text, "Install the plugin again.");
        }
    };
    let Some(version) = release(&about) else {
        let text = format!("{shown} is no plugin of Viaduct");
        return Check::new("plugin", Outcome::Bad, text, "Install Viaduct's plugin.");
    };
    match status.map(|status| status.version.agent.as_str()) {
        Some(agent) if agent != version => Check::new(
            "version-skew",
            Outcome::Warning,
            format!("{shown} is of version {version}, and the agent of version {agent}"),
            "Install both of one release; those of neighbouring minor versions understand each other.",
        ),
        _ => Check::good("plugin", format!("{shown} is of version {version}")),
    }
}

/// Returns the version in `CNI viaduct plugin v1.2.3`.
fn release(about: &str) -> Option<&str> {
    let mut words = about.split_whitespace();
    words.find(|word| *word == "viaduct")?;
    words.find(|word| *word == "plugin")?;
    words.next()?.strip_prefix('v')
}

fn kernel(features: &[FeatureView]) -> Section {
    let check = |feature: &FeatureView| {
        let FeatureView {
            name,
            available,
            chosen,
            reason,
        } = feature;
        let text = match (available, reason.as_str()) {
            (true, _) => format!("Kernel feature {name}: available: {chosen}"),
            (false, "") => format!("Kernel feature {name}: missing: {chosen}"),
            (false, reason) => format!("Kernel feature {name}: missing ({reason}): {chosen}"),
        };
        Check::info(name, text)
    };
    Section {
        name: "kernel".to_owned(),
        checks: features.iter().map(check).collect(),
    }
}

#[cfg(test)]
mod tests;
