//! Viaduct: the real agent, the real plugin.

use anyhow::{Context as _, Result};
use e2e::{Agent, Config, Mapping, NODE, Pod, Sandbox, WORLD};
use serde_json::{Value, json};

use super::{POD_CIDR, PORTS, Path, Topology, crowd, serve_clients};
use crate::row::system;

/// A node with an agent, for families that attach pods themselves. Fields are dropped in this order.
pub(crate) struct Viaduct {
    /// The agent.
    pub(crate) agent: Agent,
    /// The node and its world.
    pub(crate) sandbox: Sandbox,
    crowd: Vec<Pod>,
}

impl Viaduct {
    /// Starts an agent with room for every pod of a measurement, and publishes `others` ports that nobody uses.
    pub(crate) fn start(others: u16) -> Result<Self> {
        let mut viaduct = Self::on(Sandbox::new()?, usual_flags())?;
        viaduct.crowd = crowd::viaduct(&viaduct, others)?;
        Ok(viaduct)
    }

    /// Starts an agent with `flags` on the sandbox's node.
    pub(crate) fn on(sandbox: Sandbox, flags: Vec<String>) -> Result<Self> {
        Ok(Self {
            agent: Agent::start_with(&sandbox.node, flags)?,
            sandbox,
            crowd: Vec::new(),
        })
    }

    /// A pod that publishes `ports`.
    pub(crate) fn attach(&self, name: &str, ports: &[Mapping]) -> Result<Pod> {
        let mut pod = self.sandbox.pod(name)?;
        pod.add_with(Config::new("1.1.0").publish(ports))?;
        Ok(pod)
    }

    /// A pod with limits, in the words of the runtime.
    pub(crate) fn attach_limited(&self, name: &str, limits: &Value) -> Result<Pod> {
        let mut pod = self.sandbox.pod(name)?;
        let runtime = json!({ "bandwidth": limits });
        pod.add_with(Config::new("1.1.0").with("runtimeConfig", runtime))?;
        Ok(pod)
    }
}

/// The address range of a node whose pods nobody publishes, as a flag of the agent.
pub(crate) fn usual_flags() -> Vec<String> {
    vec![format!("--pod-cidr={POD_CIDR}")]
}

/// [`PORTS`], by TCP and by UDP.
pub(crate) fn mappings() -> Vec<Mapping> {
    PORTS
        .into_iter()
        .flat_map(|port| Mapping::both(port, port))
        .collect()
}

pub(super) fn build(others: u16) -> Result<Topology> {
    let viaduct = Viaduct::start(others)?;
    let a = viaduct.attach("pod-a", &[])?;
    let b = viaduct.attach("pod-b", &mappings())?;
    let at = *b.addresses.first().context("a pod has an address")?;
    let (node, world) = (&viaduct.sandbox.node, &viaduct.sandbox.world);
    serve_clients(world, node, WORLD[0])?;
    let paths = [
        Path {
            from: a.machine.clone(),
            to: b.machine.clone(),
            dial: at,
            at,
        },
        Path {
            from: world.clone(),
            to: b.machine.clone(),
            dial: NODE[0],
            at,
        },
        Path {
            from: a.machine,
            to: world.clone(),
            dial: WORLD[0],
            at: WORLD[0],
        },
    ];
    Ok(Topology {
        system: system::VIADUCT,
        paths,
        _parts: Box::new(viaduct),
    })
}
