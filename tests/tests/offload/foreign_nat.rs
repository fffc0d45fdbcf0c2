//! Connections that netfilter translates bypass it, too: through cluster IPs and node ports of
//! kube-proxy, and through ports as Docker publishes them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::company::RecordedRules;
use e2e::{
    Connection, ConnectionLoad, Machine, NODE, Sends, Stream, patient, udp_gets_no_answer,
    udp_seen_as, until,
};
use rtnetlink::sys::Socket;
use rtnetlink::sys::protocols::NETLINK_NETFILTER;

use super::{EXCHANGES, FEW, Node, PORT, STATEFUL};

/// Cluster IPs of the service in the recorded rules whose only endpoint is the server.
pub(super) const CLUSTER_IP: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x10)),
];
pub(super) const CLUSTER_PORT: u16 = 80;
const NODE_PORT: u16 = 30_080;
/// A port of the node that leads to the server by a rule as Docker writes it.
const DOCKER_PORT: u16 = 8082;
/// Port of the streams.
const STREAM: u16 = 7100;
/// Changes of rules while connections are open.
const CHANGES: usize = 1000;
/// Time after which a new rule applies to all packets: of nftables, and of iptables-legacy, whose
/// tables are compared once a second.
const APPLIES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(1200)];

/// A chain that counts all packets that netfilter forwards.
pub(super) const COUNTING: &str = "add table inet counting ; \
    add chain inet counting forward { type filter hook forward priority 100 ; } ; \
    add rule inet counting forward counter";

pub(super) fn counted(node: &Machine) -> Result<u64> {
    let chain = node.call("nft list chain inet counting forward")?;
    let mut words = chain.split_whitespace();
    words.find(|word| *word == "packets");
    Ok(words.next().context("no counter")?.parse()?)
}

/// Waits until almost no packet of the connection passes netfilter's forward hook.
pub(super) fn until_past_netfilter(node: &Node, connection: &Connection) -> Result<()> {
    until("the connection bypasses netfilter", || {
        let before = counted(node.node())?;
        (0..EXCHANGES).try_for_each(|_| connection.exchange())?;
        Ok((counted(node.node())? - before <= FEW).then_some(()))
    })
    .with_context(|| format!("{connection:?}"))
}

/// Starts a node beside recorded rules, which offloads.
pub(super) fn beside(rules: RecordedRules, kind: &str) -> Result<Node> {
    let node = Node::new(&[])?;
    rules.restore_by(node.node(), kind)?;
    node.nft(COUNTING)?;
    node.until_offloading(true)?;
    Ok(node)
}

/// Opens a TCP and a UDP connection of the client to each of these, and of the world to a port of
/// the node.
fn connections(node: &Node, to: &[SocketAddr], door: SocketAddr) -> Result<Vec<Connection>> {
    let client = &node.client.machine;
    let mut all = vec![
        Connection::tcp(&node.sandbox.world, door)?,
        Connection::udp(&node.sandbox.world, door)?,
    ];
    for address in to {
        all.extend([
            Connection::tcp(client, *address)?,
            Connection::udp(client, *address)?,
        ]);
    }
    Ok(all)
}

/// Opens connections through the service: by its cluster IP, and by its node port.
fn through_service(node: &Node, family: usize) -> Result<Vec<Connection>> {
    let cluster_ip = SocketAddr::new(CLUSTER_IP[family], CLUSTER_PORT);
    let node_port = SocketAddr::new(NODE[family], NODE_PORT);
    connections(node, &[cluster_ip, node_port], node_port)
}

#[test]
fn connections_through_services_bypass_the_rules_of_kube_proxy() -> Result<()> {
    for kind in ["nft", "legacy"] {
        let node = beside(RecordedRules::KubeProxy, kind)?;
        let mut open = Vec::new();
        for family in [0, 1] {
            for connection in through_service(&node, family)? {
                until_past_netfilter(&node, &connection)
                    .with_context(|| format!("iptables-{kind}"))?;
                open.push(connection);
            }
        }
        // Decisions about idle connections expire.
        let load = ConnectionLoad::start(open);
        until("the status counts translated connections", || {
            let status = node.agent.get("/v1/status")?;
            let offload = &status["bypass"]["offload"];
            Ok(offload["translated"].as_u64().filter(|count| *count > 0))
        })?;
        load.end()?;
    }
    Ok(())
}

#[test]
fn connections_through_published_ports_bypass_the_rules_of_docker() -> Result<()> {
    for kind in ["nft", "legacy"] {
        let node = beside(RecordedRules::Docker, kind)?;
        for protocol in ["tcp", "udp"] {
            node.node().call(&format!(
                "iptables-{kind} -t nat -A DOCKER ! -i docker0 -p {protocol} -m {protocol} \
                 --dport {DOCKER_PORT} -j DNAT --to-destination 10.244.1.2:{PORT}"
            ))?;
        }
        let door = SocketAddr::new(NODE[0], DOCKER_PORT);
        for connection in connections(&node, &[door], door)? {
            until_past_netfilter(&node, &connection).with_context(|| format!("iptables-{kind}"))?;
        }
    }
    Ok(())
}

/// Returns the UDP connection of the client to the service, past netfilter.
fn offloaded_to_service(node: &Node) -> Result<Connection> {
    let cluster_ip = SocketAddr::new(CLUSTER_IP[0], CLUSTER_PORT);
    let connection = Connection::udp(&node.client.machine, cluster_ip)?;
    until_past_netfilter(node, &connection)?;
    Ok(connection)
}

