//! What a pod sends out of the node past the stack, from its first packet on, each of which may go another way through our
//! programs than the one before it (decision 69).

use std::net::{IpAddr, SocketAddr, UdpSocket};

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Config, Echo, Mapping, NODE, Pod, Sandbox, UPLINK, WORLD, deadline, on_each_cpu,
    udp_ask, udp_source, until,
};
use serde_json::Value;

const PORT: u16 = 7000;
const HOSTPORT: u16 = 8080;
/// Questions in a row: far more than it takes until all is done at the pod's end.
const QUESTIONS: u64 = 300;
const QUESTION: &[u8] = b"who am I?";
/// What an IP header and a UDP header take, by family.
const HEADERS: [u64; 2] = [28, 48];

struct Node {
    sandbox: Sandbox,
    agent: Agent,
    pod: Pod,
    _servers: [Echo; 2],
}

impl Node {
    fn new(flags: &[&str]) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let agent = Agent::start(&sandbox.node, flags)?;
        let mut pod = sandbox.pod("pod")?;
        let config = Config::new("1.1.0").publish(&Mapping::both(HOSTPORT, PORT));
        pod.add_with(config)?.success()?;
        let servers = [
            Echo::start(&sandbox.world, PORT)?,
            Echo::start(&pod.machine, PORT)?,
        ];
        Ok(Self {
            sandbox,
            agent,
            pod,
            _servers: servers,
        })
    }

    /// A socket of the pod that has asked the world once, and whom the world saw.
    fn asks(&self, family: usize) -> Result<(SocketAddr, UdpSocket)> {
        let world = SocketAddr::new(WORLD[family], PORT);
        let (_, socket) = udp_source(&self.pod.machine, 0, world)?;
        Ok((socket.local_addr()?, socket))
    }

    fn flow(&self, peer: IpAddr, port: u16) -> Result<Value> {
        let mut view = self
            .agent
            .get(&format!("/v1/flows?pod=pod&peer={peer}&port={port}"))?;
        ensure!(view["matching"] == 1, "{view}");
        Ok(view["flows"][0].take())
    }
}

/// Asks so many times, each time once, and each time the answer has to be the same.
fn ask(socket: &UdpSocket, times: u64, seen: IpAddr) -> Result<()> {
    socket.set_read_timeout(Some(deadline()))?;
    let mut buffer = [0; 128];
    for _ in 0..times {
        socket.send(QUESTION)?;
        let length = socket.recv(&mut buffer).context("no answer")?;
        let whom: SocketAddr = std::str::from_utf8(&buffer[..length])?.parse()?;
        ensure!(whom.ip() == seen, "{whom} instead of {seen}");
    }
    Ok(())
}

/// What a flow has sent and got: packets and bytes.
fn passed(flow: &Value) -> [u64; 4] {
    let names = [
        "sent_packets",
        "answered_packets",
        "sent_bytes",
        "answered_bytes",
    ];
    names.map(|name| flow[name].as_u64().unwrap_or_default())
}

#[test]
fn every_packet_is_translated_and_counted_once() -> Result<()> {
    let node = Node::new(&[])?;
    for family in [0, 1] {
        let (own, socket) = node.asks(family)?;
        // While neighbours are looked for, a question may be asked twice.
        ask(&socket, 1, NODE[family])?;
        let before = passed(&node.flow(WORLD[family], own.port())?);
        ask(&socket, QUESTIONS, NODE[family])?;
        let after = passed(&node.flow(WORLD[family], own.port())?);
        assert_eq!([0, 1].map(|at| after[at] - before[at]), [QUESTIONS; 2]);
        let question = HEADERS[family] + QUESTION.len() as u64;
        assert_eq!(after[2] - before[2], QUESTIONS * question);
    }
    Ok(())
}

#[test]
fn every_answer_of_a_hostport_comes_from_the_address_that_was_dialled() -> Result<()> {
    let node = Node::new(&[])?;
    for family in [0, 1] {
        let hostport = SocketAddr::new(NODE[family], HOSTPORT);
        // The socket is connected: from any other address nothing would reach it.
        let (_, socket) = udp_source(&node.sandbox.world, 0, hostport)?;
        ask(&socket, 1, WORLD[family])?;
        let port = socket.local_addr()?.port();
        let before = passed(&node.flow(WORLD[family], port)?);
        ask(&socket, QUESTIONS, WORLD[family])?;
        let after = passed(&node.flow(WORLD[family], port)?);
        assert_eq!([0, 1].map(|at| after[at] - before[at]), [QUESTIONS; 2]);
    }
    Ok(())
}

/// Minor numbers of traffic classes end up in the same field of a packet as our labels; these are our labels.
#[test]
fn a_pod_that_labels_its_packets_as_ours_is_translated_all_the_same() -> Result<()> {
    for bypass in ["always", "never"] {
        let node = Node::new(&["--bypass-netfilter", bypass])?;
        for label in ["5644", "564c"] {
            let pod = &node.pod.machine;
            pod.call("tc qdisc add dev eth0 clsact")?;
            pod.call(&format!(
                "tc filter add dev eth0 egress u32 match u32 0 0 classid 1:{label}"
            ))?;
            for family in [0, 1] {
                let (_, socket) = node.asks(family)?;
                ask(&socket, 20, NODE[family])?;
            }
            pod.call("tc qdisc del dev eth0 clsact")?;
        }
    }
    Ok(())
}

#[test]
fn a_neighbour_that_moves_is_followed() -> Result<()> {
    const MOVED: &str = "02:00:5e:10:00:01";
    let node = Node::new(&[])?;
    let sockets = [node.asks(0)?.1, node.asks(1)?.1];
    for (family, socket) in sockets.iter().enumerate() {
        ask(socket, QUESTIONS, NODE[family])?;
    }
    node.sandbox
        .world
        .call(&format!("ip link set dev eth0 address {MOVED}"))?;
    for (family, socket) in sockets.iter().enumerate() {
        let world = WORLD[family];
        node.sandbox.node.call(&format!(
            "ip neigh replace {world} lladdr {MOVED} dev {UPLINK}"
        ))?;
        // Each CPU knows by itself where packets go, and follows by itself.
        on_each_cpu(|| until("packets follow", || Ok(udp_ask(socket).ok())).map(drop))?;
        ask(socket, QUESTIONS, NODE[family])?;
    }
    Ok(())
}
