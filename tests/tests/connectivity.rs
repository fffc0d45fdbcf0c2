//! Connectivity between pods, their gateway, the node and the world in both families, and the
//! source address that each server sees.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result};
use e2e::{
    Config, Echo, GATEWAYS, Machine, Mapping, NODE, POD_CIDRS, Pod, Process, Sandbox, WORLD, ping,
    ping_source, tcp_echo, tcp_source, udp_seen_as, udp_source, until,
};

const HOSTPORTS: [Mapping; 2] = [Mapping::tcp(8080, 80), Mapping::udp(5353, 53)];

/// Attaches `COUNT` pods to the default network.
fn pods<const COUNT: usize>(sandbox: &Sandbox) -> Result<[Pod; COUNT]> {
    let pods = (0..COUNT)
        .map(|number| {
            let mut pod = sandbox.pod(&format!("pod-{number}"))?;
            pod.add()?;
            Ok(pod)
        })
        .collect::<Result<Vec<_>>>()?;
    pods.try_into().ok().context("another number of pods")
}

/// A pod that publishes [`HOSTPORTS`].
fn published(sandbox: &Sandbox) -> Result<Pod> {
    let mut pod = sandbox.pod("server")?;
    pod.add_with(Config::new("1.1.0").publish(&HOSTPORTS))?;
    Ok(pod)
}

/// Asserts that `server` sees the source address `expected` of `client`, by TCP and by UDP.
fn assert_seen_as(client: &Machine, server: SocketAddr, expected: IpAddr) -> Result<()> {
    let (by_tcp, _) = tcp_source(client, 0, server)?;
    let (by_udp, _) = udp_source(client, 0, server)?;
    assert_eq!(by_tcp.ip(), expected, "TCP to {server}");
    assert_eq!(by_udp.ip(), expected, "UDP to {server}");
    Ok(())
}

#[test]
fn pods_reach_each_other_and_see_the_true_sender() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let [one, other] = pods(&sandbox)?;
    let _echo = Echo::start(&other.machine, 7000)?;
    for (from, to) in one.addresses.iter().zip(&other.addresses) {
        assert_seen_as(&one.machine, SocketAddr::new(*to, 7000), *from)?;
        assert_eq!(ping_source(&one.machine, &other.machine, *to)?, *from);
    }
    Ok(())
}

#[test]
fn pods_and_node_reach_each_other_without_translation() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let [pod] = pods(&sandbox)?;
    let _in_pod = Echo::start(&pod.machine, 7000)?;
    for (own, gateway) in pod.addresses.iter().zip(GATEWAYS) {
        for address in [gateway, NODE[usize::from(gateway.is_ipv6())]] {
            let server = SocketAddr::new(address, 7001);
            let _on_node = Echo::at(&sandbox.node, server)?;
            assert_seen_as(&pod.machine, server, *own)?;
            ping(&pod.machine, address, 2)?;
        }
        assert_seen_as(&sandbox.node, SocketAddr::new(*own, 7000), gateway)?;
        ping(&sandbox.node, *own, 2)?;
    }
    Ok(())
}

#[test]
fn the_world_sees_the_nodes_address_on_a_pods_connection() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let [pod] = pods(&sandbox)?;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        assert_seen_as(&pod.machine, SocketAddr::new(world, 7000), node)?;
        assert_eq!(ping_source(&pod.machine, &sandbox.world, world)?, node);
    }
    Ok(())
}

#[test]
fn a_free_source_port_is_kept() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let [pod] = pods(&sandbox)?;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let (server, expected) = (SocketAddr::new(world, 7000), SocketAddr::new(node, 45_000));
        assert_eq!(tcp_source(&pod.machine, 45_000, server)?.0, expected);
        assert_eq!(udp_source(&pod.machine, 45_000, server)?.0, expected);
    }
    Ok(())
}

#[test]
fn a_hostport_preserves_the_clients_address() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = published(&sandbox)?;
    let (_web, _dns) = (
        Echo::start(&pod.machine, 80)?,
        Echo::start(&pod.machine, 53)?,
    );
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let (web, dns) = (SocketAddr::new(node, 8080), SocketAddr::new(node, 5353));
        let (by_tcp, stream) = tcp_source(&sandbox.world, 46_000, web)?;
        assert_eq!(by_tcp, SocketAddr::new(world, 46_000));
        tcp_echo(&stream)?;
        let (by_udp, socket) = udp_source(&sandbox.world, 46_000, dns)?;
        assert_eq!(by_udp, SocketAddr::new(world, 46_000));
        assert_eq!(udp_seen_as(&socket)?, by_udp);
    }
    Ok(())
}

