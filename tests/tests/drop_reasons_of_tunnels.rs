//! Drop reasons of tunnels between nodes: each drop is an event, and is explained with the same
//! reason.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};

use abi::DropReason as R;
use anyhow::{Context as _, Result};
use e2e::cluster::{Cluster, ClusterNode};
use e2e::{DropListener, ExpectedDrop, Machine, are_all_provoked};

/// UDP port of the outer packets.
const OUTER: u16 = 8118;
/// Source port of the dropped datagrams.
const FROM: u16 = 41_000;
/// Address of the third node that is in no prefix of a peer.
const FOREIGN: &str = "172.31.0.1";

/// Sends a datagram from a port of a machine, with its address for the route.
fn send(from: &Machine, to: SocketAddr) -> Result<()> {
    let socket = from.run(|| e2e::udp_socket(FROM, to))?;
    socket.send(b"never forwarded")?;
    Ok(())
}

fn expected(
    reason: R,
    hook: &'static str,
    pod: Option<&ClusterNode>,
    ends: [SocketAddr; 2],
) -> ExpectedDrop {
    ExpectedDrop {
        reason,
        hook,
        pod: pod.map(|node| node.pod.id().to_owned()),
        ends: Some(ends.map(|end| end.to_string())),
    }
}

/// Outer packets: of a machine that is no peer, and of a pod.
fn foreign_senders(cluster: &Cluster, listener: &DropListener) -> Result<()> {
    let [first, _, third] = &cluster.nodes[..] else {
        unreachable!("three nodes")
    };
    let router = cluster.router.as_ref().context("a router")?;
    let sources = ["198.51.100.254", "2001:db8:51::fe"];
    for (node, source) in first.addresses().into_iter().zip(sources) {
        let to = SocketAddr::new(node, OUTER);
        let ends = [SocketAddr::new(source.parse()?, FROM), to];
        expected(R::TunnelForeignSender, "uplink_in", None, ends).check(
            &first.agent,
            listener,
            || send(router, to),
        )?;
    }
    let pod = &first.pod;
    for (own, node) in pod.addresses.iter().zip(third.addresses()) {
        let to = SocketAddr::new(node, OUTER);
        let ends = [SocketAddr::new(*own, FROM), to];
        expected(R::TunnelForeignSender, "from_pod", Some(first), ends).check(
            &first.agent,
            listener,
            || send(&pod.machine, to),
        )?;
    }
    Ok(())
}

/// Inner packets: with the source address of no peer, and to the node itself.
fn inner(cluster: &Cluster, listener: &DropListener) -> Result<()> {
    let [first, _, third] = &cluster.nodes[..] else {
        unreachable!("three nodes")
    };
    let far = &third.host.sandbox.node;
    far.call(&format!("ip address add {FOREIGN}/32 dev lo"))?;
    let from = SocketAddr::new(FOREIGN.parse()?, FROM);
    let to = SocketAddr::new(first.pod.addresses[0], 7_001);
    expected(R::TunnelSource, "uplink_in", Some(first), [from, to]).check(
        &first.agent,
        listener,
        || {
            let socket = far.run(|| UdpSocket::bind(from))?;
            socket.send_to(b"never forwarded", to)?;
            Ok(())
        },
    )?;
    for (own, gateway) in third
        .pod
        .addresses
        .iter()
        .zip(["10.81.1.1", "fd00:81:1::1"])
    {
        let to = SocketAddr::new(gateway.parse()?, 7_100);
        let ends = [SocketAddr::new(*own, FROM), to];
        expected(R::TunnelDestination, "uplink_in", None, ends).check(
            &first.agent,
            listener,
            || send(&third.pod.machine, to),
        )?;
    }
    Ok(())
}

#[test]
fn each_drop_of_a_tunnel_is_an_event_and_explained_with_the_same_reason() -> Result<()> {
    let cluster = Cluster::routed(&["--between-nodes=auto", "--drop-event-interval=1"])?;
    for (number, node) in (1..).zip(&cluster.nodes) {
        node.put_peers(&cluster.others(number))?;
    }
    cluster.await_connected()?;
    let first = &cluster.nodes[0];
    let router = cluster.router.as_ref().context("a router")?;
    let probe = SocketAddr::new(first.addresses()[0], OUTER);
    let listener = DropListener::start(&first.agent, &probe.to_string(), || send(router, probe))?;
    foreign_senders(&cluster, &listener)?;
    inner(&cluster, &listener)?;
    let reasons = [
        R::TunnelForeignSender,
        R::TunnelSource,
        R::TunnelDestination,
    ];
    let provoked: BTreeSet<_> = reasons.map(R::name).into();
    are_all_provoked("drop_reasons_of_tunnels", &provoked)
}
