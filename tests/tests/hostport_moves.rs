//! Hostports that move to another pod: established flows and new ones.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Config, Connection, Echo, Mapping, NODE, Pod, Sandbox, Sniffer, Verb, WORLD, addresses,
    patient, tcp_source, until,
};

const PORTS: [Mapping; 2] = Mapping::both(8080, 80);

/// A node with two pods that publish the port, one after the other.
struct Stage {
    sandbox: Sandbox,
    agent: Agent,
    first: Pod,
    second: Pod,
}

impl Stage {
    fn set() -> Result<Self> {
        let (sandbox, agent) = Sandbox::with_agent()?;
        let (first, second) = (sandbox.pod("first")?, sandbox.pod("second")?);
        Ok(Self {
            sandbox,
            agent,
            first,
            second,
        })
    }

    fn publish(pod: &mut Pod) -> Result<()> {
        pod.add_with(Config::new("1.1.0").publish(&PORTS)).map(drop)
    }
}

/// A server in a pod that sends no replies; the test reads what arrives.
fn listener(pod: &Pod) -> Result<UdpSocket> {
    let socket = pod.machine.run(|| UdpSocket::bind("[::]:80"))?;
    socket.set_read_timeout(Some(patient(Duration::from_secs(5))))?;
    Ok(socket)
}

/// Returns the agent's counters, for the message of a failure.
fn state(agent: &Agent) -> String {
    agent
        .get("/v1/counters")
        .map_or_else(|error| error.to_string(), |counters| counters.to_string())
}

fn received(socket: &UdpSocket) -> Result<(u32, SocketAddr)> {
    let mut buffer = [0; 4];
    let (_, from) = socket
        .recv_from(&mut buffer)
        .context("no datagram has arrived")?;
    Ok((
        u32::from_be_bytes(buffer),
        SocketAddr::new(from.ip().to_canonical(), from.port()),
    ))
}

/// A socket in the world for each family, IPv4 first; each keeps its port.
fn clients(sandbox: &Sandbox) -> Result<[UdpSocket; 2]> {
    let bind = |address: IpAddr| sandbox.world.run(|| UdpSocket::bind((address, 0)));
    Ok([bind(WORLD[0])?, bind(WORLD[1])?])
}

/// behaviours K34, R15, F38, F39: the client sends continuously from one port, which the kernel's
/// own NAT would treat as one endless flow to the old pod.
#[test]
fn the_next_datagram_of_a_stream_reaches_the_hostports_next_owner() -> Result<()> {
    let mut stage = Stage::set()?;
    for family in [0, 1] {
        let to = SocketAddr::new(NODE[family], 8080);
        let client = stage
            .sandbox
            .world
            .run(|| UdpSocket::bind((WORLD[family], 0)))?;
        let own = client.local_addr()?;
        let send = |number: u32| client.send_to(&number.to_be_bytes(), to);

        Stage::publish(&mut stage.first)?;
        let first = listener(&stage.first)?;
        for number in 0..10 {
            send(number)?;
            ensure!(received(&first)? == (number, own));
        }
        let old = stage.first.addresses[family];
        stage.first.del()?;
        let sniffer =
            Sniffer::both_directions(&stage.sandbox.node, "cbr0", &format!("dst host {old}"))?;
        // No pod has the port now.
        for number in 10..20 {
            send(number)?;
        }
        Stage::publish(&mut stage.second)?;
        let second = listener(&stage.second)?;
        for number in 20..30 {
            send(number)?;
            ensure!(received(&second)? == (number, own), "family {family}");
        }
        ensure!(
            stage.second.addresses[family] != old,
            "the address is reused at once"
        );
        let leaked = sniffer.end()?;
        ensure!(leaked.is_empty(), "packets to the old address: {leaked:?}");
        stage.second.del()?;
    }
    Ok(())
}

/// behaviours K34, R15, F38, F39: the next pod with the old address, which publishes nothing, gets
/// no packet of the client's flow.
#[test]
fn the_next_pod_with_the_old_address_gets_nothing_of_the_stream() -> Result<()> {
    let mut stage = Stage::set()?;
    let mut heir = stage.sandbox.pod("heir")?;
    let clients = clients(&stage.sandbox)?;
    Stage::publish(&mut stage.first)?;
    let first = listener(&stage.first)?;
    let [v4, v6] = stage.first.addresses[..] else {
        anyhow::bail!("two families");
    };
    for (client, node) in clients.iter().zip(NODE) {
        client.send_to(&1_u32.to_be_bytes(), (node, 8080))?;
        ensure!(received(&first)? == (1, client.local_addr()?));
    }
    stage.first.del()?;
    let cni_args = format!("IgnoreUnknown=1;IP={v4},{v6}");
    let add = heir.prepare(Verb::Add, heir.config());
    let answer = add.set("CNI_ARGS", &cni_args).run(&stage.sandbox.node)?;
    heir.addresses = addresses(&answer.result()?)?;
    ensure!(heir.addresses == [v4, v6], "{:?}", heir.addresses);
    let inherited = listener(&heir)?;
    Stage::publish(&mut stage.second)?;
    let second = listener(&stage.second)?;
    for (client, node) in clients.iter().zip(NODE) {
        client.send_to(&2_u32.to_be_bytes(), (node, 8080))?;
        ensure!(received(&second)? == (2, client.local_addr()?));
    }
    nothing_more(&inherited)
}

