//! A bridge and a router, as plain as the kernel has them: no rule, no translation, and a world that knows the way.

use std::net::IpAddr;

use anyhow::Result;
use e2e::{Machine, NODE, Sandbox, WORLD};

use super::{Path, Topology};
use crate::row::system;

const GATEWAY: &str = "10.244.1.1";
const PODS: [&str; 2] = ["10.244.1.2", "10.244.1.3"];

pub(super) fn build() -> Result<Topology> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    node.call("ip link add br0 type bridge")?;
    node.call(&format!("ip address add {GATEWAY}/24 dev br0"))?;
    node.call("ip link set br0 up")?;
    node.sysctl("ipv4/ip_forward", "1")?;
    e2e::filter_bridges(node, false)?;
    let back = format!("ip route add 10.244.1.0/24 via {}", NODE[0]);
    sandbox.world.call(&back)?;
    let pods = [
        plug(&sandbox, "pod-a", PODS[0])?,
        plug(&sandbox, "pod-b", PODS[1])?,
    ];
    let [a, b] = pods;
    let (at, world): (IpAddr, IpAddr) = (PODS[1].parse()?, WORLD[0]);
    let paths = [
        Path {
            from: a.clone(),
            to: b.clone(),
            dial: at,
            at,
        },
        Path {
            from: sandbox.world.clone(),
            to: b,
            dial: at,
            at,
        },
        Path {
            from: a,
            to: sandbox.world.clone(),
            dial: world,
            at: world,
        },
    ];
    Ok(Topology {
        system: system::FORWARDING,
        paths,
        _parts: Box::new(sandbox),
    })
}

fn plug(sandbox: &Sandbox, name: &str, address: &str) -> Result<Machine> {
    let pod = sandbox.machine(name)?;
    let node = &sandbox.node;
    let path = pod.path();
    node.call(&format!(
        "ip link add {name} type veth peer name eth0 netns {path}"
    ))?;
    node.call(&format!("ip link set {name} master br0 up"))?;
    pod.call(&format!("ip address add {address}/24 dev eth0"))?;
    pod.call("ip link set eth0 up")?;
    pod.call(&format!("ip route add default via {GATEWAY}"))?;
    Ok(pod)
}
