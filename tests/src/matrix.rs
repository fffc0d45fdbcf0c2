//! Every way to a hostport: protocol, family, where the client is, and which addresses of the node the mapping names.
//!
//! For each of them what the server saw and what the client saw must be what [`Origin`] promises; the test judges them,
//! the demo shows them.

mod origin;
mod sctp;

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

pub use self::origin::Origin;
use crate::{Agent, Config, Echo, Machine, NODE, Pod, Sandbox};

const DIAL: &str = include_str!("matrix/dial.py");
/// Where the servers listen in their pods.
const SERVED: u16 = 80;

/// Which addresses of the node a mapping names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostIp {
    /// None: all of them.
    Empty,
    /// `0.0.0.0` and `::`: all of them.
    Any,
    /// Those of the uplink.
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
            Self::Specific => NODE.map(|address| address.to_string()).to_vec(),
        };
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
    /// `tcp`, `udp`, `udp, not connected` or `sctp`.
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
}

impl Matrix {
    /// Starts everything.
    pub fn start() -> Result<Self> {
        let (sandbox, agent) = Sandbox::with_agent()?;
        let mut near = sandbox.pod("near")?;
        near.add()?;
        let mut far = sandbox.pod("far")?;
        far.add_with(other_network())?;
        let mut servers = Vec::new();
        for kind in HostIp::ALL {
            let mut pod = sandbox.pod(&format!("server-{}", kind.port()))?;
            let capability = json!({ "portMappings": kind.mappings() });
            pod.add_with(Config::new("1.1.0").with("runtimeConfig", capability))?;
            let echo = Echo::start(&pod.machine, SERVED)?;
            servers.push((kind, pod, echo));
        }
        Ok(Self {
            sandbox,
            agent,
            near,
            far,
            servers,
        })
    }

    /// Goes every way from one origin, by the protocols that need sockets.
    pub fn dial(&self, origin: Origin) -> Result<Vec<Cell>> {
        let mut cells = Vec::new();
        for (kind, server, _) in &self.servers {
            let client = self.client(origin, server);
            let targets: Vec<(&'static str, SocketAddr)> = ["tcp", "udp", "udp, not connected"]
                .into_iter()
                .flat_map(|protocol| {
                    let dialled = origin.dialled().into_iter();
                    dialled.map(move |to| (protocol, SocketAddr::new(to, kind.port())))
                })
                .collect();
            let answers = self.answers(origin, client, &targets)?;
            for ((protocol, dialled), answer) in targets.into_iter().zip(answers) {
                let reached = *kind != HostIp::Specific || !dialled.ip().is_loopback();
                let outcome = if reached {
                    judge(&answer, dialled, self.seen(origin, dialled.ip()))
                } else {
                    refused(&answer)
                };
                cells.push(Cell {
                    origin,
                    protocol,
                    host_ip: *kind,
                    dialled,
                    outcome,
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
                let own = match origin {
                    Origin::Itself => server.address(to)?,
                    Origin::World
                    | Origin::Near
                    | Origin::Far
                    | Origin::Node
                    | Origin::Loopback => {
                        self.seen(origin, to).context("the client has an address")?
                    }
                };
                let dialled = SocketAddr::new(to, kind.port());
                let seen = self.seen(origin, to).unwrap_or(own);
                cells.push(Cell {
                    origin,
                    protocol: "sctp",
                    host_ip: *kind,
                    dialled,
                    outcome: sctp::arrives(client, own, dialled, &server.machine, seen),
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

    /// As whom the server must see the client.
    fn seen(&self, origin: Origin, like: IpAddr) -> Option<IpAddr> {
        let family = usize::from(like.is_ipv6());
        match origin {
            Origin::World => Some(crate::WORLD[family]),
            Origin::Near => self.near.address(like).ok(),
            Origin::Far => self.far.address(like).ok(),
            // The gateway stands in for what would be the pod's own address, and is the node's towards its pods.
            Origin::Itself | Origin::Node | Origin::Loopback => Some(crate::GATEWAYS[family]),
        }
    }

    fn answers(
        &self,
        origin: Origin,
        client: &Machine,
        targets: &[(&'static str, SocketAddr)],
    ) -> Result<Vec<Value>> {
        let list: Vec<Value> = targets
            .iter()
            .map(|(protocol, to)| json!([protocol, to.ip(), to.port()]))
            .collect();
        let list = Value::from(list).to_string();
        let cgroup = self.agent.cgroup().map(|path| path.display().to_string());
        let mut words = vec!["python3", "-c", DIAL, &list];
        if origin.is_on_node() {
            words.push(cgroup.as_deref().context("there is no cgroup2 to be in")?);
        }
        let told: Value = serde_json::from_str(&client.call_words(&words)?)?;
        Ok(told.as_array().context("not a list")?.clone())
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

fn judge(answer: &Value, dialled: SocketAddr, seen: Option<IpAddr>) -> Result<String> {
    if let Some(error) = answer["error"].as_str() {
        bail!("{error}");
    }
    let text = |key: &str| answer[key].as_str().unwrap_or_default().to_owned();
    let (client, peer) = (text("seen"), text("peer"));
    let as_seen: SocketAddr = client.parse().with_context(|| client.clone())?;
    ensure!(
        Some(as_seen.ip()) == seen,
        "the server saw {as_seen}, not {seen:?}"
    );
    ensure!(
        peer == dialled.to_string(),
        "the client's peer is {peer}, not {dialled}"
    );
    Ok(format!("server saw {}, client sees {peer}", as_seen.ip()))
}

/// An address that the mapping does not name leads nowhere.
fn refused(answer: &Value) -> Result<String> {
    let Some(error) = answer["error"].as_str() else {
        bail!("reached by an address that the mapping does not name: {answer}");
    };
    Ok(format!("not mapped: {error}"))
}