/// Asserts that no unread datagram is in the socket.
fn nothing_more(inbox: &UdpSocket) -> Result<()> {
    inbox.set_nonblocking(true)?;
    let surplus = inbox.recv_from(&mut [0; 64]);
    ensure!(
        surplus
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::WouldBlock),
        "arrived: {surplus:?}"
    );
    Ok(inbox.set_nonblocking(false)?)
}

/// The sockets of a pod, which outlive its interfaces.
struct Ears {
    datagrams: UdpSocket,
    connections: TcpListener,
}

impl Ears {
    fn of(pod: &Pod) -> Result<Self> {
        let connections = pod.machine.run(|| TcpListener::bind("[::]:80"))?;
        connections.set_nonblocking(true)?;
        Ok(Self {
            datagrams: listener(pod)?,
            connections,
        })
    }

    fn accepted(&self) -> bool {
        self.connections.accept().is_ok()
    }
}

/// Two endless streams of datagrams, and a new connection after each move: everything arrives at
/// the current owner, nothing at the other pod, and nothing anywhere while the port has no owner.
#[test]
fn a_hostport_that_moves_a_thousand_times_always_reaches_its_owner() -> Result<()> {
    const MOVES: u32 = 1_000;
    let mut stage = Stage::set()?;
    let ears = [Ears::of(&stage.first)?, Ears::of(&stage.second)?];
    let world = stage.sandbox.world.clone();
    let agent = &stage.agent;
    let clients = clients(&stage.sandbox)?;
    for turn in 0..MOVES {
        let family = usize::from(turn % 4 > 1);
        let (pod, owner, other) = if turn % 2 == 0 {
            (&mut stage.first, &ears[0], &ears[1])
        } else {
            (&mut stage.second, &ears[1], &ears[0])
        };
        Stage::publish(pod)?;
        for (client, node) in clients.iter().zip(NODE) {
            client.send_to(&turn.to_be_bytes(), (node, 8080))?;
            let arrived = received(&owner.datagrams)
                .with_context(|| format!("move {turn}, {node}: {}", state(agent)))?;
            ensure!(arrived == (turn, client.local_addr()?), "{arrived:?}");
        }
        let to = SocketAddr::new(NODE[family], 8080);
        world
            .run(|| TcpStream::connect_timeout(&to, patient(Duration::from_secs(4))))
            .with_context(|| format!("move {turn}"))?;
        // The connection is complete for the owner only after the client's last segment.
        until(&format!("move {turn}"), || {
            Ok(owner.accepted().then_some(()))
        })?;
        ensure!(!other.accepted(), "move {turn}");
        pod.del()?;
        for (client, node) in clients.iter().zip(NODE) {
            // This send may return the ICMP error about the previous one: no pod has the port.
            let _ = client.send_to(&u32::MAX.to_be_bytes(), (node, 8080));
        }
        nothing_more(&other.datagrams).with_context(|| format!("move {turn}"))?;
    }
    ears.iter()
        .try_for_each(|ears| nothing_more(&ears.datagrams))
}

#[test]
fn a_connection_ends_with_its_pod_and_the_next_one_reaches_the_next_pod() -> Result<()> {
    let mut stage = Stage::set()?;
    for family in [0, 1] {
        let to = SocketAddr::new(NODE[family], 8080);
        Stage::publish(&mut stage.first)?;
        let first = Echo::start(&stage.first.machine, 80)?;
        let under_way = Connection::tcp(&stage.sandbox.world, to)?;
        under_way.exchange()?;
        stage.first.del()?;
        Stage::publish(&mut stage.second)?;
        let _second = Echo::start(&stage.second.machine, 80)?;
        // The connection ends at once, without a timeout.
        let (seen, stream) = tcp_source(&stage.sandbox.world, 0, to)?;
        ensure!(seen.ip() == WORLD[family]);
        ensure!(
            under_way.exchange().is_err(),
            "the next pod got a segment of the old connection"
        );
        drop((first, stream));
        stage.second.del()?;
    }
    Ok(())
}

/// behaviour R12: a port of a `hostIP` that the node does not have yet is reserved as well.
#[test]
fn a_hostport_of_a_later_node_address_works_once_the_address_exists() -> Result<()> {
    const LATE: [(&str, &str); 2] = [("192.0.2.77", "/24"), ("2001:db8:1::77", "/64 nodad")];
    let mut stage = Stage::set()?;
    let mapping = |address: &str| {
        serde_json::json!({
            "hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": address,
        })
    };
    let mappings = LATE.map(|(address, _)| mapping(address));
    let config = Config::new("1.1.0").map_ports(&mappings);
    stage.first.add_with(config)?;
    let ports = stage.agent.get("/v1/hostports")?.to_string();
    ensure!(ports.matches("\"socket\"").count() >= 2, "{ports}");
    let _echo = Echo::start(&stage.first.machine, 80)?;
    let (node, world) = (&stage.sandbox.node, &stage.sandbox.world);
    for ((late, length), own) in LATE.into_iter().zip(NODE) {
        node.call(&format!("ip address add {late}{length} dev up0"))?;
        let to = SocketAddr::new(late.parse()?, 8080);
        until("the hostport works at the address", || {
            Ok(tcp_source(world, 0, to).ok())
        })?;
        ensure!(tcp_source(world, 0, SocketAddr::new(own, 8080)).is_err());
    }
    Ok(())
}
