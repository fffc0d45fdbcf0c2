//! All combinations of a hostport connection: protocol, family, location of the client, and
//! `hostIP` of the mapping.
//!
//! For each of them, the addresses that server and client see of each other must be those
//! documented at [`Origin`]. The test asserts them, the demo shows them.

mod origin;
mod sctp;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

pub use self::origin::Origin;
use crate::client_process::{ClientKind, SeenAddresses, connect_from_process};
use crate::{Agent, Config, Echo, Machine, NODE, Pod, Sandbox};

/// Port of the servers in their pods.
const SERVED: u16 = 80;

/// The `hostIP` of a port mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostIp {
    /// No address: all addresses of the node.
    Empty,
    /// `0.0.0.0` and `::`: all addresses of the node.
    Any,
    /// The addresses of the uplink and of the loopback. The port on all other addresses is mapped
    /// to another pod, without a server.
    Specific,
}

impl HostIp {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::Empty, Self::Any, Self::Specific];

    /// Returns the node's port with this kind of mapping.
    const fn port(self) -> u16 {
        match self {
            Self::Empty => 8080,
            Self::Any => 8081,
            Self::Specific => 8082,
        }
    }

    /// Returns the name in the demo's output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Empty => "no hostIP",
            Self::Any => "any hostIP",
            Self::Specific => "one hostIP",
        }
    }

    fn mappings(self) -> Vec<Value> {
        let addresses = match self {
            Self::Empty => vec![String::new()],
            Self::Any => vec!["0.0.0.0".to_owned(), "::".to_owned()],
            Self::Specific => {
                let [v4, v6] = NODE.map(|address| address.to_string());
                vec![v4, v6, "127.0.0.1".to_owned(), "::1".to_owned()]
            }
        };
        self.to_addresses(&addresses)
    }

    /// Returns the mappings of the port on these addresses of the node, for each protocol.
    fn to_addresses(self, addresses: &[String]) -> Vec<Value> {
        let of = |protocol: &'static str| {
            addresses.iter().map(move |address| {
                json!({
                    "hostPort": self.port(),
                    "containerPort": SERVED,
                    "protocol": protocol,
                    "hostIP": address,
                })
            })
        };
        ["tcp", "udp", "sctp"].into_iter().flat_map(of).collect()
    }
}

/// One combination, and its result.
#[derive(Debug)]
pub struct Cell {
    /// Location of the client.
    pub origin: Origin,
    /// `tcp`, `udp`, `unconnected udp` or `sctp`.
    pub protocol: &'static str,
    /// The `hostIP` of the mapping.
    pub host_ip: HostIp,
    /// Address and port of the node that the client connected to.
    pub target: SocketAddr,
    /// Description of the addresses that both ends saw; an error if they are not the documented
    /// ones.
    pub outcome: Result<String>,
}

/// A node with one server pod for each kind of mapping, and clients at each [`Origin`].
pub struct HostportMatrix {
    sandbox: Sandbox,
    agent: Agent,
    same_network: Pod,
    other_network: Pod,
    servers: Vec<(HostIp, Pod, Echo)>,
    /// The pod with the port of [`HostIp::Specific`] on all other addresses.
    _elsewhere: Pod,
}

impl HostportMatrix {
    /// Starts the agent, attaches all pods and starts the servers.
    pub fn start() -> Result<Self> {
        let (sandbox, agent) = Sandbox::with_agent()?;
        let mut same_network = sandbox.pod("near")?;
        same_network.add()?;
        let mut other_network = sandbox.pod("far")?;
        other_network.add_with(second_network())?;
        let mut elsewhere = sandbox.pod("elsewhere")?;
        let all = HostIp::Specific.to_addresses(&[String::new()]);
        elsewhere.add_with(Config::new("1.1.0").map_ports(&all))?;
        let mut servers = Vec::new();
        for kind in HostIp::ALL {
            let mut pod = sandbox.pod(&format!("server-{}", kind.port()))?;
            pod.add_with(Config::new("1.1.0").map_ports(&kind.mappings()))?;
            let echo = Echo::start(&pod.machine, SERVED)?;
            servers.push((kind, pod, echo));
        }
        Ok(Self {
            sandbox,
            agent,
            same_network,
            other_network,
            servers,
            _elsewhere: elsewhere,
        })
    }

    /// Returns the node.
    pub fn node(&self) -> &Machine {
        &self.sandbox.node
    }

