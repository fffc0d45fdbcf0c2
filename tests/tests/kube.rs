//! `viaduct-kube`: Nodes of an API server become pod CIDRs and peers of real agents, whatever the
//! server does.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::api_server::{ApiServer, node};
use e2e::cluster::{Cluster, large_cluster_peer, peer};
use e2e::kube::{Kube, OWN, await_stale, start, write_token};
use e2e::{Agent, Machine, Sandbox, UPLINK, until, until_within};
use serde_json::Value;

/// Nodes of the largest cluster.
const MANY: u32 = 5_000;

/// Returns a Node from an entry of a list of peers.
fn of_peer(peer: &Value) -> Value {
    let texts = |key: &str| -> Vec<String> {
        let items = peer[key].as_array().into_iter().flatten();
        items
            .filter_map(|one| Some(one.as_str()?.to_owned()))
            .collect()
    };
    let name = peer["name"].as_str().unwrap_or_default();
    node(name, &texts("prefixes"), &texts("addresses"))
}

/// Returns a Node on the link of the sandbox, whose pods have `10.85.NUMBER.0/24`.
fn numbered(number: u8) -> Value {
    let cidrs = [
        format!("10.85.{number}.0/24"),
        format!("fd00:85:{number}::/64"),
    ];
    let addresses = [format!("192.0.2.{number}"), format!("2001:db8:1::{number}")];
    node(&format!("node-{number}"), &cidrs, &addresses)
}

/// A server with this Node and one other.
fn two_nodes() -> ApiServer {
    let server = ApiServer::new();
    server.put_node(numbered(1));
    server.put_node(numbered(2));
    server
}

fn routes(node: &Machine) -> Result<Vec<String>> {
    let shown = node.call("ip -4 route show proto 118")?;
    let words = shown.lines().filter_map(|line| line.split(' ').next());
    Ok(words.map(str::to_owned).collect())
}

fn await_routes(node: &Machine, kube: &Kube, expected: &[&str]) -> Result<()> {
    let what = format!("routes to {expected:?}");
    let waited = until_within(Duration::from_mins(2), &what, || {
        Ok((routes(node)? == expected).then_some(()))
    });
    waited.with_context(|| format!("{:?}\n{}", routes(node), kube.log()))
}

const SECOND: &str = "10.85.2.0/24";
const THIRD: &str = "10.85.3.0/24";

#[test]
fn nodes_that_join_leave_and_are_readdressed_are_followed_by_all_others() -> Result<()> {
    let mut cluster = Cluster::new(3, &[])?;
    let server = ApiServer::new();
    server.put_node(of_peer(&peer(1)));
    server.put_node(of_peer(&peer(2)));
    let mut kubes = Vec::new();
    for (number, one) in (1..).zip(&cluster.nodes) {
        let name = format!("node-{number}");
        kubes.push(Kube::start(&server, &one.host.sandbox.node, &name, &[])?);
    }
    cluster.nodes[0].await_seen_by(&cluster.nodes[1])?;
    cluster.nodes[1].await_seen_by(&cluster.nodes[0])?;
    // Its own Node is not there yet.
    kubes[2].await_log("does not contain this node")?;
    ensure!(routes(&cluster.nodes[2].host.sandbox.node)?.is_empty());

    server.put_node(of_peer(&peer(3)));
    cluster.await_connected()?;

    cluster.nodes[2].readdress(33)?;
    let mut moved = peer(3);
    moved["addresses"] = peer(33)["addresses"].clone();
    server.put_node(of_peer(&moved));
    cluster.await_connected()?;

    server.delete_node("node-3");
    for (number, kube) in [(0, &kubes[0]), (1, &kubes[1])] {
        let other = format!("10.81.{}.0/24", 2 - number);
        await_routes(&cluster.nodes[number].host.sandbox.node, kube, &[&other])?;
    }
    // A node whose own Node has gone keeps what it has.
    assert_eq!(routes(&cluster.nodes[2].host.sandbox.node)?.len(), 2);
    cluster.nodes[0].await_seen_by(&cluster.nodes[1])
}

#[test]
fn the_own_nodes_pod_cidrs_are_those_of_pods_and_follow_the_node() -> Result<()> {
    let server = ApiServer::new();
    server.put_node(node(OWN, &[], &["192.0.2.1".to_owned()]));
    let (sandbox, _agent, kube) = start(&server, &[])?;
    kube.await_log("this node has no pod CIDR")?;
    server.put_node(numbered(1));
    kube.await_ready()?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    ensure!(
        pod.addresses[0].to_string().starts_with("10.85.1."),
        "{:?}",
        pod.addresses
    );
    ensure!(
        pod.addresses[1].to_string().starts_with("fd00:85:1:"),
        "{:?}",
        pod.addresses
    );
    Ok(())
}