/// Returns when the last request was sent that got an answer, from now on.
fn last_answer(socket: &UdpSocket) -> Result<Duration> {
    let started = Instant::now();
    until("requests get no answer", || {
        let sent = started.elapsed();
        Ok(udp_gets_no_answer(socket)?.then_some(sent))
    })
}

#[test]
fn a_rule_that_forbids_an_offloaded_service_ends_it_at_once() -> Result<()> {
    let node = beside(RecordedRules::KubeProxy, "nft")?;
    node.nft(
        "add table inet company ; \
        add chain inet company forward { type filter hook forward priority 0 ; }",
    )?;
    let rules = [
        [
            "nft insert rule inet company forward ip daddr 10.244.1.2 drop",
            "nft flush chain inet company forward",
        ],
        [
            "iptables-legacy -I FORWARD -d 10.244.1.2 -j DROP",
            "iptables-legacy -F FORWARD",
        ],
    ];
    let connection = offloaded_to_service(&node)?;
    let Connection::Udp(socket, _) = &connection else {
        anyhow::bail!("no UDP connection")
    };
    for ([forbid, allow], applies) in rules.into_iter().zip(APPLIES) {
        node.node().call(forbid)?;
        let last = last_answer(socket)?;
        ensure!(last <= patient(applies), "{forbid}: answers for {last:?}");
        for _ in 0..EXCHANGES / 10 {
            ensure!(udp_gets_no_answer(socket)?, "a packet got past: {forbid}");
        }
        node.node().call(allow)?;
        until("the connection continues", || Ok(udp_seen_as(socket).ok()))?;
        until_past_netfilter(&node, &connection)?;
    }
    Ok(())
}

#[test]
fn a_connection_to_a_removed_endpoint_ends_as_it_does_with_netfilter() -> Result<()> {
    let node = beside(RecordedRules::KubeProxy, "nft")?;
    let connection = offloaded_to_service(&node)?;
    // kube-proxy refuses connections to a service without endpoints, and then removes those of UDP
    // from conntrack.
    node.node().call(
        "iptables-nft -A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m udp --dport 80 \
         -j REJECT --reject-with icmp-port-unreachable",
    )?;
    node.node()
        .call("iptables-nft -t nat -F KUBE-SVC-MO7EUACJY2VOX55W")?;
    // As netfilter does, while conntrack has the connection.
    connection.exchange()?;
    node.node().run(forget_connections)?;
    let Connection::Udp(socket, _) = &connection else {
        anyhow::bail!("no UDP connection")
    };
    until("the connection ends", || {
        let refused = socket.send(b"who am I?").is_err();
        Ok((refused || udp_gets_no_answer(socket).unwrap_or(true)).then_some(()))
    })?;
    for _ in 0..EXCHANGES / 10 {
        ensure!(udp_gets_no_answer(socket).unwrap_or(true), "an answer");
    }
    Ok(())
}

/// Removes all connections of the calling thread's namespace from conntrack
/// (`IPCTNL_MSG_CT_DELETE` without attributes, with an acknowledgment).
pub(super) fn forget_connections() -> Result<()> {
    const DELETE: u16 = 1 << 8 | 2;
    const REQUEST_WITH_ACK: u16 = 0x5;
    let socket = Socket::new(NETLINK_NETFILTER)?;
    let mut message = 20_u32.to_ne_bytes().to_vec();
    message.extend(DELETE.to_ne_bytes());
    message.extend(REQUEST_WITH_ACK.to_ne_bytes());
    message.extend([0; 12]);
    socket.send_to(&message, &rtnetlink::sys::SocketAddr::new(0, 0), 0)?;
    let (answer, _) = socket.recv_from_full()?;
    let code = answer.get(16..20).context("a short acknowledgment")?;
    ensure!(code == [0; 4], "conntrack refuses with {code:?}");
    Ok(())
}

#[test]
fn open_connections_survive_a_thousand_rule_changes() -> Result<()> {
    let node = beside(RecordedRules::KubeProxy, "nft")?;
    node.nft(STATEFUL)?;
    node.until_offloading(true)?;
    let mut open: Vec<Connection> = node.connections(0)?.into();
    open.extend(through_service(&node, 0)?);
    for connection in &open {
        until_past_netfilter(&node, connection)?;
    }
    let client = &node.client.machine;
    let stream = |server: &Machine, address: IpAddr| {
        let address = SocketAddr::new(address, STREAM);
        Stream::start(
            (client, address),
            (server, STREAM),
            Sends::Client,
            e2e::ENDLESS,
        )
    };
    let streams = [
        stream(&node.sandbox.world, e2e::WORLD[0])?,
        stream(&node.server.machine, node.server.address(NODE[0])?)?,
    ];
    let load = ConnectionLoad::start(open);
    for number in 0..CHANGES {
        node.nft("add rule inet company forward ip saddr 203.0.113.1 counter drop")?;
        if number % 20 == 0 {
            node.nft(
                "flush chain inet company forward ; \
                add rule inet company forward ct state established,related counter accept ; \
                add rule inet company forward ct state invalid counter drop ; \
                add rule inet company forward ct state new counter accept",
            )?;
            load.await_round()?;
        }
    }
    load.end()?;
    streams.into_iter().try_for_each(Stream::stop)
}
