//! Nodes of a real Kubernetes: API server, controllers and etcd of Debian's source package, an
//! agent and `viaduct-kube` on each node, and the rights of `deploy/kubernetes`.
//!
//! `cargo xtask test cluster` builds the programs and runs these tests.

use anyhow::{Result, ensure};
use e2e::cluster::network::Network;
use e2e::kubernetes::{ControlPlane, KubernetesNode, KubernetesPod};
use e2e::until;
use serde_json::json;

/// Peers on a link have routes, others tunnels.
const AUTO: &str = "--between-nodes=auto";

/// Two nodes on a switch, and a third one behind a router.
fn three_nodes() -> Result<(ControlPlane, Vec<KubernetesNode>)> {
    let network = Network::routed()?;
    let plane = ControlPlane::start(&network)?;
    let token = plane.add_account()?;
    let hosts = network.hosts.into_iter();
    let nodes = hosts
        .map(|host| KubernetesNode::join(host, &plane, &token, &[AUTO]))
        .collect::<Result<Vec<_>>>()?;
    for node in &nodes {
        node.kube.await_ready()?;
    }
    Ok((plane, nodes))
}

/// Runs a pod on each node.
fn pods(nodes: &[KubernetesNode]) -> Result<Vec<KubernetesPod>> {
    let run = |node: &KubernetesNode| node.run("default", &format!("on-{}", node.name), &json!({}));
    nodes.iter().map(run).collect()
}

/// Waits until each pod reaches each other one, and is seen by its own addresses.
fn await_connected(pods: &[KubernetesPod]) -> Result<()> {
    for from in pods {
        for to in pods.iter().filter(|to| to.path != from.path) {
            from.await_seen_by(to)?;
        }
    }
    Ok(())
}

#[test]
fn nodes_that_join_leave_and_are_readdressed_are_followed() -> Result<()> {
    let (plane, mut nodes) = three_nodes()?;
    let all = pods(&nodes)?;
    await_connected(&all)?;
    for node in &nodes {
        until("the network of the Node is available", || {
            let status = node.condition("NetworkUnavailable")?;
            Ok((status.as_deref() == Some("False")).then_some(()))
        })?;
        ensure!(
            node.condition("Ready")?.as_deref() == Some("True"),
            "other conditions stay"
        );
        // The pod has addresses of the CIDRs that the controllers gave the Node.
        let cidrs = node.await_pod_cidrs()?.concat();
        let shown = node.agent.get("/v1/pod-cidrs")?.to_string();
        for cidr in node.await_pod_cidrs()? {
            ensure!(shown.contains(&cidr), "{shown}: {cidrs}");
        }
    }

    nodes[2].readdress(33)?;
    await_connected(&all)?;

    plane.api.delete(&nodes[1].path())?;
    for number in [0, 2] {
        nodes[number].kube.await_metric("peers", "1")?;
        until("the routes to the Node have gone", || {
            let routes = nodes[number].machine().call("ip route show proto 118")?;
            Ok((routes.lines().count() == 1).then_some(()))
        })?;
    }
    all[0].await_seen_by(&all[2])?;
    nodes[1].register()?;
    let (mut old, mut rest): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|pod| pod.pod.id() == "on-node-2");
    // The controllers may give it other CIDRs: it gets another pod.
    nodes[1].await_pod_cidrs()?;
    nodes[0].kube.await_metric("peers", "2")?;
    old.remove(0).delete()?;
    rest.push(nodes[1].run("default", "again", &json!({}))?);
    await_connected(&rest)
}
