//! Two nodes with a pod each: connected by plain routing, by a VXLAN device as flannel makes it, or
//! by Viaduct.

use anyhow::Result;
use e2e::cluster::network::{Network, addresses};
use e2e::cluster::{Cluster, ClusterNode, large_cluster, peer};
use e2e::{Machine, set_bridge_netfilter};
use serde_json::Value;

use super::{Forwarding, Path, Tables, Topology};
use crate::company::Company;
use crate::row::system;

/// Interface of a node on the link between the nodes.
const LINK: &str = "lan0";
/// Pods of all nodes.
const PODS: &str = "10.81.0.0/16";
/// Device of flannel, and the UDP port of its packets.
const FLANNEL: (&str, u16) = ("flannel.1", 8472);
/// File of a list of peers, in the mount namespace of a node.
const PEERS: &str = "/run/peers.json";

/// Creates two nodes that route to each other, without NAT and rules.
pub(crate) fn routing(company: Company) -> Result<Topology> {
    plain(company, system::FORWARDING, |node, _, other| {
        let (pods, [via, _]) = (network(other), addresses(other));
        node.call(&format!("ip route add {pods}/24 via {via}"))
            .map(drop)
    })
}

/// Creates two nodes as flannel makes them: a VXLAN device with static entries, and rules that
/// masquerade what leaves the cluster.
pub(crate) fn flannel(company: Company) -> Result<Topology> {
    plain(company, system::FLANNEL, |node, own, other| {
        let (device, port) = FLANNEL;
        let ([local, _], [remote, _]) = (addresses(own), addresses(other));
        let (at, there) = (network(own), network(other));
        let (own_mac, other_mac) = (mac(own), mac(other));
        let forward = "iptables-nft -A FORWARD";
        let masquerade = "iptables-nft -t nat -A POSTROUTING";
        for command in [
            format!(
                "ip link add {device} address {own_mac} type vxlan id 1 dev {LINK} local {local} dstport {port} nolearning"
            ),
            format!("ip address add {at}/32 dev {device}"),
            format!("ip link set {device} up"),
            format!("ip neigh add {there} lladdr {other_mac} dev {device}"),
            format!("bridge fdb add {other_mac} dev {device} dst {remote}"),
            format!("ip route add {there}/24 via {there} dev {device} onlink"),
            format!("{forward} -s {PODS} -j ACCEPT"),
            format!("{forward} -d {PODS} -j ACCEPT"),
            format!("{masquerade} -s {PODS} -d {PODS} -j RETURN"),
            format!("{masquerade} -s {PODS} ! -d 224.0.0.0/4 -j MASQUERADE --random-fully"),
        ] {
            node.call(&command)?;
        }
        // As Kubernetes requires.
        set_bridge_netfilter(node, true)
    })
}

/// Creates two nodes of Viaduct with this value of `--between-nodes`, and as many peers beside each
/// other.
pub(crate) fn viaduct(company: Company, between: &str, peers: u32) -> Result<Topology> {
    let flag = format!("--between-nodes={between}");
    let cluster = Cluster::new(2, &[&flag])?;
    for (node, other) in cluster.nodes.iter().zip(cluster.nodes.iter().rev()) {
        let machine = &node.host.sandbox.node;
        company.join(machine, Tables::Nft)?;
        // The link of the other peers.
        let number = node.host.number;
        machine.call(&format!("ip address add 172.20.255.{number}/16 dev {LINK}"))?;
        let link = format!("2001:db8:77::ffff:{number}/64");
        machine.call(&format!("ip address add {link} dev {LINK} nodad"))?;
        set_peers(node, other.host.number, peers)?;
    }
    cluster.await_connected()?;
    let [first, second] = [&cluster.nodes[0].pod, &cluster.nodes[1].pod];
    let path = Path {
        from: first.machine.clone(),
        to: second.machine.clone(),
        target: second.addresses[0],
        at: second.addresses[0],
    };
    Ok(Topology {
        system: system::VIADUCT,
        paths: vec![path],
        parts: Box::new(cluster),
    })
}

fn set_peers(node: &ClusterNode, other: u8, many: u32) -> Result<()> {
    let Value::Array(mut all) = large_cluster(many) else {
        unreachable!("a list of peers")
    };
    all.push(peer(other));
    let list = Value::Array(all).to_string();
    let mounts = node.host.sandbox.node.mounts();
    mounts.run(|| std::fs::write(PEERS, list))?;
    node.agent.ctl(&format!("peers set {PEERS}")).map(drop)
}

/// Creates two nodes with bridges of the plain kernel. `connect` lets a machine, with the number of
/// its node, reach the pods of the node with the other number.
fn plain(
    company: Company,
    system: &'static str,
    connect: impl Fn(&Machine, u8, u8) -> Result<()>,
) -> Result<Topology> {
    let network = Network::flat(2)?;
    let mut nodes = Vec::new();
    for host in network.hosts {
        let (own, other) = (host.number, 3 - host.number);
        let node = Forwarding::on(host.sandbox, [10, 81, own])?;
        company.join(&node.sandbox.node, Tables::Nft)?;
        connect(&node.sandbox.node, own, other)?;
        let pod = node.plug("pod", 2)?;
        nodes.push((node, pod));
    }
    let at = nodes[1].0.address(2);
    let path = Path {
        from: nodes[0].1.clone(),
        to: nodes[1].1.clone(),
        target: at,
        at,
    };
    Ok(Topology {
        system,
        paths: vec![path],
        parts: Box::new((nodes, network.switch)),
    })
}

fn network(number: u8) -> String {
    format!("10.81.{number}.0")
}

fn mac(number: u8) -> String {
    format!("02:00:00:00:81:{number:02x}")
}
