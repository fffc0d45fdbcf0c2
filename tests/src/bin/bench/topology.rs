//! The same three machines under every system: a node with pods on it and a world beside it.

mod crowd;
mod forwarding;
mod reference;
mod viaduct;
mod wire;

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use e2e::Machine;
use serde_json::{Value, json};

pub(crate) use forwarding::Forwarding;
pub(crate) use reference::{Attached, Reference, Tables};
pub(crate) use viaduct::{Viaduct, mappings, usual_flags};

/// Addresses of all pods that translating systems attach: as many as any measurement needs.
pub(crate) const POD_CIDR: &str = "10.244.0.0/20";

/// Ports of the second pod that the node publishes, if it does: the same number on both sides.
pub(crate) const PORTS: [u16; 3] = [7001, 7002, 5201];

/// Bits that may pass at once: what a large packet needs at least, and a hundredth of a second of the rate. The
/// reference keeps its queue as short as that allows.
const LEAST_BURST: u64 = 1 << 20;

/// Who sends to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Between two pods of the node.
    PodToPod,
    /// From the world to a port of the node that leads to a pod.
    WorldToHostport,
    /// From a pod to the world, with the node's address.
    PodToWorld,
}

impl Way {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::PodToPod, Self::WorldToHostport, Self::PodToWorld];

    /// In reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PodToPod => "pod → pod",
            Self::WorldToHostport => "world → hostport",
            Self::PodToWorld => "pod → world",
        }
    }
}

/// One way through one system.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    /// Who sends.
    pub(crate) from: Machine,
    /// Who receives.
    pub(crate) to: Machine,
    /// The address that is dialled.
    pub(crate) dial: IpAddr,
    /// The address that is dialled at.
    pub(crate) at: IpAddr,
}

impl Path {
    /// Where a client connects to.
    pub(crate) fn dials(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.dial, port)
    }

    /// Where a server listens.
    pub(crate) fn serves(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.at, port)
    }
}

/// A system with its two pods and its world. What holds it together is kept for as long as it is measured.
pub(crate) struct Topology {
    /// Its name in reports.
    pub(crate) system: &'static str,
    paths: [Path; 3],
    _parts: Box<dyn std::any::Any + Send + Sync>,
}

impl Topology {
    /// The way through it.
    pub(crate) fn path(&self, way: Way) -> &Path {
        &self.paths[way as usize]
    }
}

/// Where clients of the world have their addresses, one for each number.
pub(crate) fn client(number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    [198, 18, high, low].into()
}

/// Gives a machine the addresses of all clients. The machine next to it reaches them at `at`.
fn serve_clients(machine: &Machine, next: &Machine, at: IpAddr) -> Result<()> {
    let all = "198.18.0.0/16";
    machine.call(&format!("ip route add local {all} dev lo"))?;
    next.call(&format!("ip route add {all} via {at}"))?;
    Ok(())
}

/// One of each system.
pub(crate) fn all() -> Result<Vec<Topology>> {
    let mut all = plain()?;
    all.extend(translating(0)?);
    Ok(all)
}

/// Those that translate nothing: what the kernel takes in any case.
pub(crate) fn plain() -> Result<Vec<Topology>> {
    Ok(vec![wire::build()?, forwarding::build()?])
}

/// Those that publish ports, with this many others already published when the measured pod is attached.
pub(crate) fn translating(others: u16) -> Result<Vec<Topology>> {
    Ok(vec![
        reference::build(Tables::Legacy, others)?,
        reference::build(Tables::Nft, others)?,
        viaduct::build(others)?,
    ])
}

/// The same limit in both directions, in bits per second, with as short a burst as it allows.
pub(crate) fn limits(rate: u64) -> Value {
    limits_with(rate, LEAST_BURST.max(rate / 100))
}

/// The same with a burst of so many bits, in the words of a runtime.
pub(crate) fn limits_with(rate: u64, burst: u64) -> Value {
    json!({ "ingressRate": rate, "ingressBurst": burst, "egressRate": rate, "egressBurst": burst })
}
