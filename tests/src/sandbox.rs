//! A node and an external machine, the world, with a link between them.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::{Agent, Config, Machine, Mounts, Pod, Tunnel};

/// The burst that containerd sets where the pod specifies none (behaviour C1), in bits.
const CONTAINERD: u64 = 4_294_967_295;

/// The node's interface to the world.
pub const UPLINK: &str = "up0";

/// The node's addresses on the uplink, IPv4 first.
pub const NODE: [IpAddr; 2] = [address(1, false), address(1, true)];

/// The world's addresses, IPv4 first.
pub const WORLD: [IpAddr; 2] = [address(2, false), address(2, true)];

/// The pods' gateways with the agent's default arguments, IPv4 first.
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
/// The node's default routes point to the world, which has no route to any pod: a packet that
/// leaves the node with a pod's address gets no answer.
#[derive(Debug)]
pub struct Sandbox {
    /// The machine on which the agent, the plugin and the node's own programs run.
    pub node: Machine,
    /// The machine at the other end of the uplink.
    pub world: Machine,
    mounts: Mounts,
    /// The link between both, if it is not a veth pair.
    tunnel: Option<Tunnel>,
}

impl Sandbox {
    /// Creates the node and the world, connected by a veth pair; no agent runs yet.
    pub fn new() -> Result<Self> {
        let sandbox = Self::unconnected()?;
        sandbox.connect(UPLINK, "eth0")?;
        sandbox.with_addresses()
    }

    /// Creates the same, with a link that delays each packet by `delay`.
    pub fn with_delay(delay: Duration) -> Result<Self> {
        let mut sandbox = Self::unconnected()?;
        let ends = [(&sandbox.node, UPLINK), (&sandbox.world, "eth0")];
        sandbox.tunnel = Some(Tunnel::with_delay(ends, delay)?);
        sandbox.with_addresses()
    }

    fn unconnected() -> Result<Self> {
        let mounts = Mounts::new()?;
        Ok(Self {
            node: Machine::new("node", &mounts)?,
            world: Machine::new("world", &mounts)?,
            mounts,
            tunnel: None,
        })
    }

    /// Configures both ends of the link, and the node's default routes.
    fn with_addresses(self) -> Result<Self> {
        let sandbox = self;
        sandbox.configure_link(&sandbox.node, UPLINK, &NODE)?;
        sandbox.configure_link(&sandbox.world, "eth0", &WORLD)?;
        for address in WORLD {
            let family = flag(address);
            sandbox.node.call(&format!(
                "ip {family} route add default via {address} dev {UPLINK}"
            ))?;
        }
        Ok(sandbox)
    }

    /// Creates the sandbox, and starts the agent with its default arguments.
    pub fn with_agent() -> Result<(Self, Agent)> {
        let sandbox = Self::new()?;
        let agent = Agent::start(&sandbox.node, &[])?;
        Ok((sandbox, agent))
    }

    /// Returns the CPU time that the delay of the link has cost so far.
    pub fn delay_cpu_time(&self) -> Duration {
        self.tunnel
            .as_ref()
            .map_or(Duration::ZERO, Tunnel::cpu_time)
    }

    /// Creates a machine that has only its loopback.
    pub fn machine(&self, name: &str) -> Result<Machine> {
        Machine::new(name, &self.mounts)
    }

    /// Creates a pod that is not attached: an empty network namespace, as a runtime creates it.
    pub fn pod(&self, name: &str) -> Result<Pod> {
        Ok(self.pod_in(self.machine(name)?))
    }

    /// Attaches a pod with limits in bits per second, in containerd's format; 0 means no limit.
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

    /// Creates a pod, not attached, in an existing namespace.
    pub fn pod_in(&self, machine: Machine) -> Pod {
        Pod::new(machine, self.node.clone())
    }

    /// Creates a veth pair between node and world.
    pub fn connect(&self, node_end: &str, world_end: &str) -> Result<()> {
        let path = self.world.path();
        self.node
            .call(&format!(
                "ip link add {node_end} type veth peer name {world_end} netns {path}"
            ))
            .map(drop)
    }

    /// Assigns addresses to an interface and sets it up, without IPv6 duplicate address detection,
    /// which takes a second.
    pub fn configure_link(
        &self,
        machine: &Machine,
        interface: &str,
        addresses: &[IpAddr],
    ) -> Result<()> {
        machine.sysctl(&format!("ipv6/conf/{interface}/dad_transmits"), "0")?;
        for address in addresses {
            let rest = if address.is_ipv4() {
                "/24"
            } else {
                "/64 nodad"
            };
            machine
                .call(&format!("ip address add {address}{rest} dev {interface}"))
                .context("cannot add an address")?;
        }
        machine
            .call(&format!("ip link set {interface} up"))
            .map(drop)
    }
}

/// Returns the option of `ip` for the family of `address`: `-4` or `-6`.
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
