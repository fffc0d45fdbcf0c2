//! Several nodes on one link, or with a router between them, each with an agent of its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::{Agent, Connection, Echo, Machine, Pod, Sandbox, until};

/// Interface of a node on the link.
const LAN: &str = "lan0";

/// Port of the server in each pod.
const PORT: u16 = 7000;

/// A node of a cluster, with one pod.
#[derive(Debug)]
pub struct ClusterNode {
    /// The node and its files; its world is not used.
    pub sandbox: Sandbox,
    /// The agent.
    pub agent: Agent,
    /// The pod, in which a server runs.
    pub pod: Pod,
    number: u8,
    addresses: [IpAddr; 2],
    _server: Echo,
}

/// Nodes with the numbers 1, 2 and so on, and the switch that connects them.
///
/// ```text
///   pod ══ cbr0 ── node 1 ── lan0 ══ switch ══ lan0 ── node 2 ── cbr0 ══ pod
///   10.81.1.0/24             198.51.100.1/24           10.81.2.0/24
///   fd00:81:1::/64           2001:db8:51::1/64         fd00:81:2::/64
/// ```
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
    /// Creates `count` nodes with `flags` for their agents, and a pod on each.
    pub fn new(count: u8, flags: &[&str]) -> Result<Self> {
        let sandboxes = (0..count)
            .map(|_| Sandbox::new())
            .collect::<Result<Vec<_>>>()?;
        let first = sandboxes.first().context("a cluster has a node")?;
        let switch = first.machine("switch")?;
        switch.call("ip link add lan type bridge")?;
        switch.call("ip link set lan up")?;
        let numbered = (1..=count).zip(sandboxes);
        let nodes = numbered.map(|(number, sandbox)| {
            connect(&switch, &sandbox, number)?;
            ClusterNode::start(sandbox, number, addresses(number), flags)
        });
        Ok(Self {
            nodes: nodes.collect::<Result<_>>()?,
            switch,
            router: None,
        })
    }

    /// Creates two nodes on a switch, and a third one behind a router that knows no pods.
    ///
    /// ```text
    ///   node 1 ── lan0 ═╗                                  203.0.113.3
    ///                switch ══ lan0 ── router ── far ═══ lan0 ── node 3
    ///   node 2 ── lan0 ═╝      198.51.100.254, 203.0.113.254
    /// ```
    pub fn routed(flags: &[&str]) -> Result<Self> {
        let mut cluster = Self::new(2, flags)?;
        let first = &cluster.nodes[0].sandbox;
        let router = first.machine("router")?;
        plug(&cluster.switch, "port254", &router.path())?;
        first.configure_link(&router, LAN, &addresses(254))?;
        router.sysctl("ipv4/ip_forward", "1")?;
        router.sysctl("ipv6/conf/all/forwarding", "1")?;
        let sandbox = Sandbox::new()?;
        let far = sandbox.node.descriptor_path();
        router.call(&format!(
            "ip link add far type veth peer name {LAN} netns {far}"
        ))?;
        first.configure_link(&router, "far", &distant_addresses(254))?;
        sandbox.configure_link(&sandbox.node, LAN, &distant_addresses(3))?;
        for node in &cluster.nodes {
            add_routes(&node.sandbox.node, [DISTANT_V4, DISTANT_V6], addresses(254))?;
        }
        let near = ["198.51.100.0/24", "2001:db8:51::/64"];
        add_routes(&sandbox.node, near, distant_addresses(254))?;
        let third = ClusterNode::start(sandbox, 3, distant_addresses(3), flags)?;
        cluster.nodes.push(third);
        cluster.router = Some(router);
        Ok(cluster)
    }

    /// Returns the list of all nodes but `number`, as JSON.
    pub fn others(&self, number: u8) -> Value {
        let others = self.nodes.iter().filter(|node| node.number != number);
        others.map(ClusterNode::peer).collect()
    }

    /// Waits until the pod of each node exchanges packets with those of all others, by both
    /// families and protocols, and the servers see the clients' own addresses.
    pub fn await_connected(&self) -> Result<()> {
        for from in &self.nodes {
            for to in self.nodes.iter().filter(|to| to.number != from.number) {
                from.await_seen_by(to)?;
            }
        }
        Ok(())
    }
}

