//! Two nodes and a client, on machines of their own: from the client to a hostport, from a pod of one node to a pod of the
//! other, from a pod to the client.
//!
//! `cargo xtask vm --topology pair` boots three guests and runs this on the client; `vagrant/` does the same with machines
//! that stay. Every machine has one network card for each system, on a switch of its own, so that all systems stand side
//! by side and are measured in turns; and one more, by which the client tells the nodes what to measure.

mod order;
mod role;
mod site;

use anyhow::{Context as _, Result};

use crate::plan::Plan;
use crate::row::{Row, Rows};
use order::{Node, Order, What};
use role::Role;
use site::{SYSTEMS, Site};

/// Who sends to whom.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ClientToHostport,
    PodToOtherNode,
    PodToClient,
}

impl Way {
    const ALL: [Self; 3] = [
        Self::ClientToHostport,
        Self::PodToOtherNode,
        Self::PodToClient,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::ClientToHostport => "client → hostport",
            Self::PodToOtherNode => "pod → pod of the other node",
            Self::PodToClient => "pod → client",
        }
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
        let name = way.name();
        plan.interleave(name, plan.pick(5, 15), &SYSTEMS, |system| {
            let mut ask = |what: What, row: &dyn Fn(&str) -> Row| -> Result<()> {
                let numbers = pair
                    .send(system, way, what)
                    .with_context(|| format!("{name} through {system}, {}", what.name()))?;
                for (title, number) in what.titles().iter().zip(numbers) {
                    rows.push(row(&format!("{name}, {title}")), number);
                }
                Ok(())
            };
            ask(What::Turns, &|name| Row::new(name, *system, "µs"))?;
            let rate = |name: &str| Row::new(name, *system, "Mbit/s").higher();
            ask(What::Tcp, &rate)?;
            ask(What::Udp, &rate)
        })?;
    }
    Ok(rows.0)
}

impl Pair {
    /// Has it measured where the way begins.
    fn send(&mut self, system: &str, way: Way, what: What) -> Result<Vec<f64>> {
        let [a, b] = &mut self.nodes;
        let dial = match way {
            // Nothing is published by a router: its pods are dialled themselves.
            Way::ClientToHostport if !site::publishes(system) => a.pod(system)?,
            Way::ClientToHostport => Role::NodeA.address(),
            Way::PodToOtherNode => b.pod(system)?,
            Way::PodToClient => Role::Client.address(),
        };
        let order = Order { what, dial };
        match way {
            Way::ClientToHostport => {
                let site = self.client.iter().find(|it| it.system == system);
                order.obey(&site.context("every machine has every system")?.sender)
            }
            Way::PodToOtherNode | Way::PodToClient => a.order(system, order),
        }
    }
}
