//! Plain kernel forwarding: a bridge and a router without NAT. The world has a route to
//! the pods.

use std::net::IpAddr;

use anyhow::Result;
use e2e::{Machine, NODE, Sandbox, WORLD};

use super::{Path, Tables, Topology, serve_clients};
use crate::company::Company;
use crate::row::system;

/// A node with a bridge for pods, which forwards.
pub(crate) struct Forwarding {
    /// The node and its world.
    pub(crate) sandbox: Sandbox,
    /// The first three bytes of the pods' /24.
    net: [u8; 3],
}

impl Forwarding {
    /// Makes a router of the node, with pods in `net`, a /24.
    pub(crate) fn on(sandbox: Sandbox, net: [u8; 3]) -> Result<Self> {
        let it = Self { sandbox, net };
        let (node, gateway) = (&it.sandbox.node, it.address(1));
        node.call("ip link add br0 type bridge")?;
        node.call(&format!("ip address add {gateway}/24 dev br0"))?;
        node.call("ip link set br0 up")?;
        node.sysctl("ipv4/ip_forward", "1")?;
        e2e::set_bridge_netfilter(node, false)?;
        Ok(it)
    }

    /// Returns the address with this last byte.
    pub(crate) fn address(&self, number: u8) -> IpAddr {
        let [a, b, c] = self.net;
        IpAddr::from([a, b, c, number])
    }

    /// Creates a pod with the address of this last byte.
    pub(crate) fn plug(&self, name: &str, number: u8) -> Result<Machine> {
        let pod = self.sandbox.machine(name)?;
        let (path, address) = (pod.path(), self.address(number));
        let node = &self.sandbox.node;
        node.call(&format!(
            "ip link add {name} type veth peer name eth0 netns {path}"
        ))?;
        node.call(&format!("ip link set {name} master br0 up"))?;
        pod.call(&format!("ip address add {address}/24 dev eth0"))?;
        pod.call("ip link set eth0 up")?;
        pod.call(&format!("ip route add default via {}", self.address(1)))?;
        Ok(pod)
    }
}

pub(super) fn build(company: Company) -> Result<Topology> {
    let sandbox = Sandbox::new()?;
    company.join(&sandbox.node, Tables::Nft)?;
    let node = Forwarding::on(sandbox, [10, 244, 1])?;
    let sandbox = &node.sandbox;
    let back = format!("ip route add 10.244.1.0/24 via {}", NODE[0]);
    sandbox.world.call(&back)?;
    serve_clients(&sandbox.world, &sandbox.node, WORLD[0])?;
    let [a, b] = [node.plug("pod-a", 2)?, node.plug("pod-b", 3)?];
    let (at, world) = (node.address(3), WORLD[0]);
    let paths = vec![
        Path {
            from: a.clone(),
            to: b.clone(),
            target: at,
            at,
        },
        Path {
            from: sandbox.world.clone(),
            to: b,
            target: at,
            at,
        },
        Path {
            from: a,
            to: sandbox.world.clone(),
            target: world,
            at: world,
        },
    ];
    Ok(Topology {
        system: system::FORWARDING,
        paths,
        parts: Box::new(node),
    })
}
