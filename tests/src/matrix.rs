//! Every way to a hostport: protocol, family, where the client is, and which addresses of the node the mapping names.
//!
//! For each of them what the server saw and what the client saw must be what [`Origin`] promises; the test judges them,
//! the demo shows them.

mod origin;
mod sctp;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

pub use self::origin::Origin;
use crate::dial::{By, Met, dial};
use crate::{Agent, Config, Echo, Machine, NODE, Pod, Sandbox};

/// Where the servers listen in their pods.
const SERVED: u16 = 80;

/// Which addresses of the node a mapping names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostIp {
    /// None: all of them.
    Empty,
    /// `0.0.0.0` and `::`: all of them.
    Any,
    /// Those of the uplink and of the loopback; all others of this port lead to another pod, which serves nothing.
    Specific,
}

impl HostIp {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Empty, Self::Any, Self::Specific];

    /// The port of the node that is mapped so.
    const fn port(self) -> u16 {
        match self {
            Self::Empty => 8080,
            Self::Any => 8081,
            Self::Specific => 8082,
        }
    }

    /// In words.
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

    /// The port on those addresses of the node, by every protocol.
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

/// One way, and how it went.
#[derive(Debug)]
pub struct Cell {
    /// Where the client is.
    pub origin: Origin,
    /// `tcp`, `udp`, `unconnected udp` or `sctp`.
    pub protocol: &'static str,
    /// The mapping's addresses.
    pub host_ip: HostIp,
    /// What was dialled.
    pub dialled: SocketAddr,
    /// What the server and the client saw, in words; an error if it is not what was promised.
    pub outcome: Result<String>,
}

/// A node with one pod for each kind of mapping, and clients everywhere.
pub struct Matrix {
    sandbox: Sandbox,
    agent: Agent,
    near: Pod,
    far: Pod,
    servers: Vec<(HostIp, Pod, Echo)>,
    /// Whose the specific port is on all other addresses.
    _elsewhere: Pod,
}

impl Matrix {
    /// Starts everything.
    pub fn start() -> Result<Self> {
        let (sandbox, agent) = Sandbox::with_agent()?;
        let mut near = sandbox.pod("near")?;
        near.add()?;
        let mut far = sandbox.pod("far")?;
        far.add_with(other_network())?;
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
            near,
            far,
            servers,
            _elsewhere: elsewhere,
        })
    }

    /// The node.
    pub fn node(&self) -> &Machine {
        &self.sandbox.node
    }

    /// Goes every way from one origin, by the protocols that need sockets.
    pub fn dial(&self, origin: Origin) -> Result<Vec<Cell>> {
        let mut cells = Vec::new();
        for (kind, server, _) in &self.servers {
            let client = self.client(origin, server);
            let targets = origin
                .dialled()
                .map(|to| SocketAddr::new(to, kind.port()))
                .map(|to| By::ALL.map(|by| (by, to)))
                .concat();
            let met = dial(client, self.cgroup(origin)?, &targets)?;
            for ((by, dialled), met) in targets.into_iter().zip(met) {
                let seen = self.seen(origin, dialled.ip())?;
                cells.push(Cell {
                    origin,
                    protocol: by.name(),
                    host_ip: *kind,
                    dialled,
                    outcome: judge(met, dialled, seen),
                });
            }
        }
        Ok(cells)
    }

    /// Goes every way from one origin by SCTP, packet by packet: not every kernel has sockets for it.
    pub fn send_sctp(&self, origin: Origin) -> Result<Vec<Cell>> {
        let mut cells = Vec::new();
        for (kind, server, _) in &self.servers {
            let client = self.client(origin, server);
            for to in origin.dialled() {
                let seen = self.seen(origin, to)?;
                let own = match origin {
                    Origin::Itself => server.address(to)?,
                    Origin::World
                    | Origin::Near
                    | Origin::Far
                    | Origin::Node
                    | Origin::Loopback => seen,
                };
                let way = sctp::Way {
                    client,
                    own,
                    dialled: SocketAddr::new(to, kind.port()),
                    server: &server.machine,
                    at: server.address(to)?,
                    seen,
                };
                cells.push(Cell {
                    origin,
                    protocol: "sctp",
                    host_ip: *kind,
                    dialled: way.dialled,
                    outcome: way.there_and_back(),
                });
            }
        }
        Ok(cells)
    }

    fn client<'a>(&'a self, origin: Origin, server: &'a Pod) -> &'a Machine {
        match origin {
            Origin::World => &self.sandbox.world,
            Origin::Near => &self.near.machine,
            Origin::Far => &self.far.machine,
            Origin::Itself => &server.machine,
            Origin::Node | Origin::Loopback => &self.sandbox.node,
        }
    }

    /// Where the node's own processes are.
    fn cgroup(&self, origin: Origin) -> Result<Option<&Path>> {
        if !origin.is_on_node() {
            return Ok(None);
        }
        let cgroup = self.agent.cgroup();
        cgroup.context("there is no cgroup2 to be in").map(Some)
    }

    /// As whom the server must see the client.
    fn seen(&self, origin: Origin, like: IpAddr) -> Result<IpAddr> {
        let family = usize::from(like.is_ipv6());
        match origin {
            Origin::World => Ok(crate::WORLD[family]),
            Origin::Near => self.near.address(like),
            Origin::Far => self.far.address(like),
            // The gateway stands in for what would be the pod's own address, and is the node's towards its pods.
            Origin::Itself | Origin::Node | Origin::Loopback => Ok(crate::GATEWAYS[family]),
        }
    }
}

/// A network of a configuration's own, beside the agent's.
fn other_network() -> Config {
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

/// Who saw whom is as promised, ports included.
fn judge(met: Result<Met>, dialled: SocketAddr, seen: IpAddr) -> Result<String> {
    let met = met?;
    let expected = Met {
        seen: SocketAddr::new(seen, met.port),
        peer: dialled,
        port: met.port,
    };
    ensure!(met == expected, "{met:?}, and it should be {expected:?}");
    Ok(format!("server saw {seen}, client sees {dialled}"))
}
