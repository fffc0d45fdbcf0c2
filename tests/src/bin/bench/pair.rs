//! Two nodes and a client, on machines of their own: from the client to a hostport, from a pod of one node to a pod of the
//! other, from a pod to the client; and from and to a pod with a limit.
//!
//! `cargo xtask vm --topology pair` boots three guests and runs this on the client; `vagrant/` does the same with machines
//! that stay. Every machine has one network card for each system, on a switch of its own, so that all systems stand side
//! by side and are measured in turns; and one more, by which the client tells the nodes what to measure.

mod order;
mod role;
mod site;

use std::net::IpAddr;

use anyhow::{Context as _, Result};

use crate::plan::Plan;
use crate::row::{Row, Rows};
use order::{Node, Order, What};
use role::Role;
use site::{LIMIT, SYSTEMS, Site};

/// Who sends to whom.
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

    fn whats(self) -> &'static [What] {
        if self.is_limited() {
            return &[What::Limited, What::Beside];
        }
        &[What::Turns, What::Tcp, What::Udp]
    }
}

/// The three machines, seen from the client.
struct Pair {
    client: Vec<Site>,
    nodes: [Node; 2],
}

/// Builds a node's systems and does what the client orders, until it has gone.
pub(crate) fn serve() -> Result<()> {
    let role = Role::own()?;
    let sites = site::all(role)?;
    order::serve(role, &sites)
}

/// Measures as the client.
pub(crate) fn measure(plan: &Plan) -> Result<Vec<Row>> {
    let client = site::all(Role::own()?)?;
    let nodes = [Node::find(Role::NodeA)?, Node::find(Role::NodeB)?];
    let mut pair = Pair { client, nodes };
    let mut rows = Rows::default();
    for way in Way::ALL {
        let has_limits = |it: &&str| !way.is_limited() || site::serves_pods(it);
        let systems: Vec<&str> = SYSTEMS.into_iter().filter(has_limits).collect();
        plan.interleave(way.name(), plan.pick(5, 15), &systems, |system| {
            let mut measure = |what: &What| pair.measure(system, way, *what, &mut rows);
            way.whats().iter().try_for_each(&mut measure)
        })?;
    }
    Ok(rows.0)
}

/// A row of what one thing measured has given.
fn row(what: What, name: String, system: &str) -> Row {
    let limit = f64::from(LIMIT);
    let rate = |name| Row::new(name, system, "Mbit/s").higher();
    match what {
        What::Turns | What::Beside => Row::new(name, system, "µs"),
        What::Tcp | What::Udp => rate(name),
        What::Limited => rate(name).within(0.95 * limit, 1.02 * limit),
    }
}

impl Pair {
    /// Takes one sample.
    fn measure(&mut self, system: &str, way: Way, what: What, rows: &mut Rows) -> Result<()> {
        let name = way.name();
        let numbers = self
            .send(system, way, what)
            .with_context(|| format!("{name} through {system}, {}", what.name()))?;
        for (title, number) in what.titles().iter().zip(numbers) {
            rows.push(row(what, format!("{name}, {title}"), system), number);
        }
        Ok(())
    }

    /// Has it measured where the way begins.
    fn send(&mut self, system: &str, way: Way, what: What) -> Result<Vec<f64>> {
        let order = Order {
            what,
            limited: way == Way::LimitedToOtherNode,
            dial: self.dial(system, way)?,
        };
        let [a, b] = &mut self.nodes;
        match way {
            Way::ClientToHostport => {
                let site = self.client.iter().find(|it| it.system == system);
                order.obey(site.context("every machine has every system")?)
            }
            Way::OtherNodeToLimited => b.order(system, order),
            Way::PodToOtherNode | Way::PodToClient | Way::LimitedToOtherNode => {
                a.order(system, order)
            }
        }
    }

    fn dial(&self, system: &str, way: Way) -> Result<IpAddr> {
        let [a, b] = &self.nodes;
        match way {
            // Nothing is published by a router: its pods are dialled themselves.
            Way::ClientToHostport if !site::serves_pods(system) => a.pod(system),
            Way::ClientToHostport => Ok(Role::NodeA.address()),
            Way::PodToOtherNode | Way::LimitedToOtherNode => b.pod(system),
            Way::OtherNodeToLimited => a.limited(system),
            Way::PodToClient => Ok(Role::Client.address()),
        }
    }
}
