//! Clashing tuples: one client address and port reaches one port of a pod by several addresses at
//! the same time (published ports, addresses of the node, the pod's own address). All of these
//! flows work, and each is answered from the address that the client has dialled.

#[path = "nat_clashes/answers.rs"]
mod answers;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use e2e::{
    Agent, Config, Connection, Echo, GATEWAYS, Machine, Mapping, NODE, Pod, Sandbox, UPLINK, WORLD,
    any_address, patient, tcp_source, udp_bound,
};

/// The node's second addresses on its uplink.
const SECOND: [&str; 2] = ["192.0.2.77", "2001:db8:1::77"];
const PORT: u16 = 80;
/// Two published ports of one port of the pod.
const PUBLISHED: [u16; 2] = [8080, 8081];
/// The source port of all flows of a client.
const FROM: u16 = 45_000;
/// Exchanges on each flow: enough for entries in the flow cache.
const EXCHANGES: usize = 24;

/// A pod with two published ports of one port, another pod, and a client in the world that has a
/// route to pods.
struct Scene {
    sandbox: Sandbox,
    _agent: Agent,
    server: Pod,
    client: Pod,
    _echo: Echo,
}

impl Scene {
    fn new(bypass: &str) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        for (address, length) in SECOND.into_iter().zip([24, 64]) {
            let line = format!("ip addr add {address}/{length} dev {UPLINK} nodad");
            sandbox.node.call(&line)?;
        }
        let agent = Agent::start(&sandbox.node, &["--bypass-netfilter", bypass])?;
        let (mut server, mut client) = (sandbox.pod("server")?, sandbox.pod("client")?);
        let mappings = PUBLISHED.map(|host| Mapping::both(host, PORT)).concat();
        server.add_with(Config::new("1.1.0").publish(&mappings))?;
        client.add()?;
        for (cidr, node) in e2e::POD_CIDRS.into_iter().zip(NODE) {
            let line = format!("ip route add {cidr} via {node}");
            sandbox.world.call(&line)?;
        }
        let echo = Echo::start(&server.machine, PORT)?;
        Ok(Self {
            sandbox,
            _agent: agent,
            server,
            client,
            _echo: echo,
        })
    }

    /// Returns the addresses by which the server's port is reached through the node.
    fn published(family: usize) -> Result<Vec<SocketAddr>> {
        let second = SECOND[family].parse()?;
        let node = [NODE[family], second];
        Ok(node
            .into_iter()
            .flat_map(|address| PUBLISHED.map(|port| SocketAddr::new(address, port)))
            .collect())
    }

    /// Returns each client, the addresses that it dials, and its address as the server sees it.
    fn cases(&self, family: usize) -> Result<Vec<(&Machine, Vec<SocketAddr>, IpAddr)>> {
        let published = Self::published(family)?;
        let with = |more: Vec<SocketAddr>| [published.clone(), more].concat();
        let own = SocketAddr::new(self.server.addresses[family], PORT);
        let gateway = SocketAddr::new(GATEWAYS[family], PUBLISHED[0]);
        Ok(vec![
            (&self.sandbox.world, with(vec![own]), WORLD[family]),
            (
                &self.client.machine,
                with(vec![own, gateway]),
                self.client.addresses[family],
            ),
            (&self.server.machine, with(vec![gateway]), GATEWAYS[family]),
        ])
    }

    fn all_flows_work(&self) -> Result<()> {
        for family in [0, 1] {
            for (client, targets, seen_as) in self.cases(family)? {
                let what = || format!("{} to {targets:?}", client.name());
                all_connections_work(client, &targets, seen_as).with_context(what)?;
                all_datagrams_are_answered(client, &targets, seen_as).with_context(what)?;
            }
        }
        Ok(())
    }
}

