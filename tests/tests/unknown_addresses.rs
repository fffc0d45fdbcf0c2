//! Probes of addresses of the pod subnets that no pod has: they cost the node and the pods nothing.
//!
//! The kernel's neighbour tables have 1,024 entries by default, which all namespaces share.

use std::net::{IpAddr, Ipv6Addr};

use abi::Address;
use anyhow::{Context as _, Result, ensure};
use e2e::{Agent, Machine, NODE, Pod, RawSocket, Sandbox, ping, until};
use verdict::simulator::frame::{Body, Frame};

/// A pod CIDR with as many IPv4 addresses as there are probes.
const CIDRS: [&str; 2] = ["10.64.0.0/16", "fd00:64::/64"];
const GATEWAYS: [&str; 2] = ["10.64.0.1", "fd00:64::1"];
const PROBES: u16 = 6_000;
/// Most entries of a neighbour table (`gc_thresh3`).
const TABLE: usize = 1_024;

struct Scene {
    sandbox: Sandbox,
    agent: Agent,
    prober: Pod,
    witness: Pod,
}

impl Scene {
    /// A node with two pods. The world reaches the pods' own addresses, and one pod reaches its
    /// subnet through the gateway only.
    fn new(bypass: &str) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let cidrs = CIDRS.map(|cidr| format!("--pod-cidr={cidr}"));
        let bypass = format!("--bypass-netfilter={bypass}");
        let flags = cidrs.into_iter().chain([bypass]).collect();
        let agent = Agent::start_with(&sandbox.node, flags)?;
        let [mut prober, mut witness] = [sandbox.pod("prober")?, sandbox.pod("witness")?];
        prober.add()?;
        witness.add()?;
        for (index, node) in NODE.into_iter().enumerate() {
            let (cidr, gateway) = (CIDRS[index], GATEWAYS[index]);
            let world = &sandbox.world;
            world.call(&format!("ip route add {cidr} via {node}"))?;
            let family = if node.is_ipv4() { "-4" } else { "-6" };
            let pod = &prober.machine;
            pod.call(&format!("ip {family} route add {gateway} dev eth0"))?;
            pod.call(&format!("ip {family} route del {cidr} dev eth0"))?;
            pod.call(&format!("ip {family} route add {cidr} via {gateway}"))?;
        }
        let scene = Self {
            sandbox,
            agent,
            prober,
            witness,
        };
        scene.reach_witness()?;
        Ok(scene)
    }

    /// Pings the witness from everywhere, and the node from the witness. No packet may be lost.
    fn reach_witness(&self) -> Result<()> {
        for (index, node) in NODE.into_iter().enumerate() {
            let to = self.witness.address(node)?;
            for from in [
                &self.sandbox.node,
                &self.sandbox.world,
                &self.prober.machine,
            ] {
                ping(from, to, 20).with_context(|| format!("from {}", from.name()))?;
            }
            ping(&self.witness.machine, GATEWAYS[index].parse()?, 20)?;
        }
        Ok(())
    }

    /// Returns how many neighbours the node has, or tries to resolve.
    fn neighbours(&self) -> Result<usize> {
        let shown = self.sandbox.node.call("ip neigh show nud all dev cbr0")?;
        Ok(shown.lines().count())
    }

    fn dropped(&self) -> Result<u64> {
        let counters = self.agent.get("/v1/counters")?;
        Ok(counters["drops"]["unknown-pod"].as_u64().unwrap_or(0))
    }

    /// Sends probes from `machine` with its address `own`, each to another address that no pod
    /// has.
    fn probe(&self, machine: &Machine, own: IpAddr) -> Result<()> {
        let raw = RawSocket::sender(machine, own)?;
        for number in 0..PROBES {
            let to = unknown(own, number);
            let body = match number % 2 {
                0 => Body::echo_request(&address(own), number),
                _ => Body::Udp(number, 33_434, b"probe".to_vec()),
            };
            let mut frame = Frame::new(address(own), address(to), body);
            frame.ethernet = None;
            raw.send(&frame.packet(), to)?;
            if number % 1_000 == 0 {
                self.reach_witness()?;
            }
        }
        Ok(())
    }
}

fn address(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    }
}

/// Returns an address of the pod subnet that no pod has.
fn unknown(like: IpAddr, number: u16) -> IpAddr {
    let [high, low] = (0x1000 + number).to_be_bytes();
    if like.is_ipv4() {
        [10, 64, high, low].into()
    } else {
        Ipv6Addr::new(0xfd00, 0x64, 0, 0, 1, 2, 3, 0x1000 + number).into()
    }
}

fn probes_cost_nothing(bypass: &str) -> Result<()> {
    let scene = Scene::new(bypass)?;
    let before = scene.neighbours()?;
    let mut sent = 0;
    for (index, node) in NODE.into_iter().enumerate() {
        let outside = e2e::WORLD[index];
        scene.probe(&scene.sandbox.world, outside)?;
        scene.probe(&scene.prober.machine, scene.prober.address(node)?)?;
        sent += 2 * u64::from(PROBES);
        scene.reach_witness()?;
    }
    let (after, dropped) = (scene.neighbours()?, scene.dropped()?);
    ensure!(
        after < before + 50 && after < TABLE / 4,
        "{before} neighbours, then {after}"
    );
    ensure!(dropped >= sent, "{dropped} of {sent} probes were dropped");
    Ok(())
}

#[test]
fn probes_of_unknown_addresses_cost_nothing_past_the_stack() -> Result<()> {
    probes_cost_nothing("auto")
}

#[test]
fn probes_of_unknown_addresses_cost_nothing_through_the_stack() -> Result<()> {
    probes_cost_nothing("never")
}

/// Not every address is known where other software has a port of the bridge.
#[test]
fn addresses_of_other_software_on_the_bridge_stay_reachable_through_the_gateway() -> Result<()> {
    let scene = Scene::new("auto")?;
    let other = scene.sandbox.machine("other")?;
    let node = &scene.sandbox.node;
    node.call(&format!(
        "ip link add foreign0 type veth peer name eth0 netns {}",
        other.path()
    ))?;
    node.call("ip link set foreign0 master cbr0 up")?;
    let own = [0, 1].map(|family| unknown(NODE[family], 7));
    scene.sandbox.configure_link(&other, "eth0", &own)?;
    for (index, address) in own.into_iter().enumerate() {
        let family = if address.is_ipv4() { "-4" } else { "-6" };
        let gateway = GATEWAYS[index];
        other.call(&format!("ip {family} route replace {gateway} dev eth0"))?;
        other.call(&format!("ip {family} route replace default via {gateway}"))?;
        until("a pod reaches the address through the gateway", || {
            Ok(ping(&scene.prober.machine, address, 1).ok())
        })?;
    }
    node.call("ip link del foreign0")?;
    let before = scene.dropped()?;
    until("the address is unknown again", || {
        let raw = RawSocket::sender(&scene.sandbox.world, e2e::WORLD[0])?;
        let body = Body::Udp(7, 33_434, b"probe".to_vec());
        let mut frame = Frame::new(address(e2e::WORLD[0]), address(own[0]), body);
        frame.ethernet = None;
        raw.send(&frame.packet(), own[0])?;
        Ok((scene.dropped()? > before).then_some(()))
    })
}