#[test]
fn an_api_server_that_is_gone_changes_nothing_and_its_return_is_followed() -> Result<()> {
    let server = two_nodes();
    let (sandbox, mut agent, mut kube) = start(&server, &[])?;
    let node = &sandbox.node;
    await_routes(node, &kube, &[SECOND])?;
    kube.await_ready()?;
    server.set_gone(true);
    kube.await_metric("api_reachable{resource=\"nodes\"}", "0")?;
    server.delete_node("node-2");
    server.put_node(numbered(3));
    await_stale(&agent, true)?;

    // An agent that has lost its records gets everything again.
    agent.kill()?;
    node.call("ip route flush proto 118")?;
    node.call("find /run/viaduct -mindepth 1 -delete")?;
    agent.restart()?;
    await_routes(node, &kube, &[SECOND])?;
    kube.await_ready()?;
    assert!(
        agent
            .get("/v1/pod-cidrs")?
            .to_string()
            .contains("10.85.1.0/24")
    );
    await_stale(&agent, true)?;

    // Another instance knows nothing, and changes nothing.
    kube.restart()?;
    kube.await_log("watch failed")?;
    assert_eq!(routes(node)?, [SECOND]);

    server.set_gone(false);
    await_routes(node, &kube, &[THIRD])?;
    kube.await_log("watch resumed")?;
    await_stale(&agent, false)
}

#[test]
fn an_outage_ends_with_a_watch_that_has_no_event() -> Result<()> {
    let server = two_nodes();
    let (_sandbox, agent, kube) = start(&server, &[])?;
    kube.await_ready()?;
    for resource in ["nodes", "networkpolicies"] {
        kube.await_metric(&format!("lists_total{{resource=\"{resource}\"}}"), "1")?;
    }
    server.set_gone(true);
    for resource in ["nodes", "networkpolicies"] {
        kube.await_metric(&format!("api_reachable{{resource=\"{resource}\"}}"), "0")?;
    }
    server.set_gone(false);
    for resource in ["nodes", "networkpolicies"] {
        kube.await_metric(&format!("api_reachable{{resource=\"{resource}\"}}"), "1")?;
    }
    await_stale(&agent, false)
}

#[test]
fn a_watch_that_has_expired_lists_again() -> Result<()> {
    let server = two_nodes();
    let (sandbox, _agent, kube) = start(&server, &[])?;
    let node = &sandbox.node;
    await_routes(node, &kube, &[SECOND])?;
    for by_status in [false, true] {
        server.faults(|faults| {
            faults.expires_by_status = by_status;
            faults.is_gone = true;
        });
        server.disconnect();
        let third = numbered(3);
        if by_status {
            server.delete_node("node-3");
        } else {
            server.put_node(third);
        }
        server.compact();
        server.set_gone(false);
        let expected: &[&str] = if by_status {
            &[SECOND]
        } else {
            &[SECOND, THIRD]
        };
        await_routes(node, &kube, expected)?;
    }
    Ok(())
}

#[test]
fn half_sent_events_and_lists_change_nothing_until_they_are_complete() -> Result<()> {
    let server = two_nodes();
    // The first list ends after half of a Node.
    server.faults(|faults| faults.half_events = 2);
    let (sandbox, _agent, kube) = start(&server, &[])?;
    let node = &sandbox.node;
    await_routes(node, &kube, &[SECOND])?;
    server.faults(|faults| faults.half_events = 3);
    server.put_node(numbered(3));
    await_routes(node, &kube, &[SECOND, THIRD])?;
    server.faults(|faults| faults.half_events = 1);
    server.delete_node("node-2");
    await_routes(node, &kube, &[THIRD])
}

#[test]
fn a_rotated_token_is_read_again() -> Result<()> {
    let server = two_nodes();
    server.faults(|faults| faults.token = Some(e2e::kube::FIRST_TOKEN.to_owned()));
    let (sandbox, _agent, kube) = start(&server, &[])?;
    await_routes(&sandbox.node, &kube, &[SECOND])?;
    server.faults(|faults| faults.token = Some("second".to_owned()));
    server.disconnect();
    kube.await_log("Unauthorized")?;
    server.put_node(numbered(3));
    assert_eq!(routes(&sandbox.node)?, [SECOND]);
    write_token(&sandbox.node, "second")?;
    await_routes(&sandbox.node, &kube, &[SECOND, THIRD])
}

