//! Other NATs on the node (Docker, podman, kube-proxy): a source port that netfilter has in use is
//! never given to a pod's flow, and a port of a pod's flow does not break netfilter's.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use e2e::tcp_segment::{ACK, FIN, RST, SYN};
use e2e::{
    Agent, Connection, Echo, Machine, NODE, Pod, RawSocket, Sandbox, TcpSegment, WORLD, tcp_source,
    udp_source,
};

const SERVER: u16 = 7000;
/// The clients' source port, and the first of several ones.
const FROM: u16 = 43_000;
/// Exchanges on each connection: enough for entries in the flow cache.
const EXCHANGES: usize = 24;

/// Addresses of the other software's bridge and of its container.
const BRIDGE: [&str; 2] = ["172.17.0.1/16", "fd17::1/64"];
const CONTAINER: [&str; 2] = ["172.17.0.2/16", "fd17::2/64"];
/// A service's address, which no machine has: netfilter translates it to the world's server.
const SERVICE: [&str; 2] = ["10.96.0.10", "fd00:96::10"];

/// The other software's rules: its containers are masqueraded, and so are services of the node.
const RULES: &str = "
table inet other {
  chain post {
    type nat hook postrouting priority 100
    ip saddr 172.17.0.0/16 oifname != \"docker0\" masquerade
    ip6 saddr fd17::/64 oifname != \"docker0\" masquerade
  }
  chain out {
    type nat hook output priority -100
    ip daddr 10.96.0.10 meta l4proto tcp dnat ip to 192.0.2.2
    ip6 daddr fd00:96::10 meta l4proto tcp dnat ip6 to 2001:db8:1::2
  }
}
";

/// A node with a container of other software behind netfilter's masquerade, and a pod.
struct Scene {
    sandbox: Sandbox,
    agent: Agent,
    container: Machine,
    pod: Pod,
    _echo: Echo,
}

impl Scene {
    fn new(bypass: &str) -> Result<Self> {
        Self::with(bypass, |_, _| Ok(())).map(|(scene, ())| scene)
    }

    /// Runs `before` with the container and the world's server before the agent is started.
    fn with<T>(
        bypass: &str,
        before: impl FnOnce(&Sandbox, &Machine) -> Result<T>,
    ) -> Result<(Self, T)> {
        let sandbox = Sandbox::new()?;
        let node = &sandbox.node;
        node.call("ip link add docker0 type bridge")?;
        node.call("ip link set docker0 up")?;
        let container = sandbox.machine("container")?;
        let path = container.path();
        node.call(&format!(
            "ip link add v-container type veth peer name eth0 netns {path}"
        ))?;
        node.call("ip link set v-container master docker0 up")?;
        container.call("ip link set eth0 up")?;
        for (own, gateway) in CONTAINER.into_iter().zip(BRIDGE) {
            let nodad = if own.contains(':') { "nodad" } else { "" };
            node.call(&format!("ip address add {gateway} {nodad} dev docker0"))?;
            container.call(&format!("ip address add {own} {nodad} dev eth0"))?;
            let (via, _) = gateway.split_once('/').context("no prefix length")?;
            let flag = if via.contains(':') { "-6" } else { "-4" };
            container.call(&format!("ip {flag} route add default via {via}"))?;
        }
        for key in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            node.sysctl(key, "1")?;
        }
        node.mounts()
            .run(|| std::fs::write("/run/rules.nft", RULES))?;
        node.call("nft -f /run/rules.nft")?;
        let echo = Echo::start(&sandbox.world, SERVER)?;
        let outcome = before(&sandbox, &container)?;
        let agent = Agent::start(&sandbox.node, &["--bypass-netfilter", bypass])?;
        let mut pod = sandbox.pod("pod")?;
        pod.add()?;
        let scene = Self {
            sandbox,
            agent,
            container,
            pod,
            _echo: echo,
        };
        Ok((scene, outcome))
    }

    /// Opens a TCP connection or a UDP flow from a port to the world's server.
    fn open(client: &Machine, from: u16, family: usize, udp: bool) -> Result<Connection> {
        let server = SocketAddr::new(WORLD[family], SERVER);
        if udp {
            let (seen, socket) = udp_source(client, from, server)?;
            return Ok(Connection::Udp(socket, seen));
        }
        let (seen, stream) = tcp_source(client, from, server)?;
        Ok(Connection::Tcp(stream, seen))
    }
}

/// Uses all connections in turns, and checks that the server sees each as the node's, with a port
/// of its own.
fn all_work(connections: &[Connection], family: usize) -> Result<()> {
    for _ in 0..EXCHANGES {
        for (number, connection) in connections.iter().enumerate() {
            let what = || format!("connection {number} of {connections:?}");
            connection.exchange().with_context(what)?;
        }
    }
    let mut seen: Vec<SocketAddr> = connections.iter().map(Connection::seen).collect();
    ensure!(
        seen.iter().all(|seen| seen.ip() == NODE[family]),
        "{seen:?}"
    );
    seen.sort_unstable();
    seen.dedup();
    ensure!(seen.len() == connections.len(), "{connections:?}");
    Ok(())
}