    /// Connects from one origin to all targets, with the protocols that use sockets.
    pub fn connect(&self, origin: Origin) -> Result<Vec<Cell>> {
        let mut cells = Vec::new();
        for (kind, server, _) in &self.servers {
            let client = self.client(origin, server);
            let targets = origin
                .targets()
                .map(|to| SocketAddr::new(to, kind.port()))
                .map(|to| ClientKind::ALL.map(|by| (by, to)))
                .concat();
            let results = connect_from_process(client, self.cgroup(origin)?, &targets)?;
            for ((by, target), result) in targets.into_iter().zip(results) {
                let seen = self.seen(origin, target.ip())?;
                cells.push(Cell {
                    origin,
                    protocol: by.name(),
                    host_ip: *kind,
                    target,
                    outcome: check(result, target, seen),
                });
            }
        }
        Ok(cells)
    }

    /// Sends SCTP from one origin to all targets, as raw packets: not every kernel has SCTP
    /// sockets.
    pub fn send_sctp(&self, origin: Origin) -> Result<Vec<Cell>> {
        let mut cells = Vec::new();
        for (kind, server, _) in &self.servers {
            let client = self.client(origin, server);
            for to in origin.targets() {
                let seen = self.seen(origin, to)?;
                let own = match origin {
                    Origin::SamePod => server.address(to)?,
                    Origin::World
                    | Origin::SameNetwork
                    | Origin::OtherNetwork
                    | Origin::Node
                    | Origin::Loopback => seen,
                };
                let exchange = sctp::Exchange {
                    client,
                    own,
                    target: SocketAddr::new(to, kind.port()),
                    server: &server.machine,
                    at: server.address(to)?,
                    seen,
                };
                cells.push(Cell {
                    origin,
                    protocol: "sctp",
                    host_ip: *kind,
                    target: exchange.target,
                    outcome: exchange.round_trip(),
                });
            }
        }
        Ok(cells)
    }

    fn client<'a>(&'a self, origin: Origin, server: &'a Pod) -> &'a Machine {
        match origin {
            Origin::World => &self.sandbox.world,
            Origin::SameNetwork => &self.same_network.machine,
            Origin::OtherNetwork => &self.other_network.machine,
            Origin::SamePod => &server.machine,
            Origin::Node | Origin::Loopback => &self.sandbox.node,
        }
    }

    /// Returns the cgroup for clients that are processes of the node.
    fn cgroup(&self, origin: Origin) -> Result<Option<&Path>> {
        if !origin.is_on_node() {
            return Ok(None);
        }
        let cgroup = self.agent.cgroup();
        cgroup.context("no cgroup2 is mounted").map(Some)
    }

    /// Returns the client address that the server must see, in the family of `like`.
    fn seen(&self, origin: Origin, like: IpAddr) -> Result<IpAddr> {
        let family = usize::from(like.is_ipv6());
        match origin {
            Origin::World => Ok(crate::WORLD[family]),
            Origin::SameNetwork => self.same_network.address(like),
            Origin::OtherNetwork => self.other_network.address(like),
            // A pod cannot receive packets from its own address, so the gateway replaces it. The
            // gateway is also the node's address towards its pods.
            Origin::SamePod | Origin::Node | Origin::Loopback => Ok(crate::GATEWAYS[family]),
        }
    }
}

/// Returns the configuration of a network with its own bridge and pod CIDRs.
fn second_network() -> Config {
    let ranges = json!([
        [{ "subnet": "10.77.0.0/24" }],
        [{ "subnet": "fd00:77::/64" }]
    ]);
    Config::new("1.1.0")
        .with("name", json!("other"))
        .with("bridge", json!("other0"))
        .with("isDefaultGateway", json!(true))
        .with("ipMasq", json!(true))
        .with("ipam", json!({ "type": "host-local", "ranges": ranges }))
}

/// Checks the addresses and ports that both ends saw, and describes them.
fn check(result: Result<SeenAddresses>, target: SocketAddr, seen: IpAddr) -> Result<String> {
    let addresses = result?;
    let expected = SeenAddresses {
        seen: SocketAddr::new(seen, addresses.port),
        peer: target,
        port: addresses.port,
    };
    ensure!(
        addresses == expected,
        "{addresses:?}, expected {expected:?}"
    );
    Ok(format!("server saw {seen}, client sees {target}"))
}
