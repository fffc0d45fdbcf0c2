//! Tunnels: pods of nodes with a router between them see each other's own addresses, and
//! only peers enter by the tunnel.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::cluster::{Cluster, ClusterNode, peer};
use e2e::{
    Agent, Config, Connection, Echo, Machine, Mapping, NumberedDatagrams, Sends, Stream, patient,
    ping, until,
};
use serde_json::json;

const TUNNEL: &str = "viaduct.vx";

/// UDP port of the outer packets.
const OUTER: u16 = 8118;

/// Port of the server in each pod.
const PORT: u16 = 7000;

const AUTO: [&str; 1] = ["--between-nodes=auto"];

/// Returns three connected nodes.
fn connected() -> Result<Cluster> {
    let cluster = Cluster::routed(&AUTO)?;
    cluster.put_all_peers()?;
    cluster.await_connected()?;
    Ok(cluster)
}

fn drops(node: &ClusterNode, reason: &str) -> Result<u64> {
    let counters = node.agent.get("/v1/counters")?;
    Ok(counters["drops"][reason].as_u64().unwrap_or(0))
}

/// Sends by `send` until the node has dropped a packet for the reason.
fn await_drop(
    node: &ClusterNode,
    reason: &str,
    mut send: impl FnMut() -> Result<()>,
) -> Result<()> {
    let before = drops(node, reason)?;
    until(&format!("a packet is dropped as {reason}"), || {
        send()?;
        Ok((drops(node, reason)? > before).then_some(()))
    })
}

fn send_datagram(from: &Machine, to: SocketAddr, length: usize) -> Result<()> {
    let socket = from.run(|| e2e::udp_socket(0, to))?;
    socket.send(&vec![8; length])?;
    Ok(())
}

fn mtu_becomes(machine: &Machine, link: &str, expected: u32) -> Result<()> {
    until(&format!("{link} has MTU {expected}"), || {
        let shown = machine.call(&format!("ip -o link show {link}"))?;
        Ok(shown.contains(&format!("mtu {expected} ")).then_some(()))
    })
}

fn await_degraded(agent: &Agent, words: &str, expected: bool) -> Result<()> {
    until(&format!("degraded has {words:?}: {expected}"), || {
        let degraded = agent.get("/v1/status")?["degraded"].to_string();
        Ok((degraded.contains(words) == expected).then_some(()))
    })
}

#[test]
fn pods_of_nodes_behind_a_router_see_each_others_own_addresses() -> Result<()> {
    let cluster = connected()?;
    let [first, second, third] = &cluster.nodes[..] else {
        unreachable!("three nodes")
    };
    let routes = first.host.sandbox.node.call("ip route show proto 118")?;
    ensure!(
        routes.contains("10.81.2.0/24 via 198.51.100.2 dev lan0"),
        "{routes}"
    );
    ensure!(
        routes.contains("10.81.3.0/24 via 10.81.3.0 dev viaduct.vx"),
        "{routes}"
    );
    let listed = first.agent.ctl("peers")?;
    ensure!(listed.contains("(tunnel to 203.0.113.3)"), "{listed}");

    // From a node to a pod: the source is the node's address in its own pod CIDR.
    for family in [0, 1] {
        let server = SocketAddr::new(third.pod.addresses[family], PORT);
        let node = &first.host.sandbox.node;
        for seen in [
            Connection::tcp(node, server)?.seen(),
            Connection::udp(node, server)?.seen(),
        ] {
            let text = seen.ip().to_string();
            ensure!(
                ["10.81.1.1", "fd00:81:1::1"].contains(&text.as_str()),
                "{seen}"
            );
        }
        ping(node, server.ip(), 1)?;
        ping(&second.pod.machine, server.ip(), 1)?;
    }
    Ok(())
}

#[test]
fn published_ports_are_reached_across_nodes() -> Result<()> {
    let cluster = connected()?;
    let third = &cluster.nodes[2];
    let mut web = third.host.sandbox.pod("web")?;
    web.add_with(Config::new("1.1.0").publish(&Mapping::both(9000, PORT)))?;
    let _server = Echo::start(&web.machine, PORT)?;
    let client = &cluster.nodes[0].pod.machine;
    for address in third.addresses() {
        let server = SocketAddr::new(address, 9000);
        let seen = Connection::tcp(client, server)?.seen().ip();
        ensure!(
            cluster.nodes[0].addresses().contains(&seen),
            "masqueraded: {seen}"
        );
        Connection::udp(client, server)?;
    }
    // By the address in the pod CIDR, through the tunnel.
    for gateway in ["10.81.3.1", "fd00:81:3::1"] {
        let server = SocketAddr::new(gateway.parse()?, 9000);
        let seen = Connection::tcp(client, server)?.seen().ip();
        ensure!(cluster.nodes[0].pod.addresses.contains(&seen), "{seen}");
    }
    Ok(())
}

