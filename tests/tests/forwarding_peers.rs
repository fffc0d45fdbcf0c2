//! Pods of peers on nodes whose packet filter drops forwarded packets by default: packets between
//! pods of several nodes pass, by routes and in tunnels, and no others do.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::cluster::{Cluster, ClusterNode, peer};
use e2e::{
    Agent, Machine, NumberedDatagrams, PacketFilter, Sandbox, UPLINK, connects, patient, until,
};
use serde_json::{Value, json};

const DIRECT: &str = "--between-nodes=direct";
const TUNNEL: &str = "--between-nodes=tunnel";

/// Port of the server in each pod.
const PORT: u16 = 7000;

/// Returns two nodes with the policy, whose agents have the flags and route to each other.
fn dropping(filter: PacketFilter, flags: &[&str]) -> Result<Cluster> {
    let cluster = unconnected(filter, flags)?;
    cluster.put_all_peers()?;
    Ok(cluster)
}

/// Returns two nodes with the policy, whose agents have the flags and no peers.
fn unconnected(filter: PacketFilter, flags: &[&str]) -> Result<Cluster> {
    let cluster = Cluster::new(2, flags)?;
    for node in &cluster.nodes {
        filter.drop_by_default(&node.host.sandbox.node)?;
    }
    Ok(cluster)
}

/// Returns the state of each default in the status.
fn states(node: &ClusterNode) -> Result<Vec<String>> {
    let status = node.agent.get("/v1/status")?;
    let defaults = status["forwarding"]["defaults"].as_array().cloned();
    let state = |default: &Value| default["state"].as_str().map(str::to_owned);
    let defaults = defaults.unwrap_or_default();
    Ok(defaults.iter().filter_map(state).collect())
}

/// Returns whether a TCP connection from the machine reaches the pod of a node in this family.
fn reaches(from: &Machine, node: &ClusterNode, family: usize) -> Result<bool> {
    connects(from, SocketAddr::new(node.pod.addresses[family], PORT))
}

fn carried(filter: PacketFilter, mode: &str) -> Result<()> {
    let cluster = dropping(filter, &[mode])?;
    cluster.await_connected()?;
    let [first, second] = &cluster.nodes[..] else {
        unreachable!("two nodes")
    };
    let all_carried = states(first)?.iter().all(|state| state == "carried");
    ensure!(all_carried, "{:?}", states(first)?);
    // The tunnel lowers the MTU of bridge and pods, one after the other.
    until("no degradation", || {
        let status = first.agent.get("/v1/status")?;
        Ok((status["degraded"] == json!([])).then_some(()))
    })?;
    // The node of a peer has an address in no prefix of it, but in a tunnel.
    for family in [0, 1] {
        let through = reaches(&second.host.sandbox.node, first, family)?;
        ensure!(
            through == (mode == TUNNEL),
            "from the peer's node: {through}"
        );
    }
    // The rules survive the agent, and go with it.
    let mut cluster = cluster;
    cluster.nodes[0].agent.kill()?;
    cluster.await_connected()?;
    let first = &mut cluster.nodes[0];
    first.agent.restart()?;
    first.pod.del()?.success()?;
    first.agent.ctl("uninstall")?;
    let bare = first.host.sandbox.machine("bare")?;
    filter.drop_by_default(&bare)?;
    assert_eq!(filter.all(&first.host.sandbox.node)?, filter.all(&bare)?);
    Ok(())
}

#[test]
fn pods_of_peers_on_a_link_pass_a_policy_of_iptables_nft() -> Result<()> {
    carried(PacketFilter::IptablesNft, DIRECT)
}

#[test]
fn pods_of_peers_on_a_link_pass_a_policy_of_iptables_legacy() -> Result<()> {
    carried(PacketFilter::Legacy, DIRECT)
}

#[test]
fn pods_of_peers_on_a_link_pass_a_policy_of_a_native_nft_table() -> Result<()> {
    carried(PacketFilter::Native, DIRECT)
}

#[test]
fn pods_of_peers_in_tunnels_pass_a_policy_of_iptables_nft() -> Result<()> {
    carried(PacketFilter::IptablesNft, TUNNEL)
}

#[test]
fn pods_of_peers_in_tunnels_pass_a_policy_of_iptables_legacy() -> Result<()> {
    carried(PacketFilter::Legacy, TUNNEL)
}

#[test]
fn pods_of_peers_in_tunnels_pass_a_policy_of_a_native_nft_table() -> Result<()> {
    carried(PacketFilter::Native, TUNNEL)
}

