//! The reference plugins, chained as by a runtime: `bridge` with `host-local`, then `portmap` or
//! `bandwidth`. The `iptables` on their PATH decides whether their rules are legacy or nftables.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use e2e::{Call, Config, Machine, Mapping, NODE, Sandbox, Verb, WORLD, addresses};
use serde_json::{Value, json};

use super::{POD_CIDR, Path, Topology, other_hostports, serve_clients, viaduct};
use crate::company::Company;
use crate::row::system;

/// Folders in which Debian and other distributions install the plugins.
const FOLDERS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

/// The programs that `portmap` and `bridge` look for.
const TOOLS: [&str; 6] = [
    "iptables",
    "iptables-save",
    "iptables-restore",
    "ip6tables",
    "ip6tables-save",
    "ip6tables-restore",
];

/// Hostport of the first pod, whose ADD creates the base chains.
const FIRST: Mapping = Mapping::tcp(7999, 80);

/// Kind of tables with the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tables {
    /// The kernel's old tables, with `iptables-legacy`.
    Legacy,
    /// nftables, with `iptables-nft`.
    Nft,
}

impl Tables {
    /// Returns the name of the system in reports.
    pub(crate) fn system(self) -> &'static str {
        match self {
            Self::Legacy => system::LEGACY,
            Self::Nft => system::NFT,
        }
    }

    /// Returns the word in the names of the tools.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Nft => "nft",
        }
    }
}

/// A node whose runtime calls the reference plugins.
pub(crate) struct Reference {
    /// The node and its world.
    pub(crate) sandbox: Sandbox,
    tables: Tables,
    cidr: String,
    plugins: PathBuf,
    tools: tempfile::TempDir,
    first: Option<Attached>,
}

/// A pod that the reference plugins have attached.
pub(crate) struct Attached {
    /// Network namespace of the pod.
    pub(crate) machine: Machine,
    /// Result of the last plugin.
    pub(crate) result: Value,
    /// Total run time of all plugins.
    pub(crate) took: Duration,
    chained: ChainedPlugin,
}

/// The plugin after `bridge`.
enum ChainedPlugin {
    /// `portmap`, with these ports.
    Ports(Vec<Mapping>),
    /// `bandwidth`, with these limits.
    Limits(Value),
}

impl ChainedPlugin {
    fn plugin(&self) -> &'static str {
        match self {
            Self::Ports(_) => "portmap",
            Self::Limits(_) => "bandwidth",
        }
    }

    fn config(&self) -> Value {
        match self {
            Self::Ports(ports) => portmap(ports),
            Self::Limits(limits) => bandwidth(limits),
        }
    }
}

impl Reference {
    /// Creates a node with one pod, which has a hostport, and with the rules of `others` more
    /// hostports. The rules of `company` are there before.
    pub(crate) fn start(tables: Tables, company: Company, others: u16) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        company.join(&sandbox.node, tables)?;
        let mut reference = Self::on(sandbox, tables, POD_CIDR)?;
        let machine = reference.sandbox.machine("pod-a")?;
        reference.first = Some(reference.add(machine, &[FIRST])?);
        other_hostports::reference(&reference, others)?;
        Ok(reference)
    }

    /// Prepares a node without pods; `cidr` is its pod CIDR.
    pub(crate) fn on(sandbox: Sandbox, tables: Tables, cidr: &str) -> Result<Self> {
        sandbox.node.sysctl("ipv4/ip_forward", "1")?;
        // Kubernetes requires it with these plugins.
        e2e::set_bridge_netfilter(&sandbox.node, true)?;
        Ok(Self {
            sandbox,
            tables,
            cidr: cidr.to_owned(),
            plugins: plugins()?,
            tools: tools(tables)?,
            first: None,
        })
    }

    /// Returns the name of the system in reports.
    pub(crate) fn system(&self) -> &'static str {
        self.tables.system()
    }

    /// Executes ADD of a pod with hostports.
    pub(crate) fn add(&self, machine: Machine, ports: &[Mapping]) -> Result<Attached> {
        self.attach(machine, ChainedPlugin::Ports(ports.to_vec()))
    }

    /// Executes ADD of a pod with limits, given as CNI bandwidth object.
    pub(crate) fn add_limited(&self, machine: Machine, limits: &Value) -> Result<Attached> {
        self.attach(machine, ChainedPlugin::Limits(limits.clone()))
    }

    fn attach(&self, machine: Machine, chained: ChainedPlugin) -> Result<Attached> {
        let mut attached = Attached {
            machine,
            result: Value::Null,
            took: Duration::ZERO,
            chained,
        };
        for plugin in ["bridge", attached.chained.plugin()] {
            let answer = self.call(Verb::Add, plugin, &attached)?;
            attached.took += answer.took;
            attached.result = answer
                .result()
                .with_context(|| format!("ADD by {plugin}"))?;
        }
        Ok(attached)
    }

    /// Executes DEL in reverse order; returns the total run time.
    pub(crate) fn del(&self, attached: &Attached) -> Result<Duration> {
        let mut took = Duration::ZERO;
        for plugin in [attached.chained.plugin(), "bridge"] {
            let answer = self.call(Verb::Del, plugin, attached)?;
            answer
                .success()
                .with_context(|| format!("DEL by {plugin}"))?;
            took += answer.took;
        }
        Ok(took)
    }

    /// Returns the path of an iptables tool for these tables.
    pub(super) fn tool(&self, name: &str) -> String {
        self.tools.path().join(name).display().to_string()
    }

    fn call(&self, verb: Verb, plugin: &str, pod: &Attached) -> Result<e2e::Answer> {
        let mut config = match plugin {
            "bridge" => bridge(&self.cidr),
            _ => pod.chained.config(),
        };
        if !pod.result.is_null() {
            config["prevResult"] = pod.result.clone();
        }
        let machine = &pod.machine;
        let path = self.plugins.join(plugin);
        let tools = self.tools.path().display();
        Call::new(verb, machine.name(), &machine.path(), &Config(config))
            .set("CNI_PATH", &self.plugins.display().to_string())
            .set("PATH", &format!("{tools}:/usr/sbin:/usr/bin:/sbin:/bin"))
            .run_as(&self.sandbox.node, &path.display().to_string())
    }
}