/// With IPv4 between the nodes only, and with IPv6 only, in tunnels to all peers.
#[test]
fn one_outer_family_carries_both_inner_families() -> Result<()> {
    for family in [0, 1] {
        let cluster = Cluster::routed(&["--between-nodes=tunnel"])?;
        for (number, node) in (1..).zip(&cluster.nodes) {
            let mut others = cluster.others(number);
            for peer in others.as_array_mut().context("a list")? {
                peer["addresses"] = json!([peer["addresses"][family]]);
            }
            node.put_peers(&others)?;
        }
        cluster.await_connected()?;
        let name = [TUNNEL, "viaduct.vx6"][family];
        let mtu = [1_450, 1_430][family];
        mtu_becomes(&cluster.nodes[0].host.sandbox.node, name, mtu)?;
        mtu_becomes(&cluster.nodes[0].pod.machine, "eth0", mtu)?;
    }
    Ok(())
}

#[test]
fn outer_packets_of_foreign_senders_and_of_pods_are_dropped_by_name() -> Result<()> {
    let cluster = connected()?;
    let [first, _, third] = &cluster.nodes[..] else {
        unreachable!("three nodes")
    };
    let router = cluster.router.as_ref().context("a router")?;
    for address in first.addresses() {
        let outer = SocketAddr::new(address, OUTER);
        // Whole, and in fragments.
        for length in [64, 4_000] {
            await_drop(first, "tunnel-foreign-sender", || {
                send_datagram(router, outer, length)
            })?;
        }
    }
    // A pod would have its node's address behind masquerade, which is a peer of the other node.
    for target in [first.addresses(), third.addresses()] {
        for address in target {
            let outer = SocketAddr::new(address, OUTER);
            await_drop(first, "tunnel-foreign-sender", || {
                send_datagram(&first.pod.machine, outer, 64)
            })?;
        }
    }
    // A forged frame: the kernel of the router encapsulates as a peer would.
    router.call("ip link add evil type vxlan id 118 dstport 8118 remote 198.51.100.1 dev lan0")?;
    router.call("ip address add 10.81.3.77/32 dev evil")?;
    router.call("ip link set evil up")?;
    let shown = first
        .host
        .sandbox
        .node
        .call(&format!("ip -o link show {TUNNEL}"))?;
    let after = shown.split("link/ether ").nth(1);
    let mac = (after.and_then(|rest| rest.split(' ').next())).context("a MAC address")?;
    let victim = first.pod.addresses[0];
    router.call(&format!("ip neigh add {victim} lladdr {mac} dev evil"))?;
    router.call(&format!("ip route add {victim} dev evil"))?;
    let sink = first.pod.machine.run(|| UdpSocket::bind((victim, 7_001)))?;
    sink.set_read_timeout(Some(patient(Duration::from_millis(100))))?;
    await_drop(first, "tunnel-foreign-sender", || {
        send_datagram(router, SocketAddr::new(victim, 7_001), 32)
    })?;
    ensure!(sink.recv(&mut [0; 64]).is_err(), "a forged packet arrived");
    cluster.await_connected()
}

#[test]
fn inner_packets_of_foreign_senders_and_to_the_node_are_dropped_by_name() -> Result<()> {
    let cluster = connected()?;
    let [first, _, third] = &cluster.nodes[..] else {
        unreachable!("three nodes")
    };
    let far = &third.host.sandbox.node;
    let near = &first.host.sandbox.node;
    far.call("ip address add 172.31.0.1/32 dev lo")?;
    let victim = first.pod.addresses[0];
    await_drop(first, "tunnel-source", || {
        far.output(&[
            "ping",
            "-c1",
            "-W1",
            "-I",
            "172.31.0.1",
            &victim.to_string(),
        ])?;
        Ok(())
    })?;
    let _service = Echo::start(near, 7_100)?;
    for (gateway, family) in [("10.81.1.1", 0), ("fd00:81:1::1", 1)] {
        let gateway: IpAddr = gateway.parse()?;
        for machine in [far, &third.pod.machine] {
            await_drop(first, "tunnel-destination", || {
                machine.output(&["ping", "-c1", "-W1", &gateway.to_string()])?;
                Ok(())
            })?;
            await_drop(first, "tunnel-destination", || {
                send_datagram(machine, SocketAddr::new(gateway, 7_100), 16)
            })?;
        }
        // By the node's own address, outside of the tunnel, the service is reached.
        let service = SocketAddr::new(first.addresses()[family], 7_100);
        Connection::tcp(&third.pod.machine, service)?;
    }
    cluster.await_connected()
}

