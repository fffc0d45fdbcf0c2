//! Several nodes on one link, or with a router between them, each with an agent of its own.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{Agent, Connection, Echo, Machine, Pod, until};

pub mod network;

use network::{Host, Network, addresses};

/// Port of the server in each pod.
const PORT: u16 = 7000;

/// A node of a cluster, with one pod.
#[derive(Debug)]
pub struct ClusterNode {
    /// The machine.
    pub host: Host,
    /// The agent.
    pub agent: Agent,
    /// The pod, in which a server runs.
    pub pod: Pod,
    _server: Echo,
}

/// Nodes with the numbers 1, 2 and so on, and what connects them ([`Network`]).
#[derive(Debug)]
pub struct Cluster {
    /// The nodes, in the order of their numbers.
    pub nodes: Vec<ClusterNode>,
    /// The switch: a bridge without addresses.
    pub switch: Machine,
    /// The router to the node that is not on the switch, if there is one.
    pub router: Option<Machine>,
}

impl Cluster {
    /// Creates `count` nodes on a switch, with `flags` for their agents, and a pod on each.
    pub fn new(count: u8, flags: &[&str]) -> Result<Self> {
        Self::on(Network::flat(count)?, flags)
    }

    /// Creates two nodes on a switch, and a third one behind a router that knows no pods.
    pub fn routed(flags: &[&str]) -> Result<Self> {
        Self::on(Network::routed()?, flags)
    }

    fn on(network: Network, flags: &[&str]) -> Result<Self> {
        let hosts = network.hosts.into_iter();
        Ok(Self {
            nodes: hosts
                .map(|host| ClusterNode::start(host, flags))
                .collect::<Result<_>>()?,
            switch: network.switch,
            router: network.router,
        })
    }

    /// Returns the list of all nodes but `number`, as JSON.
    pub fn others(&self, number: u8) -> Value {
        let others = self.nodes.iter().filter(|node| node.host.number != number);
        others.map(ClusterNode::peer).collect()
    }

    /// Sends each node the list of all others, and fails unless it routes to them.
    pub fn put_all_peers(&self) -> Result<()> {
        self.put_all_peers_as("routed")
    }

    /// Sends each node the list of all others, and fails unless each peer gets this state.
    pub fn put_all_peers_as(&self, state: &str) -> Result<()> {
        for (number, node) in (1..).zip(&self.nodes) {
            let peers = node.put_peers(&self.others(number))?;
            for peer in peers.as_array().context("a list")? {
                ensure!(peer["state"] == state, "node {number}: {peer}");
            }
        }
        Ok(())
    }

    /// Waits until the pod of each node exchanges packets with those of all others, by both
    /// families and protocols, and the servers see the clients' own addresses.
    pub fn await_connected(&self) -> Result<()> {
        for from in &self.nodes {
            for to in self
                .nodes
                .iter()
                .filter(|to| to.host.number != from.host.number)
            {
                from.await_seen_by(to)?;
            }
        }
        Ok(())
    }
}

impl ClusterNode {
    fn start(host: Host, flags: &[&str]) -> Result<Self> {
        let Host {
            sandbox, number, ..
        } = &host;
        let name = format!("--node-name=node-{number}");
        let cidrs = prefixes(*number).map(|prefix| format!("--pod-cidr={prefix}"));
        let flags = flags.iter().map(ToString::to_string);
        let agent = Agent::start_with(
            &sandbox.node,
            cidrs.into_iter().chain([name]).chain(flags).collect(),
        )?;
        let mut pod = sandbox.pod("pod")?;
        pod.add()?;
        let server = Echo::start(&pod.machine, PORT)?;
        Ok(Self {
            host,
            agent,
            pod,
            _server: server,
        })
    }

    /// Returns the node's addresses on the link, IPv4 first.
    pub fn addresses(&self) -> [IpAddr; 2] {
        self.host.addresses
    }

    /// Returns the node as the list of peers has it.
    pub fn peer(&self) -> Value {
        let mut peer = peer(self.host.number);
        peer["addresses"] = json!(self.addresses());
        peer
    }

    /// Waits until the pod of `to` sees this node's pod by its own addresses.
    pub fn await_seen_by(&self, to: &Self) -> Result<()> {
        for family in [0, 1] {
            let server = SocketAddr::new(to.pod.addresses[family], PORT);
            await_seen(&self.pod.machine, self.pod.addresses[family], server)?;
        }
        Ok(())
    }

    /// Sends a `PUT` of the list of peers, and returns the list with its states.
    pub fn put_peers(&self, peers: &Value) -> Result<Value> {
        self.agent.put("/v1/peers", &peers.to_string())
    }

    /// Replaces the node's addresses on the link by those of another number.
    pub fn readdress(&mut self, number: u8) -> Result<()> {
        self.host.readdress(number)
    }
}

/// Waits until `server` sees `client` by its `own` address, over TCP and UDP.
pub(crate) fn await_seen(client: &Machine, own: IpAddr, server: SocketAddr) -> Result<()> {
    until(&format!("{server} sees {own}"), || {
        let tcp = Connection::tcp(client, server).map(|found| found.seen().ip());
        let udp = Connection::udp(client, server).map(|found| found.seen().ip());
        Ok((tcp.ok() == Some(own) && udp.ok() == Some(own)).then_some(()))
    })
}

/// Returns a node as the list of peers has it.
pub fn peer(number: u8) -> Value {
    json!({
        "name": format!("node-{number}"),
        "prefixes": prefixes(number),
        "addresses": addresses(number),
    })
}

/// Returns the peers of a large cluster, with addresses in `172.20.0.0/16` and `2001:db8:77::/64`.
pub fn large_cluster(count: u32) -> Value {
    (0..count).map(large_cluster_peer).collect()
}

/// Returns one of the peers of a large cluster.
pub fn large_cluster_peer(number: u32) -> Value {
    let (high, low) = (number >> 8, number & 0xff);
    json!({
        "name": format!("node-{number}.example.org"),
        "prefixes": [format!("10.{}.{low}.0/24", 100 + high), format!("fd01:0:{number:x}::/64")],
        "addresses": [format!("172.20.{high}.{low}"), format!("2001:db8:77::{number:x}")],
    })
}

/// Returns the pod CIDRs of a node, IPv4 first.
fn prefixes(number: u8) -> [String; 2] {
    [
        format!("10.81.{number}.0/24"),
        format!("fd00:81:{number}::/64"),
    ]
}
