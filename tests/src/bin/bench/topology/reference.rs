//! The reference plugins, chained as a runtime chains them: bridge with host-local, then portmap or bandwidth. Their rules go to
//! the tables of the `iptables` that they find on their PATH, which is the one that is asked for.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use e2e::{Call, Config, Machine, Mapping, NODE, Sandbox, Verb, WORLD, addresses};
use serde_json::{Value, json};

use super::{POD_CIDR, Path, Topology, crowd, serve_clients, viaduct};
use crate::row::system;

/// Where Debian's package has the plugins, and where everybody else has them.
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

/// What the first pod publishes, so that all chains are there.
const FIRST: Mapping = Mapping::tcp(7999, 80);

/// Which tables the rules go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tables {
    /// The kernel's old tables.
    Legacy,
    /// nftables, by the `iptables` that writes them.
    Nft,
}

impl Tables {
    /// The system in reports.
    pub(crate) fn system(self) -> &'static str {
        match self {
            Self::Legacy => system::LEGACY,
            Self::Nft => system::NFT,
        }
    }

    fn suffix(self) -> &'static str {
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

/// A pod that they have attached.
pub(crate) struct Attached {
    /// Its namespace.
    pub(crate) machine: Machine,
    /// What the last plugin answered.
    pub(crate) result: Value,
    /// What all of them took together.
    pub(crate) took: Duration,
    behind: Behind,
}

/// The plugin behind `bridge`.
enum Behind {
    /// `portmap`, with these ports.
    Ports(Vec<Mapping>),
    /// `bandwidth`, with these limits.
    Limits(Value),
}

impl Behind {
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
    /// A node with one pod, which publishes a port, and with rules for `others` more.
    pub(crate) fn start(tables: Tables, others: u16) -> Result<Self> {
        let mut reference = Self::on(Sandbox::new()?, tables, POD_CIDR)?;
        let machine = reference.sandbox.machine("pod-a")?;
        reference.first = Some(reference.add(machine, &[FIRST])?);
        crowd::reference(&reference, others)?;
        Ok(reference)
    }

    /// A node without pods, which will come out of `cidr`.
    pub(crate) fn on(sandbox: Sandbox, tables: Tables, cidr: &str) -> Result<Self> {
        sandbox.node.sysctl("ipv4/ip_forward", "1")?;
        // As Kubernetes asks for where these plugins are used.
        e2e::filter_bridges(&sandbox.node, true)?;
        Ok(Self {
            sandbox,
            tables,
            cidr: cidr.to_owned(),
            plugins: plugins()?,
            tools: tools(tables)?,
            first: None,
        })
    }

    /// Its name in reports.
    pub(crate) fn system(&self) -> &'static str {
        self.tables.system()
    }

    /// ADD, one plugin after the other.
    pub(crate) fn add(&self, machine: Machine, ports: &[Mapping]) -> Result<Attached> {
        self.attach(machine, Behind::Ports(ports.to_vec()))
    }

    /// ADD of a pod with limits, in the words of the runtime.
    pub(crate) fn add_limited(&self, machine: Machine, limits: &Value) -> Result<Attached> {
        self.attach(machine, Behind::Limits(limits.clone()))
    }

    fn attach(&self, machine: Machine, behind: Behind) -> Result<Attached> {
        let mut attached = Attached {
            machine,
            result: Value::Null,
            took: Duration::ZERO,
            behind,
        };
        for plugin in ["bridge", attached.behind.plugin()] {
            let answer = self.call(Verb::Add, plugin, &attached)?;
            attached.took += answer.took;
            attached.result = answer
                .result()
                .with_context(|| format!("ADD by {plugin}"))?;
        }
        Ok(attached)
    }

    /// DEL, in the other order; what it took.
    pub(crate) fn del(&self, attached: &Attached) -> Result<Duration> {
        let mut took = Duration::ZERO;
        for plugin in [attached.behind.plugin(), "bridge"] {
            let answer = self.call(Verb::Del, plugin, attached)?;
            answer
                .success()
                .with_context(|| format!("DEL by {plugin}"))?;
            took += answer.took;
        }
        Ok(took)
    }

    /// Where a tool is that writes rules into these tables.
    pub(super) fn tool(&self, name: &str) -> String {
        self.tools.path().join(name).display().to_string()
    }

    fn call(&self, verb: Verb, plugin: &str, pod: &Attached) -> Result<e2e::Answer> {
        let mut config = match plugin {
            "bridge" => bridge(&self.cidr),
            _ => pod.behind.config(),
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

pub(super) fn build(tables: Tables, others: u16) -> Result<Topology> {
    let reference = Reference::start(tables, others)?;
    let sandbox = &reference.sandbox;
    let a = reference.first.as_ref().context("the first pod is there")?;
    let b = reference.add(sandbox.machine("pod-b")?, &viaduct::mappings())?;
    let at = *addresses(&b.result)?
        .first()
        .context("a pod has an address")?;
    let world = &sandbox.world;
    serve_clients(world, &sandbox.node, WORLD[0])?;
    let paths = [
        Path {
            from: a.machine.clone(),
            to: b.machine.clone(),
            dial: at,
            at,
        },
        Path {
            from: world.clone(),
            to: b.machine,
            dial: NODE[0],
            at,
        },
        Path {
            from: a.machine.clone(),
            to: world.clone(),
            dial: WORLD[0],
            at: WORLD[0],
        },
    ];
    Ok(Topology {
        system: tables.system(),
        paths,
        _parts: Box::new(reference),
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

/// A folder in which `iptables` and its like are those of `tables`.
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
