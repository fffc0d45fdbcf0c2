//! Two nodes with limited pods, one under each system, alike in everything else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use e2e::{Machine, Sandbox};
use serde_json::Value;

use crate::row::system;
use crate::topology::{POD_CIDR, Reference, Tables, Viaduct, limits, limits_with, usual_flags};

/// How long a packet is under way to a world that is far away; half of a round trip.
const FAR: Duration = Duration::from_millis(10);
/// containerd's burst, where nobody has asked for one.
const PLACEHOLDER: u64 = (1 << 32) - 1;
/// The rate of the pod with that burst.
pub(super) const PLACEHOLDER_RATE: u64 = 100_000_000;

/// How far away the world is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
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

/// The reference and Viaduct, each with a pod for every rate.
pub(super) fn pair(rates: &[u64], wire: Wire) -> Result<[Site; 2]> {
    Ok([reference(rates, wire)?, viaduct(rates, wire)?])
}

fn reference(rates: &[u64], wire: Wire) -> Result<Site> {
    let reference = Reference::on(sandbox(wire)?, Tables::Nft, POD_CIDR)?;
    Site::with_pods(Node::Reference(reference), rates)
}

fn viaduct(rates: &[u64], wire: Wire) -> Result<Site> {
    let viaduct = Viaduct::on(sandbox(wire)?, usual_flags())?;
    Site::with_pods(Node::Viaduct(viaduct), rates)
}

fn sandbox(wire: Wire) -> Result<Sandbox> {
    match wire {
        Wire::Near => Sandbox::new(),
        Wire::Far => Sandbox::distant(FAR),
    }
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

    /// In reports.
    pub(super) fn system(&self) -> &'static str {
        match self.node {
            Node::Reference(_) => system::NFT,
            Node::Viaduct(_) => system::VIADUCT,
        }
    }

    /// Viaduct's node, if it is that.
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

    /// How long threads have been busy with making the wire long, so far.
    pub(super) fn wire_busy(&self) -> Duration {
        self.sandbox().wire_busy()
    }

    /// The pod of that rate.
    pub(super) fn pod(&self, rate: u64) -> Result<&Machine> {
        self.pods.get(&rate).context("no pod has that rate")
    }

    /// A pod whose runtime has made up a burst.
    pub(super) fn placeholder(&self) -> &Machine {
        &self.placeholder
    }

    /// Attaches another pod.
    pub(super) fn attach(&self, name: &str, rate: u64) -> Result<Machine> {
        self.node.attach(name, rate)
    }

    /// The cgroup of the node's containers, where the system cares.
    pub(super) fn cgroup(&self) -> Option<PathBuf> {
        let cgroup = self.viaduct()?.agent.cgroup();
        cgroup.map(Path::to_owned)
    }

    /// Opens sockets as a program in a container of this node.
    pub(super) fn in_container<T>(&self, body: impl FnOnce() -> T) -> Result<T> {
        match self.cgroup() {
            Some(cgroup) => e2e::within(&cgroup, body),
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