pub(super) fn build(tables: Tables, company: Company, others: u16) -> Result<Topology> {
    let reference = Reference::start(tables, company, others)?;
    let sandbox = &reference.sandbox;
    let a = reference
        .first
        .as_ref()
        .context("the first pod is attached")?;
    let b = reference.add(sandbox.machine("pod-b")?, &viaduct::mappings())?;
    let at = *addresses(&b.result)?
        .first()
        .context("a pod has an address")?;
    let world = &sandbox.world;
    serve_clients(world, &sandbox.node, WORLD[0])?;
    let mut paths = vec![
        Path {
            from: a.machine.clone(),
            to: b.machine.clone(),
            target: at,
            at,
        },
        Path {
            from: world.clone(),
            to: b.machine.clone(),
            target: NODE[0],
            at,
        },
        Path {
            from: a.machine.clone(),
            to: world.clone(),
            target: WORLD[0],
            at: WORLD[0],
        },
    ];
    paths.extend(
        company
            .serve(&sandbox.node, tables, at)?
            .map(|target| Path {
                from: a.machine.clone(),
                to: b.machine,
                target,
                at,
            }),
    );
    Ok(Topology {
        system: tables.system(),
        paths,
        parts: Box::new(reference),
    })
}

fn bridge(cidr: &str) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "reference",
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": true,
        "ipMasq": true,
        "hairpinMode": true,
        "ipam": {
            "type": "host-local",
            "dataDir": "/run/host-local",
            "ranges": [[{ "subnet": cidr }]],
            "routes": [{ "dst": "0.0.0.0/0" }],
        },
    })
}

fn portmap(ports: &[Mapping]) -> Value {
    let config = json!({
        "cniVersion": "1.0.0",
        "name": "reference",
        "type": "portmap",
        "capabilities": { "portMappings": true },
    });
    Config(config).publish(ports).0
}

fn bandwidth(limits: &Value) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "reference",
        "type": "bandwidth",
        "capabilities": { "bandwidth": true },
        "runtimeConfig": { "bandwidth": limits },
    })
}

fn plugins() -> Result<PathBuf> {
    let mut folders = FOLDERS.into_iter().map(PathBuf::from);
    folders
        .find(|folder| folder.join("bridge").exists())
        .context("the reference plugins are missing; `cargo xtask setup` installs them")
}

/// Creates a folder with links to the iptables tools of this kind.
fn tools(tables: Tables) -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    for tool in TOOLS {
        let (family, rest) = tool
            .split_once('-')
            .map_or((tool, String::new()), |(family, rest)| {
                (family, format!("-{rest}"))
            });
        let target = format!("/usr/sbin/{family}-{}{rest}", tables.suffix());
        std::os::unix::fs::symlink(target, folder.path().join(tool))?;
    }
    Ok(folder)
}
