//! Packets between pods of two nodes bypass the stack of both: by routes and in tunnels, and beside
//! rules of other software once their connection is established.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::cluster::{Cluster, ClusterNode};
use e2e::company::RecordedRules;
use e2e::{Connection, add_service_rule, patient, until};

/// Port of the server in each pod.
const PORT: u16 = 7000;
/// Port of a server that does not answer.
const SINK: u16 = 7001;
/// Addresses of a service, which no machine has: IPv4 and IPv6.
const VIPS: [&str; 2] = ["10.96.0.10", "fd00:96::10"];
/// Packets between two looks at the counters.
const PACKETS: u64 = 100;
/// Packets of these that the stack may forward: each flow has some there now and then.
const FEW: u64 = 20;

/// Waits until the agent of a node has decided how packets pass rules of other software: all bypass
/// the stack, or those of established connections.
fn await_fast_path(node: &ClusterNode, offloads: bool) -> Result<()> {
    until(
        &format!("the fast path is active, offload: {offloads}"),
        || {
            let bypass = node.agent.get("/v1/status")?["bypass"].take();
            let is_ready = if offloads {
                bypass["active"] == false && bypass["offload"]["active"] == true
            } else {
                bypass["active"] == true
            };
            Ok(is_ready.then_some(()))
        },
    )
}

/// Returns how many packets of a family the stack of each node forwards while `send` is called
/// [`PACKETS`] times.
fn forwarded(
    nodes: [&ClusterNode; 2],
    family: usize,
    mut send: impl FnMut() -> Result<()>,
) -> Result<[u64; 2]> {
    let count = |node: &ClusterNode| node.host.sandbox.node.forwarded(family);
    let before = [count(nodes[0])?, count(nodes[1])?];
    (0..PACKETS).try_for_each(|_| send())?;
    Ok([count(nodes[0])? - before[0], count(nodes[1])? - before[1]])
}

/// Sends datagrams without answers from the first node's pod to the second's, and fails unless they
/// bypass the stack of both.
fn check_datagrams(nodes: [&ClusterNode; 2]) -> Result<()> {
    for node in nodes {
        await_fast_path(node, false)?;
    }
    let [first, second] = nodes;
    for family in [0, 1] {
        let to = SocketAddr::new(second.pod.addresses[family], SINK);
        let sink = second.pod.machine.run(|| UdpSocket::bind(to))?;
        sink.set_read_timeout(Some(patient(Duration::from_secs(5))))?;
        let client = first.pod.machine.run(|| e2e::udp_socket(0, to))?;
        let through = forwarded(nodes, family, || {
            client.send(b"datagram")?;
            let (_, from) = sink.recv_from(&mut [0; 16])?;
            ensure!(from.ip() == first.pod.addresses[family], "{from}");
            Ok(())
        })?;
        ensure!(
            through.iter().all(|count| *count <= FEW),
            "family {family}: {through:?} packets were forwarded"
        );
    }
    Ok(())
}

#[test]
fn packets_between_pods_of_two_nodes_bypass_the_stack_of_both() -> Result<()> {
    let cluster = Cluster::new(2, &[])?;
    cluster.put_all_peers()?;
    cluster.await_connected()?;
    check_datagrams([&cluster.nodes[0], &cluster.nodes[1]])
}

#[test]
fn packets_in_a_tunnel_bypass_the_stack_of_both_nodes() -> Result<()> {
    let cluster = Cluster::routed(&["--between-nodes=auto"])?;
    cluster.put_all_peers()?;
    cluster.await_connected()?;
    check_datagrams([&cluster.nodes[0], &cluster.nodes[2]])
}

/// Connections to the other node's pod by its own address and by that of a service.
#[test]
fn established_connections_between_nodes_bypass_rules_of_other_software() -> Result<()> {
    let cluster = Cluster::new(2, &[])?;
    cluster.put_all_peers()?;
    let [first, second] = &cluster.nodes[..] else {
        unreachable!("two nodes")
    };
    for node in [first, second] {
        RecordedRules::KubeProxy.restore_by(&node.host.sandbox.node, "nft")?;
    }
    for (vip, pod) in VIPS.into_iter().zip(second.pod.addresses.iter()) {
        add_service_rule(&first.host.sandbox.node, vip.parse()?, *pod)?;
    }
    for node in [first, second] {
        await_fast_path(node, true)?;
    }
    cluster.await_connected()?;
    for family in [0, 1] {
        let pod = SocketAddr::new(second.pod.addresses[family], PORT);
        let service = SocketAddr::new(VIPS[family].parse::<IpAddr>()?, PORT);
        let client = &first.pod.machine;
        for connection in [
            Connection::tcp(client, pod)?,
            Connection::udp(client, pod)?,
            Connection::udp(client, service)?,
        ] {
            await_offloaded([first, second], family, &connection)?;
            assert_eq!(connection.seen().ip(), first.pod.addresses[family]);
        }
    }
    Ok(())
}

fn await_offloaded(nodes: [&ClusterNode; 2], family: usize, connection: &Connection) -> Result<()> {
    let mut last = [0; 2];
    until("the connection bypasses the rules of both nodes", || {
        last = forwarded(nodes, family, || connection.exchange())?;
        Ok(last.iter().all(|count| *count <= FEW).then_some(()))
    })
    .with_context(|| {
        let decisions = nodes.map(|node| node.agent.ctl("status").unwrap_or_default());
        format!("{connection:?}: {last:?} packets were forwarded; {decisions:?}")
    })
}