/// Routes of the nodes' own, to peers on the link.
#[test]
fn pods_of_peers_pass_a_policy_without_routes_of_ours() -> Result<()> {
    let cluster = unconnected(PacketFilter::IptablesNft, &["--between-nodes=none"])?;
    cluster.put_all_peers_as("unrouted")?;
    for (node, other) in [(0, 1), (1, 0)] {
        let via = cluster.nodes[other].addresses();
        let prefixes = peer(if other == 0 { 1 } else { 2 })["prefixes"].clone();
        let prefixes = prefixes.as_array().context("prefixes")?.clone();
        for (prefix, via) in prefixes.iter().zip(via) {
            let prefix = prefix.as_str().context("a prefix")?;
            let node = &cluster.nodes[node].host.sandbox.node;
            node.call(&format!("ip route add {prefix} via {via}"))?;
        }
    }
    cluster.await_connected()
}

#[test]
fn with_leave_packets_of_peers_are_left_to_the_rules_of_the_operator() -> Result<()> {
    for mode in [DIRECT, TUNNEL] {
        let cluster = dropping(PacketFilter::IptablesNft, &[mode, "--forwarding=leave"])?;
        let [first, second] = &cluster.nodes[..] else {
            unreachable!("two nodes")
        };
        let node = &first.host.sandbox.node;
        until("the policies are reported", || {
            Ok((states(first)? == ["drops", "drops"]).then_some(()))
        })?;
        let shown = first.agent.ctl("status")?;
        for table in ["ip filter", "ip6 filter"] {
            let what = format!("policy DROP of chain FORWARD of table {table}");
            ensure!(shown.contains(&what), "{shown}");
        }
        for family in [0, 1] {
            ensure!(!reaches(&second.pod.machine, first, family)?, "{mode}");
        }
        ensure!(!PacketFilter::IptablesNft.all(node)?.contains("VIADUCT"));
        for node in &cluster.nodes {
            for (tool, all) in [
                ("iptables-nft", "10.81.0.0/16"),
                ("ip6tables-nft", "fd00:81::/32"),
            ] {
                let rule = format!("FORWARD -s {all} -d {all} -j ACCEPT");
                node.host.sandbox.node.call(&format!("{tool} -A {rule}"))?;
            }
        }
        cluster.await_connected()?;
    }
    Ok(())
}

#[test]
fn explicit_rules_about_peers_are_obeyed() -> Result<()> {
    for (filter, mode) in [
        (PacketFilter::IptablesNft, DIRECT),
        (PacketFilter::Legacy, TUNNEL),
    ] {
        let cluster = dropping(filter, &[mode])?;
        cluster.await_connected()?;
        let [first, second] = &cluster.nodes[..] else {
            unreachable!("two nodes")
        };
        let node = &first.host.sandbox.node;
        for family in [0, 1] {
            let (tool, pod) = (filter.tools()[family], second.pod.addresses[family]);
            // Behind our jump at first.
            let rule = format!("FORWARD -s {pod} -j DROP");
            node.call(&format!("{tool} -A {rule}"))?;
            until("the rule is obeyed", || {
                Ok((!reaches(&second.pod.machine, first, family)?).then_some(()))
            })?;
            node.call(&format!("{tool} -D {rule}"))?;
        }
        cluster.await_connected()?;
    }
    Ok(())
}

/// A link that leads to no peer, with addresses of a peer's pod.
#[test]
fn packets_with_a_peers_address_on_another_link_meet_the_policy() -> Result<()> {
    let cluster = dropping(PacketFilter::IptablesNft, &[DIRECT])?;
    cluster.await_connected()?;
    let first = &cluster.nodes[0];
    let node = &first.host.sandbox.node;
    let world = &first.host.sandbox.world;
    for family in [0, 1] {
        let pod = first.pod.addresses[family];
        let forged: IpAddr = ["10.81.2.77", "fd00:81:2::77"][family].parse()?;
        // Answers find the world by a longer route than the one to the peer.
        let (length, via) = ([32, 128][family], e2e::WORLD[family]);
        node.call(&format!("ip route add {forged}/{length} via {via}"))?;
        world.call(&format!("ip address add {forged}/{length} dev lo"))?;
        let gateway = e2e::NODE[family];
        world.call(&format!(
            "ip route add {pod}/{length} via {gateway} src {forged}"
        ))?;
        ensure!(!reaches(world, first, family)?, "{forged} reaches {pod}");
        // The policy is the only obstacle.
        let tool = PacketFilter::IptablesNft.tools()[family];
        node.call(&format!("{tool} -P FORWARD ACCEPT"))?;
        until("the world reaches the pod", || {
            Ok(reaches(world, first, family)?.then_some(()))
        })?;
    }
    Ok(())
}

