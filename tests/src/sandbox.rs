//! A node, a machine in the world outside, and the wire between them.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::{Agent, Config, Machine, Mounts, Pod, Tunnel};

/// containerd's burst where nobody has asked for one (behaviour C1).
const CONTAINERD: u64 = 4_294_967_295;

/// The node's interface to the world.
pub const UPLINK: &str = "up0";

/// The node's addresses on the uplink.
pub const NODE: [IpAddr; 2] = [address(1, false), address(1, true)];

/// The world's addresses.
pub const WORLD: [IpAddr; 2] = [address(2, false), address(2, true)];

/// The pods' gateways, for the agent's default arguments.
pub const GATEWAYS: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::new(10, 244, 1, 1)),
    IpAddr::V6(std::net::Ipv6Addr::new(0xfd00, 0x10, 0x244, 1, 0, 0, 0, 1)),
];

/// A node and its world. Dropping it removes both.
///
/// ```text
///   pod eth0 ══ veth ── cbr0 ── node ── up0 ════ eth0 ── world
///                               192.0.2.1/24     192.0.2.2/24
///                               2001:db8:1::1    2001:db8:1::2
/// ```
///
/// The node's default routes go by the world, which has no route to any pod: what leaves the node with a pod's
/// address gets no answer.
#[derive(Debug)]
pub struct Sandbox {
    /// Where the agent, the plugin and the node's own programs run.
    pub node: Machine,
    /// A machine on the other end of the uplink.
    pub world: Machine,
    mounts: Mounts,
    /// The wire, where it is no veth pair.
    wire: Option<Tunnel>,
}

impl Sandbox {
    /// Builds the node and the world; nothing of ours runs yet.
    pub fn new() -> Result<Self> {
        let sandbox = Self::apart()?;
        sandbox.connect(UPLINK, "eth0")?;
        sandbox.joined()
    }

    /// The same, with a world that is far away: packets are under way for `delay`.
    pub fn distant(delay: Duration) -> Result<Self> {
        let mut sandbox = Self::apart()?;
        let ends = [(&sandbox.node, UPLINK), (&sandbox.world, "eth0")];
        sandbox.wire = Some(Tunnel::stretch(ends, delay)?);
        sandbox.joined()
    }

    fn apart() -> Result<Self> {
        let mounts = Mounts::new()?;
        Ok(Self {
            node: Machine::new("node", &mounts)?,
            world: Machine::new("world", &mounts)?,
            mounts,
            wire: None,
        })
    }

    fn joined(self) -> Result<Self> {
        let sandbox = self;
        sandbox.dress(&sandbox.node, UPLINK, &NODE)?;
        sandbox.dress(&sandbox.world, "eth0", &WORLD)?;
        for address in WORLD {
            let family = flag(address);
            sandbox.node.call(&format!(
                "ip {family} route add default via {address} dev {UPLINK}"
            ))?;
        }
        Ok(sandbox)
    }

    /// Builds everything and starts the agent with its usual arguments.
    pub fn with_agent() -> Result<(Self, Agent)> {
        let sandbox = Self::new()?;
        let agent = Agent::start(&sandbox.node, &[])?;
        Ok((sandbox, agent))
    }

    /// How long threads have been busy with making the wire long, so far.
    pub fn wire_busy(&self) -> Duration {
        self.wire.as_ref().map_or(Duration::ZERO, Tunnel::busy)
    }

    /// A machine with nothing but its loopback.
    pub fn machine(&self, name: &str) -> Result<Machine> {
        Machine::new(name, &self.mounts)
    }

    /// An empty network namespace, as a runtime makes one for a pod.
    pub fn pod(&self, name: &str) -> Result<Pod> {
        Ok(self.pod_in(self.machine(name)?))
    }

    /// A pod that is attached and limited as containerd would ask for it, in bits per second; 0 for no limit.
    pub fn limited(&self, name: &str, ingress: u64, egress: u64) -> Result<Pod> {
        let burst = |rate| if rate == 0 { 0 } else { CONTAINERD };
        let bandwidth = json!({
            "ingressRate": ingress, "ingressBurst": burst(ingress),
            "egressRate": egress, "egressBurst": burst(egress),
        });
        let config = Config::new("1.0.0").with("runtimeConfig", json!({ "bandwidth": bandwidth }));
        let mut pod = self.pod(name)?;
        pod.add_with(config)?;
        Ok(pod)
    }

    /// A pod in a namespace that is there already.
    pub fn pod_in(&self, machine: Machine) -> Pod {
        Pod::new(machine, self.node.clone())
    }

    /// Lays another wire between node and world.
    pub fn connect(&self, node_end: &str, world_end: &str) -> Result<()> {
        let path = self.world.path();
        self.node
            .call(&format!(
                "ip link add {node_end} type veth peer name {world_end} netns {path}"
            ))
            .map(drop)
    }

    /// Gives an interface its addresses and sets it up, without the second that IPv6 would take to be sure of its
    /// link-local address.
    pub fn dress(&self, machine: &Machine, interface: &str, addresses: &[IpAddr]) -> Result<()> {
        machine.sysctl(&format!("ipv6/conf/{interface}/dad_transmits"), "0")?;
        for address in addresses {
            let rest = if address.is_ipv4() {
                "/24"
            } else {
                "/64 nodad"
            };
            machine
                .call(&format!("ip address add {address}{rest} dev {interface}"))
                .context("cannot dress an interface")?;
        }
        machine
            .call(&format!("ip link set {interface} up"))
            .map(drop)
    }
}

/// The option that makes `ip` and its like speak the family of `address`.
pub(crate) fn flag(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "-4" } else { "-6" }
}

const fn address(host: u16, six: bool) -> IpAddr {
    use std::net::{Ipv4Addr, Ipv6Addr};
    if six {
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, host))
    } else {
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, host.to_be_bytes()[1]))
    }
}
