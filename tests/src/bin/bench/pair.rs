//! Measures two nodes and a client, each on its own machine: client to hostport, pod to pod of the
//! other node, pod to client, and both directions of a pod with a bandwidth limit.
//!
//! `cargo xtask vm --topology pair` boots three guests and runs this on the client; `vagrant/` does
//! the same with persistent machines. Each machine has one network card for each system, on a
//! switch of its own, so that all systems run at the same time and are measured in turns. Card 0
//! carries the client's measurement requests to the nodes.

mod remote;
mod role;
mod site;

use std::net::IpAddr;

use anyhow::{Context as _, Result};

use crate::plan::Plan;
use crate::row::{Row, Rows};
use remote::{Measurement, Node, Request};
use role::Role;
use site::{LIMIT, SYSTEMS, Site};

/// Sender and receiver of a measurement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ClientToHostport,
    PodToOtherNode,
    PodToClient,
    LimitedToOtherNode,
    OtherNodeToLimited,
}

impl Way {
    const ALL: [Self; 5] = [
        Self::ClientToHostport,
        Self::PodToOtherNode,
        Self::PodToClient,
        Self::LimitedToOtherNode,
        Self::OtherNodeToLimited,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::ClientToHostport => "client → hostport",
            Self::PodToOtherNode => "pod → pod of the other node",
            Self::PodToClient => "pod → client",
            Self::LimitedToOtherNode => "pod limited to 10 Mbit/s → pod of the other node",
            Self::OtherNodeToLimited => "pod of the other node → pod limited to 10 Mbit/s",
        }
    }

    fn is_limited(self) -> bool {
        matches!(self, Self::LimitedToOtherNode | Self::OtherNodeToLimited)
    }

    /// Returns the measurements that are made in this direction.
    fn measurements(self) -> &'static [Measurement] {
        if self.is_limited() {
            return &[Measurement::Limited, Measurement::UnderLoad];
        }
        &[
            Measurement::RequestResponse,
            Measurement::Tcp,
            Measurement::Udp,
        ]
    }
}

/// The three machines, as the client uses them.
struct Pair {
    client: Vec<Site>,
    nodes: [Node; 2],
}

/// Sets up a node's systems, and measures on request of the client until it disconnects.
pub(crate) fn serve() -> Result<()> {
    let role = Role::own()?;
    let sites = site::all(role)?;
    remote::serve(role, &sites)
}

/// Measures all systems, as the client.
pub(crate) fn measure(plan: &Plan) -> Result<Vec<Row>> {
    let client = site::all(Role::own()?)?;
    let nodes = [Node::find(Role::NodeA)?, Node::find(Role::NodeB)?];
    let mut pair = Pair { client, nodes };
    let mut rows = Rows::default();
    for way in Way::ALL {
        let has_limits = |it: &&str| !way.is_limited() || site::has_pod_features(it);
        let systems: Vec<&str> = SYSTEMS.into_iter().filter(has_limits).collect();
        plan.interleave(way.name(), plan.pick(5, 15), &systems, |system| {
            let mut measure = |what: &Measurement| pair.measure(system, way, *what, &mut rows);
            way.measurements().iter().try_for_each(&mut measure)
        })?;
    }
    Ok(rows.0)
}

/// Returns the row, without samples, of a measurement.
fn row(what: Measurement, name: String, system: &str) -> Row {
    let limit = f64::from(LIMIT);
    let rate = |name| Row::new(name, system, "Mbit/s").higher();
    match what {
        Measurement::RequestResponse | Measurement::UnderLoad => Row::new(name, system, "µs"),
        Measurement::Tcp | Measurement::Udp => rate(name),
        Measurement::Limited => rate(name).within(0.95 * limit, 1.02 * limit),
    }
}

impl Pair {
    /// Takes one sample.
    fn measure(
        &mut self,
        system: &str,
        way: Way,
        what: Measurement,
        rows: &mut Rows,
    ) -> Result<()> {
        let name = way.name();
        let numbers = self
            .send(system, way, what)
            .with_context(|| format!("{name} through {system}, {}", what.name()))?;
        for (title, number) in what.titles().iter().zip(numbers) {
            rows.push(row(what, format!("{name}, {title}"), system), number);
        }
        Ok(())
    }

    /// Measures on the machine of the sender.
    fn send(&mut self, system: &str, way: Way, what: Measurement) -> Result<Vec<f64>> {
        let request = Request {
            what,
            limited: way == Way::LimitedToOtherNode,
            target: self.target(system, way)?,
        };
        let [a, b] = &mut self.nodes;
        match way {
            Way::ClientToHostport => {
                let site = self.client.iter().find(|it| it.system == system);
                request.run(site.context("the client lacks the system")?)
            }
            Way::OtherNodeToLimited => b.measure(system, request),
            Way::PodToOtherNode | Way::PodToClient | Way::LimitedToOtherNode => {
                a.measure(system, request)
            }
        }
    }

    fn target(&self, system: &str, way: Way) -> Result<IpAddr> {
        let [a, b] = &self.nodes;
        match way {
            // Plain forwarding has no hostports, so the client connects to the pod itself.
            Way::ClientToHostport if !site::has_pod_features(system) => a.pod(system),
            Way::ClientToHostport => Ok(Role::NodeA.address()),
            Way::PodToOtherNode | Way::LimitedToOtherNode => b.pod(system),
            Way::OtherNodeToLimited => a.limited(system),
            Way::PodToClient => Ok(Role::Client.address()),
        }
    }
}
