//! A pod that gets the addresses of a pod that has just gone is reached at the first attempt, by
//! neighbours that still have the other pod's MAC address (decision 98).

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use e2e::{Agent, Config, Echo, Machine, Pod, Sandbox, deadline, ping, udp_socket, udp_source};
use serde_json::{Value, json};

const PORT: u16 = 7000;
/// Addresses that change hands, without their prefix length.
const HANDED: [&str; 2] = ["10.77.0.10", "fd00:77::10"];
const OTHER: [&str; 2] = ["10.77.0.11", "fd00:77::11"];
/// Addresses of the world on the pods' own bridge.
const ON_LINK: [&str; 2] = ["10.77.0.200", "fd00:77::200"];
const GATEWAY: [&str; 2] = ["10.77.0.1", "fd00:77::1"];
const BITS: [u8; 2] = [24, 64];

/// A network on the bridge `br7`, with these addresses for one pod.
fn config(addresses: [&str; 2]) -> Config {
    let each = (0..2).map(|family| {
        let (address, gateway) = (addresses[family], GATEWAY[family]);
        json!({ "address": format!("{address}/{}", BITS[family]), "gateway": gateway })
    });
    Config(json!({
        "cniVersion": "1.0.0", "name": "handed", "type": "viaduct", "bridge": "br7",
        "isGateway": true,
        "ipam": { "type": "static", "addresses": each.collect::<Vec<Value>>() },
    }))
}

/// Sends one datagram, once; a lost one fails.
fn answers_the_first_datagram(from: &Machine, server: IpAddr) -> Result<()> {
    let server = SocketAddr::new(server, PORT);
    let socket = from.run(|| udp_socket(0, server))?;
    socket.set_read_timeout(Some(deadline()))?;
    socket.send(b"who am I?")?;
    let answered = socket.recv(&mut [0; 128]);
    answered
        .with_context(|| format!("{}: the first datagram to {server} was lost", from.name()))?;
    Ok(())
}

struct Scene {
    sandbox: Sandbox,
    agent: Agent,
    neighbour: Pod,
}

impl Scene {
    /// A node whose bridge has a port to the world, and a pod that lives throughout.
    fn new(flags: &[&str]) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let (node, world) = (&sandbox.node, &sandbox.world);
        sandbox.connect("port0", "eth1")?;
        node.call("ip link add br7 type bridge")?;
        node.call("ip link set port0 master br7 up")?;
        node.call("ip link set br7 up")?;
        sandbox.configure_link(
            world,
            "eth1",
            &ON_LINK.map(|text| text.parse().expect("an address")),
        )?;
        let agent = Agent::start(node, flags)?;
        let mut neighbour = sandbox.pod("neighbour")?;
        neighbour.add_with(config(["10.77.0.2", "fd00:77::2"]))?;
        Ok(Self {
            sandbox,
            agent,
            neighbour,
        })
    }

    /// The neighbours of the pods: another pod, the node, and the world on the same link.
    fn clients(&self) -> [&Machine; 3] {
        let Sandbox { node, world, .. } = &self.sandbox;
        [&self.neighbour.machine, node, world]
    }

    /// Attaches a pod with a server, without any packet to it.
    fn add(&self, name: &str, addresses: [&str; 2]) -> Result<(Pod, Echo)> {
        let mut pod = self.sandbox.pod(name)?;
        let server = Echo::start(&pod.machine, PORT)?;
        pod.add_with(config(addresses))?;
        Ok((pod, server))
    }

    /// Waits until all clients have an entry for these addresses that the kernel uses.
    fn is_known(&self, addresses: [&str; 2]) -> Result<()> {
        for client in self.clients() {
            for address in addresses {
                let server = SocketAddr::new(address.parse()?, PORT);
                udp_source(client, 0, server)?;
                let entries = client.call(&format!("ip neigh show {address}"))?;
                ensure!(entries.contains("lladdr"), "{}: {entries}", client.name());
            }
        }
        Ok(())
    }

    fn is_reached_at_once(&self, addresses: [&str; 2]) -> Result<()> {
        for client in self.clients() {
            for address in addresses {
                answers_the_first_datagram(client, address.parse()?)?;
            }
        }
        Ok(())
    }
}