#[test]
fn a_server_that_refuses_for_a_while_is_requested_again() -> Result<()> {
    let server = two_nodes();
    let (sandbox, _agent, kube) = start(&server, &[])?;
    let node = &sandbox.node;
    await_routes(node, &kube, &[SECOND])?;
    for (status, number) in [(403, 3), (429, 4), (500, 5)] {
        server.faults(|faults| {
            faults.status = Some(status);
            faults.retry_after = Some(1);
        });
        server.disconnect();
        kube.await_counted(&format!(
            "api_failures_total{{resource=\"nodes\",code=\"{status}\"}}"
        ))?;
        server.put_node(numbered(number));
        server.faults(|faults| faults.status = None);
        let prefixes: Vec<String> = (2..=number)
            .map(|one| format!("10.85.{one}.0/24"))
            .collect();
        let expected: Vec<&str> = prefixes.iter().map(String::as_str).collect();
        await_routes(node, &kube, &expected)?;
    }
    Ok(())
}

#[test]
fn lists_are_streamed_or_read_in_pages_as_the_server_has_them() -> Result<()> {
    for (minor, has_no_streams) in [(36, false), (33, true), (20, false)] {
        let server = two_nodes();
        server.faults(|faults| {
            faults.minor = Some(minor);
            faults.has_no_streams = has_no_streams;
        });
        // Three pages.
        for number in 0..600 {
            let cidr = format!("10.{}.{}.0/24", 90 + (number >> 8), number & 0xff);
            server.put_node(node(&format!("far-{number}"), &[cidr], &[]));
        }
        let (sandbox, _agent, kube) = start(&server, &["--pod-bandwidth=false"])?;
        await_routes(&sandbox.node, &kube, &[SECOND])?;
        kube.await_metric("nodes", "602")?;
        let is_streamed = minor == 36;
        assert_eq!(
            server.count("list nodes"),
            if is_streamed { 0 } else { 3 },
            "{minor}"
        );
        let first = server.last_query("watch nodes");
        assert_eq!(
            first.contains("sendInitialEvents"),
            is_streamed,
            "{minor}: {first}"
        );
        server.put_node(numbered(3));
        await_routes(&sandbox.node, &kube, &[SECOND, THIRD])?;
    }
    Ok(())
}

#[test]
fn two_nodes_with_one_pod_cidr_are_reported_and_the_newer_one_has_it() -> Result<()> {
    let server = two_nodes();
    let cidr = [SECOND.to_owned()];
    server.put_node(node("twin", &cidr, &["192.0.2.9".to_owned()]));
    let (sandbox, _agent, kube) = start(&server, &[])?;
    kube.await_log("10.85.2.0/24 of node node-2 overlaps 10.85.2.0/24 of node twin, which has it")?;
    await_routes(&sandbox.node, &kube, &[SECOND])?;
    let route = sandbox.node.call("ip route show 10.85.2.0/24")?;
    assert!(route.contains("via 192.0.2.9"), "{route}");
    kube.await_metric("problems{kind=\"overlap\"}", "1")?;
    server.delete_node("twin");
    kube.await_metric("problems{kind=\"overlap\"}", "0")
}

/// Real-sized Nodes of both families, and then ten changes of Nodes a second, most of them
/// heartbeats.
#[test]
fn five_thousand_nodes_with_churn_are_followed_in_little_memory() -> Result<()> {
    let server = two_nodes();
    for number in 0..MANY {
        server.put_node(of_peer(&large_cluster_peer(number)));
    }
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    node.call(&format!("ip address add 172.20.255.1/16 dev {UPLINK}"))?;
    let agent = Agent::start_with(node, Vec::new())?;
    let kube = Kube::start(&server, node, OWN, &[])?;
    let await_count = |expected: usize| -> Result<()> {
        let what = format!("{expected} routes");
        let waited = until_within(Duration::from_mins(3), &what, || {
            Ok((routes(node)?.len() == expected).then_some(()))
        });
        waited.with_context(|| kube.log())
    };
    await_count(MANY as usize + 1)?;
    let (listed, peak) = kube.memory()?;
    for number in 0..100 {
        // A heartbeat changes nothing that matters; a new Node does.
        server.put_node(of_peer(&large_cluster_peer(number)));
        if number % 10 == 0 {
            server.put_node(of_peer(&large_cluster_peer(MANY + number)));
        }
    }
    await_count(MANY as usize + 11)?;
    let (churned, churned_peak) = kube.memory()?;
    println!(
        "5,000 Nodes: RSS {listed} KiB, peak {peak}; after churn {churned} KiB, peak {churned_peak}"
    );
    ensure!(churned_peak < 40 << 10, "{churned_peak} KiB");
    // The agent publishes the list after its routes.
    until("the agent lists the new peers", || {
        let peers = agent.get("/v1/peers")?;
        let count = peers.as_array().context("a list")?.len();
        Ok((count == MANY as usize + 11).then_some(()))
    })?;
    Ok(())
}
