//! The same topology under each system: a node with two pods, and a world.

mod bare_veth;
mod docker;
mod forwarding;
mod idle_driver;
mod nodes;
mod other_hostports;
mod reference;
mod viaduct;

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use e2e::Machine;
use serde_json::{Value, json};

use crate::company::Company;

pub(crate) use docker::{DockerNode, Driver};
pub(crate) use forwarding::Forwarding;
pub(crate) use nodes::{
    flannel as flannel_nodes, routing as routing_nodes, viaduct as viaduct_nodes,
};
pub(crate) use reference::{Attached, Reference, Tables};
pub(crate) use viaduct::{Viaduct, mappings, usual_flags};

/// Pod CIDR of the systems with NAT: large enough for all measurements.
pub(crate) const POD_CIDR: &str = "10.244.0.0/20";

/// Ports of the second pod, and hostports with the same numbers where the system has hostports.
pub(crate) const PORTS: [u16; 3] = [7001, 7002, 5201];

/// Smallest burst in bits, enough for a large packet; else it is a hundredth of a second at the
/// rate. The reference keeps its queue as short as the burst allows.
const LEAST_BURST: u64 = 1 << 20;

/// Sender and receiver of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Between two pods of the node.
    PodToPod,
    /// From the world to a hostport of the second pod.
    WorldToHostport,
    /// From a pod to the world, masqueraded as the node.
    PodToWorld,
    /// From a pod to the cluster IP of a service of kube-proxy, whose endpoint is the second pod.
    PodToService,
}

impl Way {
    /// Those that each system has, with and without other software.
    pub(crate) const ALL: [Self; 3] = [Self::PodToPod, Self::WorldToHostport, Self::PodToWorld];

    /// Returns the name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PodToPod => "pod → pod",
            Self::WorldToHostport => "world → hostport",
            Self::PodToWorld => "pod → world",
            Self::PodToService => "pod → ClusterIP",
        }
    }
}

/// The endpoints of one [`Way`] in one system.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    /// The sender.
    pub(crate) from: Machine,
    /// The receiver.
    pub(crate) to: Machine,
    /// The address that the client connects to.
    pub(crate) target: IpAddr,
    /// The receiver's own address, on which the server listens.
    pub(crate) at: IpAddr,
}

impl Path {
    /// Returns the address and port that a client connects to.
    pub(crate) fn target(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.target, port)
    }

    /// Returns the address and port that a server listens on.
    pub(crate) fn serves(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.at, port)
    }
}

/// A system with its two pods and its world. Dropping it removes its namespaces and processes.
pub(crate) struct Topology {
    /// Name of the system in reports.
    pub(crate) system: &'static str,
    /// In the order of [`Way`]; the last one only where there are services.
    paths: Vec<Path>,
    parts: Box<dyn std::any::Any + Send + Sync>,
}

impl Topology {
    /// Returns the node with its agent; `None` for other systems.
    pub(crate) fn viaduct(&self) -> Option<&Viaduct> {
        self.parts.downcast_ref::<Viaduct>()
    }

    /// Sets the name of the system in reports.
    pub(crate) fn named(mut self, system: &'static str) -> Self {
        self.system = system;
        self
    }

    /// Returns whether the system has this way.
    pub(crate) fn has(&self, way: Way) -> bool {
        self.paths.len() > way as usize
    }

    /// Returns the endpoints of this way.
    pub(crate) fn path(&self, way: Way) -> &Path {
        &self.paths[way as usize]
    }
}

/// Returns the address of a client in the world, from 198.18.0.0/16.
pub(crate) fn client(number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    [198, 18, high, low].into()
}

/// Makes all client addresses local on `machine`, and adds a route by `at` on the machine next to
/// it.
fn serve_clients(machine: &Machine, next: &Machine, at: IpAddr) -> Result<()> {
    let all = "198.18.0.0/16";
    machine.call(&format!("ip route add local {all} dev lo"))?;
    next.call(&format!("ip route add {all} via {at}"))?;
    Ok(())
}

/// Creates one topology for each system, with the rules of `company` on the nodes.
pub(crate) fn all(company: Company) -> Result<Vec<Topology>> {
    let mut all = plain(company)?;
    all.extend(translating(company, 0)?);
    Ok(all)
}

/// Creates the topologies of the systems without NAT. A bare veth pair has no rules.
pub(crate) fn plain(company: Company) -> Result<Vec<Topology>> {
    Ok(vec![bare_veth::build()?, forwarding::build(company)?])
}

/// Creates a bare veth pair.
pub(crate) fn bare() -> Result<Topology> {
    bare_veth::build()
}

/// Creates Viaduct with and without checks of what pods send.
pub(crate) fn checked_and_unchecked(company: Company) -> Result<Vec<Topology>> {
    let build = |is_checked| viaduct::declared(company, is_checked);
    Ok(vec![build(true)?, build(false)?])
}

/// Creates Viaduct with these network policies, as `PUT /v1/policies` takes them, and without any.
pub(crate) fn with_and_without_policies(
    company: Company,
    policies: &Value,
) -> Result<Vec<Topology>> {
    let with = viaduct::build(company, 0)?;
    if let Some(viaduct) = with.viaduct() {
        viaduct.set_policies(policies)?;
    }
    Ok(vec![with, viaduct::without_policies(company)?])
}

/// Creates the topologies of the systems with hostports, with `others` hostports before the
/// measured pod is attached.
pub(crate) fn translating(company: Company, others: u16) -> Result<Vec<Topology>> {
    Ok(vec![
        reference::build(Tables::Legacy, company, others)?,
        reference::build(Tables::Nft, company, others)?,
        viaduct::build(company, others)?,
    ])
}

/// Returns the CNI bandwidth object for the same rate in both directions, in bits per second, with
/// a short burst.
pub(crate) fn limits(rate: u64) -> Value {
    limits_with(rate, LEAST_BURST.max(rate / 100))
}

/// Returns the CNI bandwidth object for the same rate and burst in both directions, in bits per
/// second and bits.
pub(crate) fn limits_with(rate: u64, burst: u64) -> Value {
    json!({ "ingressRate": rate, "ingressBurst": burst, "egressRate": rate, "egressBurst": burst })
}