impl ClusterNode {
    fn start(sandbox: Sandbox, number: u8, addresses: [IpAddr; 2], flags: &[&str]) -> Result<Self> {
        let name = format!("--node-name=node-{number}");
        let cidrs = prefixes(number).map(|prefix| format!("--pod-cidr={prefix}"));
        let flags = flags.iter().map(ToString::to_string);
        let agent = Agent::start_with(
            &sandbox.node,
            cidrs.into_iter().chain([name]).chain(flags).collect(),
        )?;
        let mut pod = sandbox.pod("pod")?;
        pod.add()?;
        let server = Echo::start(&pod.machine, PORT)?;
        Ok(Self {
            sandbox,
            agent,
            pod,
            number,
            addresses,
            _server: server,
        })
    }

    /// Returns the node's addresses on the link, IPv4 first.
    pub fn addresses(&self) -> [IpAddr; 2] {
        self.addresses
    }

    /// Returns the node as the list of peers has it.
    pub fn peer(&self) -> Value {
        let mut peer = peer(self.number);
        peer["addresses"] = json!(self.addresses);
        peer
    }

    /// Waits until the pod of `to` sees this node's pod by its own addresses.
    pub fn await_seen_by(&self, to: &Self) -> Result<()> {
        for family in [0, 1] {
            let server = SocketAddr::new(to.pod.addresses[family], PORT);
            let own = self.pod.addresses[family];
            let what = format!("{server} sees {own}");
            until(&what, || {
                let client = &self.pod.machine;
                let tcp = Connection::tcp(client, server).map(|found| found.seen().ip());
                let udp = Connection::udp(client, server).map(|found| found.seen().ip());
                Ok((tcp.ok() == Some(own) && udp.ok() == Some(own)).then_some(()))
            })?;
        }
        Ok(())
    }

    /// Sends a `PUT` of the list of peers, and returns the list with its states.
    pub fn put_peers(&self, peers: &Value) -> Result<Value> {
        self.agent.put("/v1/peers", &peers.to_string())
    }

    /// Replaces the node's addresses on the link by those of another number.
    pub fn readdress(&mut self, number: u8) -> Result<()> {
        self.sandbox
            .node
            .call(&format!("ip address flush dev {LAN} scope global"))?;
        self.addresses = if self.addresses[0].to_string().starts_with("203.") {
            distant_addresses(number)
        } else {
            addresses(number)
        };
        self.sandbox
            .configure_link(&self.sandbox.node, LAN, &self.addresses)
    }
}

/// Subnets of the node behind the router.
const DISTANT_V4: &str = "203.0.113.0/24";
const DISTANT_V6: &str = "2001:db8:53::/64";

fn add_routes(node: &Machine, prefixes: [&str; 2], gateways: [IpAddr; 2]) -> Result<()> {
    for (prefix, gateway) in prefixes.into_iter().zip(gateways) {
        node.call(&format!("ip route add {prefix} via {gateway} dev {LAN}"))?;
    }
    Ok(())
}

/// Returns the addresses of a machine on the link behind the router, IPv4 first.
fn distant_addresses(number: u8) -> [IpAddr; 2] {
    let host = u16::from(number);
    [
        Ipv4Addr::new(203, 0, 113, number).into(),
        Ipv6Addr::new(0x2001, 0xdb8, 0x53, 0, 0, 0, 0, host).into(),
    ]
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

/// Returns the addresses of a node on the link, IPv4 first.
fn addresses(number: u8) -> [IpAddr; 2] {
    let host = u16::from(number);
    [
        Ipv4Addr::new(198, 51, 100, number).into(),
        Ipv6Addr::new(0x2001, 0xdb8, 0x51, 0, 0, 0, 0, host).into(),
    ]
}

fn connect(switch: &Machine, sandbox: &Sandbox, number: u8) -> Result<()> {
    // The two ends are in sandboxes of their own, which do not share paths.
    let other = sandbox.node.descriptor_path();
    plug(switch, &format!("port{number}"), &other)?;
    sandbox.configure_link(&sandbox.node, LAN, &addresses(number))
}

/// Connects a namespace to the switch.
fn plug(switch: &Machine, port: &str, other: &str) -> Result<()> {
    switch.call(&format!(
        "ip link add {port} type veth peer name {LAN} netns {other}"
    ))?;
    switch
        .call(&format!("ip link set {port} master lan up"))
        .map(drop)
}