#[test]
fn a_hostport_is_gone_with_its_pod() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = published(&sandbox)?;
    let web = Echo::start(&pod.machine, 80)?;
    let server = SocketAddr::new(NODE[0], 8080);
    tcp_source(&sandbox.world, 0, server)?;
    pod.del()?;
    drop(web);
    let error = tcp_source(&sandbox.world, 0, server).err();
    assert!(error.is_some(), "{server} still accepts connections");
    Ok(())
}

#[test]
fn replies_to_outside_clients_are_not_masqueraded() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let [pod] = pods(&sandbox)?;
    let _echo = Echo::start(&pod.machine, 7000)?;
    for (index, cidr) in POD_CIDRS.into_iter().enumerate() {
        let route = format!("ip route add {cidr} via {}", NODE[index]);
        sandbox.world.call(&route)?;
        let address = pod.addresses[index];
        // A reply from another source address would reach neither the connection nor the connected
        // socket.
        assert_seen_as(&sandbox.world, SocketAddr::new(address, 7000), WORLD[index])?;
        assert_eq!(
            ping_source(&sandbox.world, &pod.machine, address)?,
            WORLD[index]
        );
    }
    Ok(())
}

/// Opens connections of `first` and then of `second` from one source port to one server; both must
/// keep working.
fn share_a_port(first: &Machine, second: &Machine, server: SocketAddr) -> Result<()> {
    let (seen_first, tcp_first) = tcp_source(first, 45_001, server)?;
    let (seen_second, tcp_second) = tcp_source(second, 45_001, server)?;
    assert_ne!(seen_first, seen_second, "TCP to {server}");
    tcp_echo(&tcp_first)?;
    tcp_echo(&tcp_second)?;

    let (seen_first, udp_first) = udp_source(first, 45_001, server)?;
    let (seen_second, udp_second) = udp_source(second, 45_001, server)?;
    assert_ne!(seen_first, seen_second, "UDP to {server}");
    assert_eq!(udp_seen_as(&udp_first)?, seen_first);
    assert_eq!(udp_seen_as(&udp_second)?, seen_second);
    Ok(())
}

#[test]
fn a_pod_may_use_a_port_that_the_node_uses() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let [pod] = pods(&sandbox)?;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    for world in WORLD {
        share_a_port(&sandbox.node, &pod.machine, SocketAddr::new(world, 7000))?;
    }
    Ok(())
}

#[test]
fn the_node_may_use_a_port_that_a_pod_uses() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let [pod] = pods(&sandbox)?;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    for world in WORLD {
        share_a_port(&pod.machine, &sandbox.node, SocketAddr::new(world, 7000))?;
    }
    Ok(())
}

#[test]
fn two_pods_may_use_the_same_port() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let [one, other] = pods(&sandbox)?;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    for world in WORLD {
        share_a_port(&one.machine, &other.machine, SocketAddr::new(world, 7000))?;
    }
    Ok(())
}

#[test]
fn nothing_leaves_the_node_with_a_pods_address() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let [pod] = pods(&sandbox)?;
    let [v4, v6] = POD_CIDRS;
    let sniffer = [
        "tcpdump", "-l", "-n", "-Q", "in", "-i", "eth0", "net", v4, "or", "net", v6,
    ];
    let sniffer = Process::start(&sandbox.world, &sniffer)?;
    until("tcpdump listens", || {
        Ok(sniffer.output().contains("listening on").then_some(()))
    })?;

    let _echo = Echo::start(&sandbox.world, 7000)?;
    for world in WORLD {
        let server = SocketAddr::new(world, 7000);
        let (_, stream) = tcp_source(&pod.machine, 0, server)?;
        tcp_echo(&stream)?;
        udp_source(&pod.machine, 0, server)?;
        ping(&pod.machine, world, 2)?;
        // A port without a server: the request and the port unreachable error must be translated as
        // well.
        assert!(tcp_source(&pod.machine, 0, SocketAddr::new(world, 7777)).is_err());
    }

    let (_, captured) = sniffer.end(nix::sys::signal::Signal::SIGINT)?;
    assert!(captured.contains("0 packets captured"), "{captured}");
    Ok(())
}
