//! The network of several nodes: a switch, a router where one node is beyond it, and no agents.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result};

use crate::{Machine, Sandbox};

/// Interface of a node on its link.
const LAN: &str = "lan0";
/// Subnets of the nodes on the switch.
const NEAR: [&str; 2] = ["198.51.100.0/24", "2001:db8:51::/64"];
/// Subnets of the node behind the router.
const DISTANT: [&str; 2] = ["203.0.113.0/24", "2001:db8:53::/64"];
/// The router's number on both links.
const ROUTER: u8 = 254;

/// A machine that becomes a node.
#[derive(Debug)]
pub struct Host {
    /// The node and its files; its world is not used.
    pub sandbox: Sandbox,
    /// Its number, from 1.
    pub number: u8,
    /// Its addresses on the link, IPv4 first.
    pub addresses: [IpAddr; 2],
}

/// Hosts with the numbers 1, 2 and so on, and the switch that connects them.
///
/// ```text
///   pod ══ cbr0 ── node 1 ── lan0 ══ switch ══ lan0 ── node 2 ── cbr0 ══ pod
///   10.81.1.0/24             198.51.100.1/24           10.81.2.0/24
///   fd00:81:1::/64           2001:db8:51::1/64         fd00:81:2::/64
/// ```
#[derive(Debug)]
pub struct Network {
    /// The hosts, in the order of their numbers.
    pub hosts: Vec<Host>,
    /// The switch: a bridge without addresses.
    pub switch: Machine,
    /// The router to the host that is not on the switch, if there is one.
    pub router: Option<Machine>,
}

impl Network {
    /// Creates `count` hosts on a switch.
    pub fn flat(count: u8) -> Result<Self> {
        let sandboxes = (0..count)
            .map(|_| Sandbox::new())
            .collect::<Result<Vec<_>>>()?;
        let first = sandboxes.first().context("a network has a host")?;
        let switch = first.machine("switch")?;
        switch.call("ip link add lan type bridge")?;
        switch.call("ip link set lan up")?;
        let numbered = (1..=count).zip(sandboxes);
        let hosts = numbered.map(|(number, sandbox)| {
            // The two ends are in sandboxes of their own, which do not share paths.
            let other = sandbox.node.descriptor_path();
            plug(&switch, &format!("port{number}"), &other)?;
            let addresses = addresses(number);
            sandbox.configure_link(&sandbox.node, LAN, &addresses)?;
            Ok(Host {
                sandbox,
                number,
                addresses,
            })
        });
        Ok(Self {
            hosts: hosts.collect::<Result<_>>()?,
            switch,
            router: None,
        })
    }

    /// Creates two hosts on a switch, and a third one behind a router that knows no pods.
    ///
    /// ```text
    ///   node 1 ── lan0 ═╗                                  203.0.113.3
    ///                switch ══ lan0 ── router ── far ═══ lan0 ── node 3
    ///   node 2 ── lan0 ═╝      198.51.100.254, 203.0.113.254
    /// ```
    pub fn routed() -> Result<Self> {
        let mut network = Self::flat(2)?;
        let router = network.join("router", ROUTER)?;
        router.sysctl("ipv4/ip_forward", "1")?;
        router.sysctl("ipv6/conf/all/forwarding", "1")?;
        let sandbox = Sandbox::new()?;
        let far = sandbox.node.descriptor_path();
        router.call(&format!(
            "ip link add far type veth peer name {LAN} netns {far}"
        ))?;
        sandbox.configure_link(&router, "far", &distant_addresses(ROUTER))?;
        sandbox.configure_link(&sandbox.node, LAN, &distant_addresses(3))?;
        for host in &network.hosts {
            add_routes(&host.sandbox.node, DISTANT, addresses(ROUTER))?;
        }
        add_routes(&sandbox.node, NEAR, distant_addresses(ROUTER))?;
        network.hosts.push(Host {
            sandbox,
            number: 3,
            addresses: distant_addresses(3),
        });
        network.router = Some(router);
        Ok(network)
    }

    /// Creates a machine on the switch that is no node. It reaches the host behind the router, if
    /// there is one.
    pub fn join(&self, name: &str, number: u8) -> Result<Machine> {
        let sandbox = &self.hosts.first().context("a network has a host")?.sandbox;
        let machine = sandbox.machine(name)?;
        plug(&self.switch, &format!("port{number}"), &machine.path())?;
        sandbox.configure_link(&machine, LAN, &addresses(number))?;
        if self.router.is_some() {
            add_routes(&machine, DISTANT, addresses(ROUTER))?;
        }
        Ok(machine)
    }
}

impl Host {
    /// Replaces the node's addresses on its link by those of another number.
    pub fn readdress(&mut self, number: u8) -> Result<()> {
        let node = &self.sandbox.node;
        let is_near = self.addresses[0].to_string().starts_with("198.");
        let (new, routes, gateways) = if is_near {
            (addresses(number), DISTANT, addresses(ROUTER))
        } else {
            (distant_addresses(number), NEAR, distant_addresses(ROUTER))
        };
        let before = node.call("ip route show")?;
        node.call(&format!("ip address flush dev {LAN} scope global"))?;
        self.sandbox.configure_link(node, LAN, &new)?;
        // They went with the addresses.
        if before.contains(routes[0]) {
            add_routes(node, routes, gateways)?;
        }
        self.addresses = new;
        Ok(())
    }
}

fn add_routes(node: &Machine, prefixes: [&str; 2], gateways: [IpAddr; 2]) -> Result<()> {
    for (prefix, gateway) in prefixes.into_iter().zip(gateways) {
        node.call(&format!(
            "ip route replace {prefix} via {gateway} dev {LAN}"
        ))?;
    }
    Ok(())
}

/// Returns the addresses of a machine on the switch, IPv4 first.
pub fn addresses(number: u8) -> [IpAddr; 2] {
    let host = u16::from(number);
    [
        Ipv4Addr::new(198, 51, 100, number).into(),
        Ipv6Addr::new(0x2001, 0xdb8, 0x51, 0, 0, 0, 0, host).into(),
    ]
}

/// Returns the addresses of a machine on the link behind the router, IPv4 first.
fn distant_addresses(number: u8) -> [IpAddr; 2] {
    let host = u16::from(number);
    [
        Ipv4Addr::new(203, 0, 113, number).into(),
        Ipv6Addr::new(0x2001, 0xdb8, 0x53, 0, 0, 0, 0, host).into(),
    ]
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