#[test]
fn nodes_come_go_and_change_their_addresses_and_pod_cidrs() -> Result<()> {
    let mut cluster = connected()?;
    // The node behind the router is readdressed.
    cluster.nodes[2].readdress(33)?;
    cluster.put_all_peers()?;
    cluster.await_connected()?;

    // It gets other pod CIDRs.
    let third = &mut cluster.nodes[2];
    third.pod.del()?;
    let cidrs = json!({ "podCIDRs": ["10.81.9.0/24", "fd00:81:9::/64"] });
    third.agent.put("/v1/pod-cidrs", &cidrs.to_string())?;
    third.pod.add()?;
    let mut moved = third.peer();
    moved["prefixes"] = peer(9)["prefixes"].clone();
    let near = [cluster.nodes[0].peer(), cluster.nodes[1].peer()];
    cluster.nodes[0].put_peers(&json!([near[1], moved]))?;
    cluster.nodes[1].put_peers(&json!([near[0], moved]))?;
    cluster.await_connected()?;

    // It leaves: the tunnel goes with the last peer that needs it, and the pods' MTU grows.
    let first = &cluster.nodes[0];
    first.put_peers(&json!([near[1]]))?;
    ensure!(
        first
            .host
            .sandbox
            .node
            .call(&format!("ip link show {TUNNEL}"))
            .is_err()
    );
    mtu_becomes(&first.pod.machine, "eth0", 1_500)?;
    first.await_seen_by(&cluster.nodes[1])?;
    first.put_peers(&json!([near[1], moved]))?;
    cluster.await_connected()?;
    Ok(())
}

#[test]
fn a_tunnel_that_other_software_changes_is_repaired() -> Result<()> {
    let cluster = connected()?;
    let node = &cluster.nodes[0].host.sandbox.node;
    let shown = |command: &str| -> Result<Vec<String>> {
        let printed = node.call(command)?;
        Ok(printed.lines().map(|line| line.trim().to_owned()).collect())
    };
    let forwarding = || shown(&format!("bridge fdb show dev {TUNNEL}"));
    let neighbours = || shown(&format!("ip neigh show dev {TUNNEL} nud permanent"));
    let before = (forwarding()?, neighbours()?);
    ensure!(before.0.len() == 1 && !before.1.is_empty(), "{before:?}");
    let mac = before.0[0].split(' ').next().context("a MAC address")?;
    for command in [
        format!("bridge fdb del {mac} dev {TUNNEL}"),
        format!("ip neigh flush dev {TUNNEL} nud permanent"),
        format!("bridge fdb add 02:00:00:00:00:99 dev {TUNNEL} dst 203.0.113.99"),
        format!("ip link set {TUNNEL} address 02:00:00:00:00:98"),
        format!("ip link set {TUNNEL} mtu 1300"),
        format!("ip link set {TUNNEL} down"),
        format!("ip link del {TUNNEL}"),
        "ip route flush proto 118".to_owned(),
    ] {
        node.call(&command)?;
        until(&format!("repaired after {command}"), || {
            let now = (forwarding(), neighbours());
            let same =
                now.0.is_ok_and(|one| one == before.0) && now.1.is_ok_and(|one| one == before.1);
            Ok(same.then_some(()))
        })?;
        mtu_becomes(node, TUNNEL, 1_450)?;
        cluster.await_connected().with_context(|| command)?;
    }
    Ok(())
}

#[test]
fn a_link_of_other_software_with_the_tunnels_name_stays_and_is_reported() -> Result<()> {
    let cluster = Cluster::routed(&AUTO)?;
    let first = &cluster.nodes[0];
    let node = &first.host.sandbox.node;
    node.call(&format!("ip link add {TUNNEL} type bridge"))?;
    first.put_peers(&cluster.others(1))?;
    await_degraded(&first.agent, "link viaduct.vx is not Viaduct's", true)?;
    let shown = node.call(&format!("ip -d link show {TUNNEL}"))?;
    ensure!(
        shown.contains("bridge") && !shown.contains("alias"),
        "{shown}"
    );
    first.await_seen_by(&cluster.nodes[1]).unwrap_err();
    node.call(&format!("ip link del {TUNNEL}"))?;
    await_degraded(&first.agent, "tunnel-unavailable", false)?;
    cluster.put_all_peers()?;
    cluster.await_connected()
}