/// Opens a TCP connection from one port to each target, and uses all of them in turns.
fn all_connections_work(client: &Machine, targets: &[SocketAddr], seen_as: IpAddr) -> Result<()> {
    let mut open = Vec::new();
    let mut sources = BTreeSet::new();
    for target in targets {
        let (seen, stream) = tcp_source(client, FROM, *target)?;
        ensure!(seen.ip() == seen_as, "{target}: the server sees {seen}");
        ensure!(
            sources.insert(seen),
            "{target}: the server sees {seen} twice"
        );
        open.push(Connection::Tcp(stream, seen));
    }
    for _ in 0..EXCHANGES {
        for (connection, target) in open.iter().zip(targets) {
            let what = || format!("the connection to {target} ends");
            connection.exchange().with_context(what)?;
        }
    }
    Ok(())
}

/// Sends datagrams from one socket to each target. Each answer must come from the target, and the
/// server must see each flow with a source of its own.
fn all_datagrams_are_answered(
    client: &Machine,
    targets: &[SocketAddr],
    seen_as: IpAddr,
) -> Result<()> {
    let socket = udp_bound(client, any_address(seen_as, FROM))?;
    socket.set_read_timeout(Some(patient(Duration::from_secs(1))))?;
    let mut sources = vec![None; targets.len()];
    for _ in 0..EXCHANGES {
        for (target, before) in targets.iter().zip(&mut sources) {
            let seen = answer_from(&socket, *target)?;
            ensure!(seen.ip() == seen_as, "{target}: the server sees {seen}");
            let first = *before.get_or_insert(seen);
            ensure!(first == seen, "{target}: the source changes to {seen}");
        }
    }
    let distinct: BTreeSet<_> = sources.iter().collect();
    ensure!(distinct.len() == targets.len(), "sources {sources:?}");
    Ok(())
}

/// Sends a datagram to `target`; returns the client's address as the server sees it. An answer from
/// another address is an error.
fn answer_from(socket: &UdpSocket, target: SocketAddr) -> Result<SocketAddr> {
    let mut buffer = [0; 128];
    for _ in 0..4 {
        socket.send_to(b"who am I?", target)?;
        let Ok((length, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        ensure!(from == target, "{target} answers from {from}");
        return Ok(String::from_utf8_lossy(&buffer[..length]).parse()?);
    }
    bail!("{target}: no answer to four datagrams")
}

#[test]
fn one_client_port_reaches_a_pod_port_by_all_of_its_addresses_past_the_stack() -> Result<()> {
    Scene::new("always")?.all_flows_work()
}

#[test]
fn one_client_port_reaches_a_pod_port_by_all_of_its_addresses_through_the_stack() -> Result<()> {
    Scene::new("never")?.all_flows_work()
}

/// A flow keeps its tuple at the pod when a flow of another client port gets the same one.
#[test]
fn a_moved_port_is_never_given_to_a_second_flow() -> Result<()> {
    let scene = Scene::new("always")?;
    let world = &scene.sandbox.world;
    for family in [0, 1] {
        let [first, second, ..] = Scene::published(family)?[..] else {
            bail!("there are fewer than two addresses");
        };
        let (_, kept) = tcp_source(world, FROM, first)?;
        let (moved, clashing) = tcp_source(world, FROM, second)?;
        ensure!(moved.port() != FROM, "the server sees {moved} twice");
        // The client now uses the port that its other flow was moved to.
        let (seen, own) = tcp_source(world, moved.port(), first)?;
        ensure!(seen != moved, "two flows have the source {seen}");
        for stream in [kept, clashing, own] {
            e2e::tcp_echo(&stream)?;
        }
    }
    Ok(())
}

/// Two pods ping one host with one identifier at the same time.
#[test]
fn two_pods_ping_one_host_with_one_identifier() -> Result<()> {
    let scene = Scene::new("always")?;
    for world in WORLD {
        thread::scope(|scope| {
            let pings = [&scene.server, &scene.client].map(|pod| {
                let line = format!("ping -n -q -e 77 -c 20 -i 0.02 -W 3 {world}");
                scope.spawn(move || pod.machine.call(&line))
            });
            for ping in pings {
                let printed = ping.join().ok().context("the thread panicked")??;
                ensure!(printed.contains(" 0% packet loss"), "{printed}");
            }
            Ok(())
        })?;
    }
    Ok(())
}