fn both_orders_work(bypass: &str) -> Result<()> {
    let scene = Scene::new(bypass)?;
    let (container, pod) = (&scene.container, &scene.pod.machine);
    for family in [0, 1] {
        for udp in [false, true] {
            for (from, order) in (FROM..).zip([[container, pod], [pod, container]]) {
                let names = order.map(Machine::name);
                let what = || format!("{names:?}, family {family}, UDP {udp}");
                let mut open = Vec::new();
                for client in order {
                    let connection = Scene::open(client, from, family, udp).with_context(what)?;
                    // Enough for entries in the flow cache before the clash.
                    for _ in 0..EXCHANGES {
                        connection.exchange().with_context(what)?;
                    }
                    open.push(connection);
                }
                all_work(&open, family).with_context(what)?;
            }
        }
    }
    Ok(())
}

#[test]
fn a_pod_and_a_container_of_another_nat_use_one_source_port_past_the_stack() -> Result<()> {
    both_orders_work("always")
}

#[test]
fn a_pod_and_a_container_of_another_nat_use_one_source_port_through_the_stack() -> Result<()> {
    both_orders_work("auto")
}

/// The connection is older than Viaduct on the node, and is protected from its next packet on.
#[test]
fn a_connection_of_another_nat_from_before_the_agent_keeps_its_port() -> Result<()> {
    let (scene, mut open) = Scene::with("auto", |_, container| {
        let open = [0, 1].map(|family| Scene::open(container, FROM, family, false));
        open.into_iter().collect::<Result<Vec<_>>>()
    })?;
    for family in [1, 0] {
        let theirs = open.pop().context("one connection for each family")?;
        theirs.exchange()?;
        let ours = Scene::open(&scene.pod.machine, FROM, family, false)?;
        all_work(&[theirs, ours], family)?;
    }
    Ok(())
}

/// A process of the node dials a service, which netfilter translates: no socket has the tuple of
/// the packets.
#[test]
fn a_pod_does_not_take_the_port_of_a_translated_connection_of_the_node() -> Result<()> {
    let scene = Scene::new("auto")?;
    for family in [0, 1] {
        let service: IpAddr = SERVICE[family].parse()?;
        let (seen, stream) =
            tcp_source(&scene.sandbox.node, FROM, SocketAddr::new(service, SERVER))?;
        let theirs = Connection::Tcp(stream, seen);
        let ours = Scene::open(&scene.pod.machine, FROM, family, false)?;
        all_work(&[theirs, ours], family)?;
    }
    Ok(())
}

/// Echo requests with one identifier, by the node, a container and a pod at the same time.
#[test]
fn node_container_and_pod_ping_one_host_with_one_identifier() -> Result<()> {
    let scene = Scene::new("auto")?;
    let machines = [&scene.sandbox.node, &scene.container, &scene.pod.machine];
    for world in WORLD {
        thread::scope(|scope| {
            let pings = machines.map(|machine| {
                let line = format!("ping -n -q -e 77 -c 20 -i 0.02 -W 3 {world}");
                scope.spawn(move || machine.call(&line))
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

/// A hostile pod sends raw segments from the port of the container's connection. It receives
/// nothing of that connection, which continues.
#[test]
fn a_hostile_pod_receives_nothing_of_another_nats_connection() -> Result<()> {
    let scene = Scene::new("auto")?;
    let server = SocketAddr::new(WORLD[0], SERVER);
    let (_, mut stream) = tcp_source(&scene.container, FROM, server)?;
    let pod = &scene.pod.machine;
    let own = scene.pod.address(WORLD[0])?;
    let (listener, sender) = (
        RawSocket::listener(pod, own, 6)?,
        RawSocket::sender(pod, own)?,
    );
    for round in 0..20_u32 {
        // SYN, ACK, RST and FIN with arbitrary sequence numbers.
        for flags in [SYN, ACK, RST | ACK, FIN | ACK] {
            let segment = TcpSegment {
                from: SocketAddr::new(own, FROM),
                to: server,
                sequence: round.wrapping_mul(0x0101_0101),
                acknowledgment: 0,
                flags,
            };
            sender.send(&segment.packet()?, WORLD[0])?;
        }
        writeln!(stream, "secret {round:03}")?;
        let mut answer = [0; 11];
        stream
            .read_exact(&mut answer)
            .context("the connection ends")?;
        ensure!(answer.starts_with(b"secret "), "{answer:?}");
    }
    // The last packet that the pod receives is of its own connection.
    let (_, mut last) = tcp_source(pod, 0, server)?;
    last.write_all(b"the end of the test\n")?;
    let contains = |payload: &[u8], text: &[u8]| payload.windows(text.len()).any(|it| it == text);
    let all = listener.receive_until("the pod's own data", |packet| {
        contains(&packet.payload, b"the end of the test")
    })?;
    let leaked = all.iter().filter(|it| contains(&it.payload, b"secret"));
    ensure!(leaked.count() == 0, "the pod reads the container's data");
    let status = scene.agent.get("/v1/status")?;
    ensure!(status["uplinks"].is_array(), "{status}");
    Ok(())
}
