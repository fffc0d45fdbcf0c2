//! Packets of a pod that leave the node past the stack. Each packet of a flow, from the first one
//! on, can take another path through the programs than the one before it (decision 69).

use std::net::{IpAddr, SocketAddr, UdpSocket};

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Config, Echo, Mapping, NODE, Pod, Sandbox, UPLINK, WORLD, deadline, on_each_cpu,
    udp_seen_as, udp_source, until,
};
use serde_json::Value;

const PORT: u16 = 7000;
const HOSTPORT: u16 = 8080;
/// Requests in a row: far more than it takes until SNAT happens in `from_pod`.
const REQUESTS: u64 = 300;
const REQUEST: &[u8] = b"who am I?";
/// Length of the IP and UDP headers in bytes, by family.
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

    /// Returns a socket of the pod that has exchanged one datagram with the world, and its local
    /// address.
    fn client(&self, family: usize) -> Result<(SocketAddr, UdpSocket)> {
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

/// Exchanges `times` datagrams; the server must report the source address `seen` each time.
fn exchange(socket: &UdpSocket, times: u64, seen: IpAddr) -> Result<()> {
    socket.set_read_timeout(Some(deadline()))?;
    let mut buffer = [0; 128];
    for _ in 0..times {
        socket.send(REQUEST)?;
        let length = socket.recv(&mut buffer).context("no reply")?;
        let reported: SocketAddr = std::str::from_utf8(&buffer[..length])?.parse()?;
        ensure!(reported.ip() == seen, "{reported} instead of {seen}");
    }
    Ok(())
}

/// Returns the counters of a flow: packets sent and received, bytes sent and received.
fn counters(flow: &Value) -> [u64; 4] {
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
        let (own, socket) = node.client(family)?;
        // A request may be sent twice while neighbours are resolved.
        exchange(&socket, 1, NODE[family])?;
        let before = counters(&node.flow(WORLD[family], own.port())?);
        exchange(&socket, REQUESTS, NODE[family])?;
        let after = counters(&node.flow(WORLD[family], own.port())?);
        assert_eq!([0, 1].map(|at| after[at] - before[at]), [REQUESTS; 2]);
        let request = HEADERS[family] + REQUEST.len() as u64;
        assert_eq!(after[2] - before[2], REQUESTS * request);
    }
    Ok(())
}

#[test]
fn hostport_replies_come_from_the_dialled_address() -> Result<()> {
    let node = Node::new(&[])?;
    for family in [0, 1] {
        let hostport = SocketAddr::new(NODE[family], HOSTPORT);
        // The socket is connected: a reply from any other address would not reach it.
        let (_, socket) = udp_source(&node.sandbox.world, 0, hostport)?;
        exchange(&socket, 1, WORLD[family])?;
        let port = socket.local_addr()?.port();
        let before = counters(&node.flow(WORLD[family], port)?);
        exchange(&socket, REQUESTS, WORLD[family])?;
        let after = counters(&node.flow(WORLD[family], port)?);
        assert_eq!([0, 1].map(|at| after[at] - before[at]), [REQUESTS; 2]);
    }
    Ok(())
}

/// Minor numbers of TC classes are stored in the same skb field as Viaduct's skb tags; these two
/// equal skb tags.
#[test]
fn packets_with_a_pods_own_tc_classid_are_still_masqueraded() -> Result<()> {
    for bypass in ["always", "never"] {
        let node = Node::new(&["--bypass-netfilter", bypass])?;
        for tag in ["5644", "564c"] {
            let pod = &node.pod.machine;
            pod.call("tc qdisc add dev eth0 clsact")?;
            pod.call(&format!(
                "tc filter add dev eth0 egress u32 match u32 0 0 classid 1:{tag}"
            ))?;
            for family in [0, 1] {
                let (_, socket) = node.client(family)?;
                exchange(&socket, 20, NODE[family])?;
            }
            pod.call("tc qdisc del dev eth0 clsact")?;
        }
    }
    Ok(())
}

#[test]
fn packets_follow_a_neighbours_new_mac_address() -> Result<()> {
    const MOVED: &str = "02:00:5e:10:00:01";
    let node = Node::new(&[])?;
    let sockets = [node.client(0)?.1, node.client(1)?.1];
    for (family, socket) in sockets.iter().enumerate() {
        exchange(socket, REQUESTS, NODE[family])?;
    }
    node.sandbox
        .world
        .call(&format!("ip link set dev eth0 address {MOVED}"))?;
    for (family, socket) in sockets.iter().enumerate() {
        let world = WORLD[family];
        node.sandbox.node.call(&format!(
            "ip neigh replace {world} lladdr {MOVED} dev {UPLINK}"
        ))?;
        // The flow cache is per CPU, so each CPU has to learn the new address.
        on_each_cpu(|| {
            until("packets reach the new address", || {
                Ok(udp_seen_as(socket).ok())
            })
            .map(drop)
        })?;
        exchange(socket, REQUESTS, NODE[family])?;
    }
    Ok(())
}
