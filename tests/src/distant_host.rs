//! A host behind the world, so that a path has a router and an MTU of its own.

use std::net::IpAddr;

use anyhow::Result;

use crate::{Machine, Sandbox};

/// A host that is reached through the world, which becomes a router.
///
/// ```text
///   node ── up0 ════ eth0 ── world ── far ════ eth0 ── far away
///           192.0.2.0/24             203.0.113.0/24
///           2001:db8:1::/64          2001:db8:9::/64
/// ```
#[derive(Debug)]
pub struct DistantHost {
    /// The network namespace of the host.
    pub machine: Machine,
    /// Its addresses, IPv4 first.
    pub addresses: [IpAddr; 2],
    world: Machine,
}

/// The world's interface to the host.
const BEYOND: &str = "far";

impl DistantHost {
    /// Creates the host, behind a veth pair with this MTU.
    pub fn new(sandbox: &Sandbox, mtu: u32) -> Result<Self> {
        let world = &sandbox.world;
        let far = Self {
            machine: sandbox.machine("far")?,
            addresses: ["203.0.113.9".parse()?, "2001:db8:9::9".parse()?],
            world: world.clone(),
        };
        let path = far.machine.path();
        world.call(&format!(
            "ip link add {BEYOND} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {path}"
        ))?;
        sandbox.configure_link(
            world,
            BEYOND,
            &["203.0.113.1".parse()?, "2001:db8:9::1".parse()?],
        )?;
        sandbox.configure_link(&far.machine, "eth0", &far.addresses)?;
        far.machine.call("ip route add default via 203.0.113.1")?;
        far.machine
            .call("ip -6 route add default via 2001:db8:9::1")?;
        world.sysctl("ipv4/ip_forward", "1")?;
        world.sysctl("ipv6/conf/all/forwarding", "1")?;
        Ok(far)
    }

    /// Changes the MTU of the veth pair.
    pub fn resize(&self, mtu: u32) -> Result<()> {
        self.world
            .call(&format!("ip link set {BEYOND} mtu {mtu}"))?;
        self.machine
            .call(&format!("ip link set eth0 mtu {mtu}"))
            .map(drop)
    }
}
