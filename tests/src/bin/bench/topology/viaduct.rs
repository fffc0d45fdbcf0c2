//! Viaduct, with the real agent and the real plugin.

use anyhow::{Context as _, Result};
use e2e::{Agent, Config, Mapping, NODE, Pod, Sandbox, WORLD};
use serde_json::{Value, json};

use super::{POD_CIDR, PORTS, Path, Tables, Topology, other_hostports, serve_clients};
use crate::company::Company;
use crate::row::system;

/// File of network policies, in the mount namespace of the node.
const POLICIES: &str = "/run/policies.json";

/// A node with an agent, for families that attach pods themselves. Fields are dropped in this
/// order.
pub(crate) struct Viaduct {
    /// The agent under test.
    pub(crate) agent: Agent,
    /// The node and its world.
    pub(crate) sandbox: Sandbox,
    others: Vec<Pod>,
}

impl Viaduct {
    /// Starts an agent with the benchmark's pod CIDR, and creates `others` hostports without
    /// traffic.
    pub(crate) fn start(company: Company, others: u16) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        company.join(&sandbox.node, Tables::Nft)?;
        let mut viaduct = Self::on(sandbox, usual_flags())?;
        viaduct.others = other_hostports::viaduct(&viaduct, others)?;
        Ok(viaduct)
    }

    /// Starts an agent with `flags` on the sandbox's node.
    pub(crate) fn on(sandbox: Sandbox, flags: Vec<String>) -> Result<Self> {
        Ok(Self {
            agent: Agent::start_with(&sandbox.node, flags)?,
            sandbox,
            others: Vec::new(),
        })
    }

    /// Returns the number of flow directions that bypass other software's rules.
    pub(crate) fn offloaded(&self) -> Result<u64> {
        let status = self.agent.get("/v1/status")?;
        (status["bypass"]["offload"]["offloaded"].as_u64()).context("no count in the status")
    }

    /// Replaces all network policies.
    pub(super) fn set_policies(&self, policies: &Value) -> Result<()> {
        let write = || std::fs::write(POLICIES, policies.to_string());
        self.sandbox.node.mounts().run(write)?;
        self.agent
            .ctl(&format!("policies set {POLICIES}"))
            .map(drop)
    }

    /// Attaches a pod with hostports.
    pub(crate) fn attach(&self, name: &str, ports: &[Mapping]) -> Result<Pod> {
        self.attach_with(name, Config::new("1.1.0").publish(ports))
    }

    /// Attaches a pod with limits, given as CNI bandwidth object.
    pub(crate) fn attach_limited(&self, name: &str, limits: &Value) -> Result<Pod> {
        let runtime = json!({ "bandwidth": limits });
        self.attach_with(name, Config::new("1.1.0").with("runtimeConfig", runtime))
    }

    fn attach_with(&self, name: &str, config: Config) -> Result<Pod> {
        let mut pod = self.sandbox.pod(name)?;
        pod.add_with(config)?;
        Ok(pod)
    }
}

/// Returns the agent's flags: the pod CIDR of the benchmark.
pub(crate) fn usual_flags() -> Vec<String> {
    vec![format!("--pod-cidr={POD_CIDR}")]
}

/// Returns mappings of [`PORTS`], with TCP and UDP.
pub(crate) fn mappings() -> Vec<Mapping> {
    PORTS
        .into_iter()
        .flat_map(|port| Mapping::both(port, port))
        .collect()
}

pub(super) fn build(company: Company, others: u16) -> Result<Topology> {
    with_pods(company, others, system::VIADUCT, Config::new("1.1.0"))
}

/// Builds Viaduct for the comparison with one that has network policies.
pub(super) fn without_policies(company: Company) -> Result<Topology> {
    with_pods(company, 0, system::WITHOUT_POLICIES, Config::new("1.1.0"))
}

/// Builds Viaduct with pods of a network that its configuration declares, whose frames are checked
/// or not (`macspoofchk`): the default network always checks.
pub(super) fn declared(company: Company, is_checked: bool) -> Result<Topology> {
    let ipam = json!({ "type": "host-local", "subnet": "10.60.0.0/24" });
    let config = Config::new("1.1.0")
        .with("name", json!("declared"))
        .with("bridge", json!("cbr1"))
        .with("isDefaultGateway", json!(true))
        .with("ipMasq", json!(true))
        .with("hairpinMode", json!(true))
        .with("macspoofchk", json!(is_checked))
        .with("ipam", ipam);
    let name = if is_checked {
        system::VIADUCT
    } else {
        system::UNCHECKED
    };
    with_pods(company, 0, name, config)
}

fn with_pods(
    company: Company,
    others: u16,
    system: &'static str,
    config: Config,
) -> Result<Topology> {
    let viaduct = Viaduct::start(company, others)?;
    let a = viaduct.attach_with("pod-a", config.clone())?;
    let b = viaduct.attach_with("pod-b", config.publish(&mappings()))?;
    let at = *b.addresses.first().context("a pod has an address")?;
    let (node, world) = (&viaduct.sandbox.node, &viaduct.sandbox.world);
    serve_clients(world, node, WORLD[0])?;
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
    paths.extend(company.serve(node, Tables::Nft, at)?.map(|target| Path {
        from: a.machine,
        to: b.machine.clone(),
        target,
        at,
    }));
    Ok(Topology {
        system,
        paths,
        parts: Box::new(viaduct),
    })
}
