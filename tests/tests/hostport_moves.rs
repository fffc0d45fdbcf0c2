//! A hostport that changes hands: what is under way then, and what comes next.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Config, Conversation, Echo, Mapping, NODE, Pod, Sandbox, Sniffer, WORLD, tcp_source,
    until,
};

const PORTS: [Mapping; 2] = [
    Mapping {
        host: 8080,
        container: 80,
        protocol: "tcp",
    },
    Mapping {
        host: 8080,
        container: 80,
        protocol: "udp",
    },
];

/// A node with two pods that may have the port, one after the other.
struct Stage {
    sandbox: Sandbox,
    _agent: Agent,
    first: Pod,
    second: Pod,
}

impl Stage {
    fn set() -> Result<Self> {
        let (sandbox, agent) = Sandbox::with_agent()?;
        let (first, second) = (sandbox.pod("first")?, sandbox.pod("second")?);
        Ok(Self {
            sandbox,
            _agent: agent,
            first,
            second,
        })
    }

    fn publish(pod: &mut Pod) -> Result<()> {
        pod.add_with(Config::new("1.1.0").publish(&PORTS)).map(drop)
    }
}

/// A server in a pod that tells nobody anything: what has arrived is read by the test.
fn listener(pod: &Pod) -> Result<UdpSocket> {
    let socket = pod.machine.run(|| UdpSocket::bind("[::]:80"))?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    Ok(socket)
}

fn heard(socket: &UdpSocket) -> Result<(u32, SocketAddr)> {
    let mut buffer = [0; 4];
    let (_, from) = socket
        .recv_from(&mut buffer)
        .context("nothing has arrived")?;
    Ok((
        u32::from_be_bytes(buffer),
        SocketAddr::new(from.ip().to_canonical(), from.port()),
    ))
}

/// BEHAVIOURS E-11. The client never rests and keeps its port: for the kernel's own NAT that is one flow for ever.
#[test]
fn the_next_datagram_of_a_stream_is_the_next_pods_and_none_goes_to_the_old_address() -> Result<()> {
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
            ensure!(heard(&first)? == (number, own));
        }
        let old = stage.first.addresses[family];
        stage.first.del()?;
        let sniffer = Sniffer::both_ways(&stage.sandbox.node, "cbr0", &format!("dst host {old}"))?;
        // Nobody has the port now.
        for number in 10..20 {
            send(number)?;
        }
        Stage::publish(&mut stage.second)?;
        let second = listener(&stage.second)?;
        for number in 20..30 {
            send(number)?;
            ensure!(heard(&second)? == (number, own), "family {family}");
        }
        ensure!(
            stage.second.addresses[family] != old,
            "the address is not given again at once"
        );
        let leaked = sniffer.end()?;
        ensure!(leaked.is_empty(), "to the old address: {leaked:?}");
        stage.second.del()?;
    }
    Ok(())
}

#[test]
fn a_connection_ends_with_its_pod_and_the_next_one_is_the_next_pods() -> Result<()> {
    let mut stage = Stage::set()?;
    for family in [0, 1] {
        let to = SocketAddr::new(NODE[family], 8080);
        Stage::publish(&mut stage.first)?;
        let first = Echo::start(&stage.first.machine, 80)?;
        let under_way = Conversation::tcp(&stage.sandbox.world, to)?;
        under_way.go_on()?;
        stage.first.del()?;
        Stage::publish(&mut stage.second)?;
        let _second = Echo::start(&stage.second.machine, 80)?;
        // At once: nothing has to time out before.
        let (seen, stream) = tcp_source(&stage.sandbox.world, 0, to)?;
        ensure!(seen.ip() == WORLD[family]);
        ensure!(
            under_way.go_on().is_err(),
            "the next pod has taken over a connection"
        );
        drop((first, stream));
        stage.second.del()?;
    }
    Ok(())
}

/// BEHAVIOURS R12: a `hostIP` that the node does not have yet.
#[test]
fn a_port_of_an_address_that_comes_later_is_served_from_then_on() -> Result<()> {
    const LATE: &str = "192.0.2.77";
    let mut stage = Stage::set()?;
    let mapping = serde_json::json!({
        "hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": LATE,
    });
    let capability = serde_json::json!({ "portMappings": [mapping] });
    let config = Config::new("1.1.0").with("runtimeConfig", capability);
    stage.first.add_with(config)?;
    let _echo = Echo::start(&stage.first.machine, 80)?;
    let to = SocketAddr::new(LATE.parse()?, 8080);
    let node = &stage.sandbox.node;
    node.call(&format!("ip address add {LATE}/24 dev up0"))?;
    until("the address has its hostport", || {
        Ok(tcp_source(&stage.sandbox.world, 0, to).ok())
    })?;
    ensure!(tcp_source(&stage.sandbox.world, 0, SocketAddr::new(NODE[0], 8080)).is_err());
    Ok(())
}