/// Other flows lose nothing: one of a pod to the world, and one of a peer that stays.
#[test]
fn rules_follow_peers_that_come_and_go_without_a_lost_packet() -> Result<()> {
    for (filter, mode) in [
        (PacketFilter::IptablesNft, DIRECT),
        (PacketFilter::IptablesNft, TUNNEL),
        (PacketFilter::Legacy, DIRECT),
    ] {
        let cluster = dropping(filter, &[mode])?;
        cluster.await_connected()?;
        let [first, second] = &cluster.nodes[..] else {
            unreachable!("two nodes")
        };
        let (pod, world) = (&first.pod.machine, &first.host.sandbox.world);
        let mut numbered = Vec::new();
        for family in [0, 1] {
            let own = SocketAddr::new(first.pod.addresses[family], 7001);
            let out = SocketAddr::new(e2e::WORLD[family], 7001);
            for (name, from, into) in [
                ("from the peer", (&second.pod.machine, own), (pod, own)),
                ("to the world", (pod, out), (world, out)),
            ] {
                numbered.push(NumberedDatagrams::start(name, from, into)?);
            }
        }
        for number in 11..31 {
            first.put_peers(&json!([peer(2), peer(number), peer(number + 100)]))?;
            numbered
                .iter()
                .try_for_each(NumberedDatagrams::await_progress)?;
        }
        let rules = filter.all(&first.host.sandbox.node)?;
        ensure!(
            rules.contains("10.81.30.0/24") == (mode == DIRECT),
            "{rules}"
        );
        for stream in numbered {
            stream.end()?;
        }
        // Nothing is left for a peer that has gone; what it sends meets the policy.
        first.put_peers(&json!([]))?;
        let rules = filter.all(&first.host.sandbox.node)?;
        ensure!(rules.contains("VIADUCT-FORWARD"), "{rules}");
        ensure!(!rules.contains("viaduct: peers"), "{rules}");
        ensure!(
            !reaches(&second.pod.machine, first, 0)?,
            "a peer that has gone"
        );
    }
    Ok(())
}

/// Prefixes that no aggregation makes fewer.
fn scattered(count: u32) -> Value {
    let peers = (0..count).map(|number| {
        let (high, low) = (number >> 7, number & 0x7f);
        json!({
            "name": format!("node-{number}.example.org"),
            "prefixes": [
                format!("10.{}.{}.0/24", 100 + high, 2 * low),
                format!("fd01:0:{:x}::/64", 2 * number),
            ],
            "addresses": [
                format!("172.20.{high}.{low}"),
                format!("2001:db8:77::{number:x}"),
            ],
        })
    });
    peers.collect()
}

#[test]
fn rules_for_five_thousand_scattered_peers_are_written_in_seconds() -> Result<()> {
    const COUNT: u32 = 5_000;
    const FILE: &str = "/run/peers.json";
    for filter in [
        PacketFilter::IptablesNft,
        PacketFilter::Legacy,
        PacketFilter::Native,
    ] {
        let sandbox = Sandbox::new()?;
        let node = &sandbox.node;
        filter.drop_by_default(node)?;
        let agent = Agent::start(node, &[])?;
        node.call(&format!("ip address add 172.20.255.1/16 dev {UPLINK}"))?;
        node.call(&format!(
            "ip address add 2001:db8:77::ffff/64 dev {UPLINK} nodad"
        ))?;
        let mut pod = sandbox.pod("pod")?;
        pod.add()?;
        let text = scattered(COUNT).to_string();
        node.mounts().run(|| std::fs::write(FILE, &text))?;
        let started = Instant::now();
        agent.ctl(&format!("peers set {FILE} -o json"))?;
        let took = started.elapsed();
        let rules = filter.all(node)?.matches("viaduct: peers").count();
        assert_eq!(rules, 2 * COUNT as usize);
        let started = Instant::now();
        let mut other = sandbox.pod("other")?;
        other.add()?;
        println!("{filter:?}: {took:?}, ADD {:?}", started.elapsed());
        ensure!(took < patient(Duration::from_secs(20)), "{took:?}");
    }
    Ok(())
}
