//! The measured systems: what attaches the pods.

use std::fs;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::chain::{Chain, PluginSource, newest_reference};
use crate::{Agent, Machine, program};

/// Hostport and port of the pod that is published.
pub(super) const HOSTPORT: u16 = 8080;
pub(super) const PORT: u16 = 7000;

/// A system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum System {
    /// The installed reference plugins.
    Reference,
    /// The newest reference plugins that Debian has.
    NewestReference,
    /// Viaduct with its own list.
    Viaduct,
    /// Viaduct's plugins under the reference's names, with the reference's list.
    Renamed,
}

impl System {
    /// All systems, in the order of the table.
    pub const ALL: [Self; 4] = [
        Self::Reference,
        Self::NewestReference,
        Self::Viaduct,
        Self::Renamed,
    ];

    /// Returns the name in the table.
    pub fn name(self) -> String {
        match self {
            Self::Reference => format!("reference {}", installed_version()),
            Self::NewestReference => {
                let version = newest_reference().map(|(version, _)| version);
                format!("reference {}", version.unwrap_or_default())
            }
            Self::Viaduct => "Viaduct".to_owned(),
            Self::Renamed => "Viaduct, reference's names".to_owned(),
        }
    }

    /// Returns whether its plugins are Viaduct's.
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Viaduct | Self::Renamed)
    }

    /// Returns whether it can be measured here.
    pub fn is_available(self) -> bool {
        self != Self::NewestReference || newest_reference().is_some()
    }

    /// Returns whether its CNI version has STATUS.
    pub(super) fn has_status(self) -> bool {
        self != Self::Reference
    }

    /// Starts the agent that it needs. Under the reference's names, the agent serves only networks
    /// that lists declare.
    pub(super) fn agent(self, node: &Machine) -> Result<Option<Agent>> {
        Ok(match self {
            Self::Reference | Self::NewestReference => None,
            Self::Viaduct => Some(Agent::start(node, &[])?),
            Self::Renamed => Some(Agent::start_with(node, Vec::new())?),
        })
    }

    /// Returns its list, without published ports.
    pub(super) fn list(self) -> Result<Chain> {
        Ok(match self {
            Self::Viaduct => Chain::of_file("1.1.0", &own_list()?, PluginSource::Ours)?,
            Self::Renamed => reference_list("1.1.0", PluginSource::Ours),
            Self::Reference => reference_list("1.0.0", PluginSource::Reference),
            Self::NewestReference => reference_list("1.1.0", PluginSource::NewestReference),
        })
    }
}

/// Returns the list with the hostport.
pub(super) fn publishing(list: Chain) -> Chain {
    let mapping = |protocol: &str| json!({ "hostPort": HOSTPORT, "containerPort": PORT, "protocol": protocol });
    list.with_capability("portMappings", json!([mapping("tcp"), mapping("udp")]))
}

/// Returns the list that `cargo xtask dist` lays out.
fn own_list() -> Result<Value> {
    let folder = program("etc");
    let files = fs::read_dir(&folder).with_context(|| format!("no {}", folder.display()))?;
    let list = files
        .filter_map(|entry| entry.ok().map(|it| it.path()))
        .find(|path| path.extension().is_some_and(|it| it == "conflist"))
        .context("the distribution has no list")?;
    Ok(serde_json::from_str(&fs::read_to_string(list)?)?)
}

/// Returns the list of the reference's plugins that most lists in the field resemble. The addresses
/// are those of the agent's default arguments.
fn reference_list(version: &str, source: PluginSource) -> Chain {
    let bridge = json!({
        "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
        "ipam": {
            "type": "host-local",
            "ranges": [[{ "subnet": "10.244.1.0/24" }], [{ "subnet": "fd00:10:244:1::/64" }]],
            "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
        },
    });
    let limit = 1_000_000_000_u64;
    Chain::new(version, "pods")
        .with(source, bridge)
        .with(source, json!({ "type": "portmap", "snat": true, "capabilities": { "portMappings": true } }))
        .with(source, json!({ "type": "firewall" }))
        .with(source, json!({ "type": "bandwidth", "capabilities": { "bandwidth": true } }))
        .with_capability(
            "bandwidth",
            json!({ "ingressRate": limit, "ingressBurst": limit, "egressRate": limit, "egressBurst": limit }),
        )
}

/// Returns the version of the installed reference plugins, as the package manager has it.
fn installed_version() -> String {
    let status = fs::read_to_string("/var/lib/dpkg/status").unwrap_or_default();
    let package = "Package: containernetworking-plugins\n";
    let entry = status.split("\n\n").find(|it| it.starts_with(package));
    let version = entry.and_then(|it| it.lines().find_map(|line| line.strip_prefix("Version: ")));
    let upstream = version.and_then(|it| it.split(['+', '-']).next());
    upstream.unwrap_or("(installed)").to_owned()
}