/// Also while it starts again, and with a peer that leaves meanwhile.
#[test]
fn a_killed_agent_loses_no_packet_of_a_tunnel_and_removes_stale_entries_at_its_start() -> Result<()>
{
    let mut cluster = connected()?;
    let numbered: Vec<NumberedDatagrams> = [0, 1]
        .into_iter()
        .map(|family| {
            let to = SocketAddr::new(cluster.nodes[2].pod.addresses[family], 7_001);
            let (from, into) = (&cluster.nodes[0].pod.machine, &cluster.nodes[2].pod.machine);
            NumberedDatagrams::start("through the tunnel", (from, to), (into, to))
        })
        .collect::<Result<_>>()?;
    for node in [0, 2] {
        let agent = &mut cluster.nodes[node].agent;
        for _ in 0..2 {
            agent.kill()?;
            numbered
                .iter()
                .try_for_each(NumberedDatagrams::await_progress)?;
            agent.restart()?;
            numbered
                .iter()
                .try_for_each(NumberedDatagrams::await_progress)?;
        }
    }
    let first = &mut cluster.nodes[0];
    first.agent.kill()?;
    let node = &first.host.sandbox.node;
    let stale = format!("bridge fdb add 02:00:00:00:00:99 dev {TUNNEL} dst 203.0.113.99");
    node.call(&stale)?;
    node.call(&format!(
        "ip neigh add 10.81.99.0 lladdr 02:00:00:00:00:99 dev {TUNNEL}"
    ))?;
    first.agent.restart()?;
    let left = node.call(&format!("bridge fdb show dev {TUNNEL}"))?
        + &node.call(&format!("ip neigh show dev {TUNNEL} nud permanent"))?;
    ensure!(!left.contains("02:00:00:00:00:99"), "{left}");
    for stream in numbered {
        stream.end()?;
    }
    Ok(())
}

/// Sends an echo request of `length` bytes from the IP header on, which must not be fragmented, and
/// returns what `ping` prints.
fn send_whole(from: &Machine, to: IpAddr, length: usize) -> Result<String> {
    let payload = length - if to.is_ipv4() { 28 } else { 48 };
    let (payload, to) = (payload.to_string(), to.to_string());
    let words = ["ping", "-n", "-c1", "-W5", "-M", "do", "-s", &payload, &to];
    let output = from.output(&words)?;
    let both =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok(both.concat())
}

fn transfer(cluster: &Cluster) -> Result<()> {
    let (first, third) = (&cluster.nodes[0], &cluster.nodes[2]);
    for family in [0, 1] {
        for (port, sends) in [(7_010, Sends::Client), (7_020, Sends::Server)] {
            let to = SocketAddr::new(third.pod.addresses[family], port);
            let server = (&third.pod.machine, port);
            Stream::start((&first.pod.machine, to), server, sends, 4 << 20)?.end()?;
        }
    }
    Ok(())
}

#[test]
fn the_mtu_of_pods_follows_the_tunnel_and_the_tunnel_its_way() -> Result<()> {
    let cluster = connected()?;
    let (first, third) = (&cluster.nodes[0], &cluster.nodes[2]);
    for node in [first, third] {
        mtu_becomes(&node.pod.machine, "eth0", 1_450)?;
    }
    for to in &third.pod.addresses {
        let pod = &first.pod.machine;
        let refused = send_whole(pod, *to, 1_500)?;
        ensure!(
            refused.contains("mtu: 1450") || refused.contains("mtu=1450"),
            "{refused}"
        );
        let passed = send_whole(pod, *to, 1_450)?;
        ensure!(passed.contains(" 0% packet loss"), "{passed}");
    }
    transfer(&cluster)?;
    let node = &first.host.sandbox.node;
    node.call("ip route change 203.0.113.0/24 via 198.51.100.254 dev lan0 mtu 1400")?;
    mtu_becomes(node, TUNNEL, 1_350)?;
    mtu_becomes(&first.pod.machine, "eth0", 1_350)?;
    transfer(&cluster)
}

/// The pods' own MTU is configured, and larger than the tunnel's: their node reports that.
#[test]
fn a_node_reports_the_mtu_of_its_tunnel_to_pods_with_a_larger_one() -> Result<()> {
    let cluster = Cluster::routed(&["--between-nodes=auto", "--mtu=1500"])?;
    cluster.put_all_peers()?;
    cluster.await_connected()?;
    let (first, third) = (&cluster.nodes[0], &cluster.nodes[2]);
    for (to, gateway) in third
        .pod
        .addresses
        .iter()
        .zip(["10.81.1.1", "fd00:81:1::1"])
    {
        let pod = &first.pod.machine;
        let reported = send_whole(pod, *to, 1_500)?;
        ensure!(
            reported.contains(gateway) && reported.contains("1450"),
            "{reported}"
        );
        let passed = send_whole(pod, *to, 1_450)?;
        ensure!(passed.contains(" 0% packet loss"), "{passed}");
    }
    transfer(&cluster)
}