#[test]
fn the_next_pod_of_an_address_is_reached_at_the_first_attempt() -> Result<()> {
    for mode in ["--bypass-netfilter=always", "--bypass-netfilter=never"] {
        let scene = Scene::new(&[mode])?;
        let mut last = scene.add("pod0", HANDED)?;
        for number in 1..5 {
            scene.is_known(HANDED)?;
            last.0.del()?;
            last = scene.add(&format!("pod{number}"), HANDED)?;
            scene
                .is_reached_at_once(HANDED)
                .with_context(|| mode.to_owned())?;
        }
    }
    Ok(())
}

/// The agent does not know which MAC address an address had before its start.
#[test]
fn the_next_pod_of_an_address_is_reached_after_a_restart_of_the_agent() -> Result<()> {
    let mut scene = Scene::new(&[])?;
    let (first, _server) = scene.add("first", HANDED)?;
    scene.is_known(HANDED)?;
    first.del()?;
    scene.agent.kill()?;
    scene.agent.restart()?;
    let _second = scene.add("second", HANDED)?;
    scene.is_reached_at_once(HANDED)
}

/// Each address may come from another pod.
#[test]
fn a_pod_with_the_addresses_of_two_pods_is_reached_at_the_first_attempt() -> Result<()> {
    let scene = Scene::new(&[])?;
    let one = scene.add("one", HANDED)?;
    let two = scene.add("two", OTHER)?;
    scene.is_known(HANDED)?;
    scene.is_known(OTHER)?;
    one.0.del()?;
    two.0.del()?;
    let crossed = [[HANDED[0], OTHER[1]], [OTHER[0], HANDED[1]]];
    let _pods = [
        scene.add("three", crossed[0])?,
        scene.add("four", crossed[1])?,
    ];
    crossed
        .into_iter()
        .try_for_each(|addresses| scene.is_reached_at_once(addresses))
}

/// The address moves between two nodes of one link: their switch learns the new port at once.
#[test]
fn an_address_that_a_foreign_host_had_is_reached_at_the_first_attempt() -> Result<()> {
    let scene = Scene::new(&[])?;
    let world = &scene.sandbox.world;
    for (address, bits) in HANDED.into_iter().zip(BITS) {
        let nodad = if bits == 64 { " nodad" } else { "" };
        world.call(&format!("ip address add {address}/{bits} dev eth1{nodad}"))?;
    }
    let servers = HANDED.map(|address| {
        let address: IpAddr = address.parse()?;
        Echo::at(world, SocketAddr::new(address, PORT))
    });
    let servers = servers.into_iter().collect::<Result<Vec<_>>>()?;
    for client in [&scene.neighbour.machine, &scene.sandbox.node] {
        for address in HANDED {
            udp_source(client, 0, SocketAddr::new(address.parse()?, PORT))?;
        }
    }
    for (address, bits) in HANDED.into_iter().zip(BITS) {
        world.call(&format!("ip address delete {address}/{bits} dev eth1"))?;
    }
    drop(servers);
    let _pod = scene.add("pod", HANDED)?;
    for client in [&scene.neighbour.machine, &scene.sandbox.node] {
        for address in HANDED {
            answers_the_first_datagram(client, address.parse()?)?;
        }
    }
    Ok(())
}

/// An address that nothing has had is not announced: neighbours have nothing to replace.
#[test]
fn a_new_address_is_not_announced() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let mut first = sandbox.pod("first")?;
    first.add()?;
    let sniffer = e2e::Sniffer::start(&first.machine, "eth0", "ip6[40]==136")?;
    let mut second = sandbox.pod("second")?;
    second.add()?;
    for address in second.addresses.clone() {
        ping(&first.machine, address, 1)?;
    }
    let seen = sniffer.end()?;
    let unsolicited = seen.iter().filter(|line| line.contains("> ff02::1:"));
    assert_eq!(unsolicited.count(), 0, "{seen:#?}");
    Ok(())
}
