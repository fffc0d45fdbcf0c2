//! Two nodes with limited pods, one under each system, otherwise equal.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use e2e::{Machine, Sandbox};
use serde_json::Value;

use crate::company::Company;
use crate::row::system;
use crate::topology::{POD_CIDR, Reference, Tables, Viaduct, limits, limits_with, usual_flags};

/// One-way delay of [`Distance::Far`], half of the round-trip time.
const FAR: Duration = Duration::from_millis(10);
/// The burst in bits that containerd sets where the pod specifies none.
const PLACEHOLDER: u64 = (1 << 32) - 1;
/// The rate of the pod with that burst, in bits per second.
pub(super) const PLACEHOLDER_RATE: u64 = 100_000_000;

/// Distance of the world: without delay, or with [`FAR`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distance {
    Near,
    Far,
}

/// A node under one system.
pub(super) struct Site {
    node: Node,
    pods: BTreeMap<u64, Machine>,
    placeholder: Machine,
}

enum Node {
    Reference(Reference),
    Viaduct(Viaduct),
}

/// Sets up the reference and Viaduct, each with one pod for each rate.
pub(super) fn pair(company: Company, rates: &[u64], distance: Distance) -> Result<[Site; 2]> {
    Ok([
        reference(company, rates, distance)?,
        viaduct(company, rates, distance)?,
    ])
}

fn reference(company: Company, rates: &[u64], distance: Distance) -> Result<Site> {
    let reference = Reference::on(sandbox(company, distance)?, Tables::Nft, POD_CIDR)?;
    Site::with_pods(Node::Reference(reference), rates)
}

fn viaduct(company: Company, rates: &[u64], distance: Distance) -> Result<Site> {
    let viaduct = Viaduct::on(sandbox(company, distance)?, usual_flags())?;
    Site::with_pods(Node::Viaduct(viaduct), rates)
}

fn sandbox(company: Company, distance: Distance) -> Result<Sandbox> {
    let sandbox = match distance {
        Distance::Near => Sandbox::new()?,
        Distance::Far => Sandbox::with_delay(FAR)?,
    };
    company.join(&sandbox.node, Tables::Nft)?;
    Ok(sandbox)
}

impl Site {
    fn with_pods(node: Node, rates: &[u64]) -> Result<Self> {
        let pods = rates
            .iter()
            .map(|rate| Ok((*rate, node.attach(&format!("pod-{rate}"), *rate)?)))
            .collect::<Result<_>>()?;
        let placeholder =
            node.attach_with("placeholder", &limits_with(PLACEHOLDER_RATE, PLACEHOLDER))?;
        Ok(Self {
            node,
            pods,
            placeholder,
        })
    }

    /// Returns the name of the system in reports.
    pub(super) fn system(&self) -> &'static str {
        match self.node {
            Node::Reference(_) => system::NFT,
            Node::Viaduct(_) => system::VIADUCT,
        }
    }

    /// Returns the node, if its system is Viaduct.
    pub(super) fn viaduct(&self) -> Option<&Viaduct> {
        match &self.node {
            Node::Reference(_) => None,
            Node::Viaduct(viaduct) => Some(viaduct),
        }
    }

    fn sandbox(&self) -> &Sandbox {
        match &self.node {
            Node::Reference(reference) => &reference.sandbox,
            Node::Viaduct(viaduct) => &viaduct.sandbox,
        }
    }

    pub(super) fn world(&self) -> &Machine {
        &self.sandbox().world
    }

    /// Returns the CPU time that the delay of the link has cost so far.
    pub(super) fn delay_cpu_time(&self) -> Duration {
        self.sandbox().delay_cpu_time()
    }

    /// Returns the pod with this rate.
    pub(super) fn pod(&self, rate: u64) -> Result<&Machine> {
        self.pods.get(&rate).context("no pod has this rate")
    }

    /// Returns the pod with containerd's default burst.
    pub(super) fn placeholder(&self) -> &Machine {
        &self.placeholder
    }

    /// Attaches another pod with this rate in both directions.
    pub(super) fn attach(&self, name: &str, rate: u64) -> Result<Machine> {
        self.node.attach(name, rate)
    }

    /// Returns the cgroup of the node's containers, if the system uses it.
    pub(super) fn cgroup(&self) -> Option<PathBuf> {
        let cgroup = self.viaduct()?.agent.cgroup();
        cgroup.map(Path::to_owned)
    }

    /// Runs `body` in the cgroup of the node's containers; sockets that it opens stay members of
    /// it.
    pub(super) fn in_container<T>(&self, body: impl FnOnce() -> T) -> Result<T> {
        match self.cgroup() {
            Some(cgroup) => e2e::in_cgroup(&cgroup, body),
            None => Ok(body()),
        }
    }
}

impl Node {
    fn attach(&self, name: &str, rate: u64) -> Result<Machine> {
        self.attach_with(name, &limits(rate))
    }

    fn attach_with(&self, name: &str, limits: &Value) -> Result<Machine> {
        match self {
            Self::Reference(node) => {
                let machine = node.sandbox.machine(name)?;
                Ok(node.add_limited(machine, limits)?.machine)
            }
            Self::Viaduct(node) => Ok(node.attach_limited(name, limits)?.machine),
        }
    }
}
