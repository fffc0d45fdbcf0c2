//! Nodes of a real Kubernetes: API server, controllers and etcd of Debian's source package, an
//! agent and `viaduct-kube` on each node, and the rights of `deploy/kubernetes`.
//!
//! `cargo xtask test cluster` builds the programs and runs these tests.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::api_server::{ApiServer, node};
use e2e::cluster::network::Network;
use e2e::kube::{API, FIRST_TOKEN, await_stale};
use e2e::kubernetes::api::Api;
use e2e::kubernetes::{ControlPlane, KubernetesNode, KubernetesPod, Nodes, PORT, load_between};
use e2e::{Pod, connects, until};
use serde_json::{Value, json};

/// Peers on a link have routes, others tunnels.
const AUTO: &str = "--between-nodes=auto";

/// Two nodes on a switch, and a third one behind a router.
fn three_nodes() -> Result<(ControlPlane, Vec<KubernetesNode>)> {
    on(Network::routed()?)
}

fn on(network: Network) -> Result<(ControlPlane, Vec<KubernetesNode>)> {
    let plane = ControlPlane::start(&network, Nodes::OfTheTest)?;
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
        node.await_pod_cidrs_of_agent()?;
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
    nodes[0].kube.await_metric("peers", "2")?;
    // Its object goes with the Node.
    old.remove(0).pod.del()?;
    // The controllers give it other CIDRs.
    nodes[1].await_pod_cidrs_of_agent()?;
    rest.push(nodes[1].run("default", "again", &json!({}))?);
    await_connected(&rest)
}

/// Waits until the peers of each node are stale, or no longer are.
fn await_all_stale(nodes: &[KubernetesNode], expected: bool) -> Result<()> {
    for node in nodes {
        let waited = await_stale(&node.agent, expected);
        waited.with_context(|| format!("{}: {}", node.name, node.kube.log()))?;
    }
    Ok(())
}

/// Seconds of the outage: `VIADUCT_TEST_OUTAGE`, by default a minute.
fn outage() -> Duration {
    let seconds = std::env::var("VIADUCT_TEST_OUTAGE").unwrap_or_default();
    Duration::from_secs(seconds.parse().unwrap_or(60))
}

/// A pod of one node reaches one of another, and both go.
fn pods_come_and_go(nodes: &[KubernetesNode]) -> Result<()> {
    let first = nodes[0].attach("default", "first")?;
    let last = nodes[2].attach("default", "last")?;
    for address in &last.0.addresses {
        let server = (*address, PORT).into();
        until(&format!("{server} is reached"), || {
            Ok(connects(&first.0.machine, server)?.then_some(()))
        })?;
    }
    for (pod, _server) in [first, last] {
        pod.del()?;
        pod.machine.unbind()?;
    }
    Ok(())
}

#[test]
fn an_outage_of_a_minute_loses_nothing_and_compacted_changes_are_followed() -> Result<()> {
    let network = Network::routed()?;
    let switch = network.switch.clone();
    let (mut plane, mut nodes) = on(network)?;
    let all = pods(&nodes)?;
    await_connected(&all)?;
    let ends: Vec<&Pod> = all.iter().map(|pod| &pod.pod).collect();
    let connections = load_between(&ends)?;
    plane.kill_server()?;
    let killed = Instant::now();
    await_all_stale(&nodes, true)?;
    nodes[2].agent.kill()?;
    nodes[2].agent.restart()?;
    while killed.elapsed() < outage() {
        pods_come_and_go(&nodes)?;
        connections.await_round()?;
    }
    await_all_stale(&nodes, true)?;
    await_connected(&all)?;

    plane.restart_server()?;
    await_all_stale(&nodes, false)?;
    connections.await_round()?;
    connections.end()?;

    // A node is unplugged while a Node goes, and etcd forgets that.
    switch.call("ip link set port1 down")?;
    // Else the kernel would send the event on the connection that there is.
    plane.kill_server()?;
    plane.restart_server()?;
    plane.api.delete(&nodes[1].path())?;
    nodes[2].kube.await_metric("peers", "1")?;
    plane.compact()?;
    plane.kill_server()?;
    plane.restart_server()?;
    switch.call("ip link set port1 up")?;
    nodes[0].kube.await_metric("peers", "1")?;
    nodes[0]
        .kube
        .await_counted("api_failures_total{resource=\"nodes\",code=\"410\"}")?;
    // The list of the second node lacks its own Node.
    for number in [0, 2] {
        await_all_stale(&nodes[number..=number], false)?;
    }
    all[0].await_seen_by(&all[2])
}

/// A policy of the namespace `shop` for its pods `db`.
fn policy(spec: &Value) -> Value {
    let mut policy = json!({
        "kind": "NetworkPolicy", "apiVersion": "networking.k8s.io/v1",
        "metadata": { "name": "db" },
        "spec": { "podSelector": { "matchLabels": { "app": "db" } } },
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        policy["spec"][key] = value.clone();
    }
    policy
}

#[test]
fn network_policies_hold_between_the_nodes() -> Result<()> {
    const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies";
    let (plane, nodes) = three_nodes()?;
    for name in ["shop", "street"] {
        let namespace = json!({
            "kind": "Namespace", "apiVersion": "v1",
            "metadata": { "name": name, "labels": { "place": name } },
        });
        plane.api.create("/api/v1/namespaces", &namespace)?;
        plane.await_object(&format!(
            "/api/v1/namespaces/{name}/serviceaccounts/default"
        ))?;
    }
    let db = nodes[0].run("shop", "db", &json!({ "app": "db" }))?;
    let near = nodes[1].run("shop", "near", &json!({ "app": "web" }))?;
    // Behind a tunnel.
    let far = nodes[2].run("shop", "far", &json!({ "app": "web" }))?;
    let foreign = nodes[2].run("street", "foreign", &json!({ "app": "web" }))?;
    let clients = [&near, &far, &foreign];
    let reach = |expected: [bool; 3]| {
        let mut pairs = clients.into_iter().zip(expected);
        pairs.try_for_each(|(client, expected)| client.await_reach(&db, expected))
    };
    reach([true, true, true])?;

    let web = json!([{ "podSelector": { "matchLabels": { "app": "web" } } }]);
    let named = json!([{ "port": "web" }]);
    let ingress = json!({ "ingress": [{ "from": web, "ports": named }] });
    plane.api.create(POLICIES, &policy(&ingress))?;
    reach([true, true, false])?;
    db.await_reach(&foreign, true)?;

    let street = json!([{ "namespaceSelector": { "matchLabels": { "place": "street" } } }]);
    let path = format!("{POLICIES}/db");
    let ingress = json!({ "ingress": [{ "from": street }] });
    plane.api.merge(&path, &policy(&ingress))?;
    reach([false, false, true])?;
    // A pod with another label is another client.
    plane
        .api
        .merge(&path, &policy(&json!({ "ingress": [{ "from": web }] })))?;
    reach([true, true, false])?;
    let label = json!({ "metadata": { "labels": { "app": "other" } } });
    plane.api.merge(&far.path, &label)?;
    reach([true, false, false])?;

    let egress = json!({
        "policyTypes": ["Egress"], "ingress": null,
        "egress": [{ "to": [{ "podSelector": { "matchLabels": { "app": "web" } } }] }],
    });
    plane.api.merge(&path, &policy(&egress))?;
    reach([true, true, true])?;
    db.await_reach(&near, true)?;
    db.await_reach(&far, false)?;
    db.await_reach(&foreign, false)?;
    // Its Pod has gone: the policy knows its address no longer.
    near.delete()?;
    plane.api.delete(&path)?;
    db.await_reach(&foreign, true)?;
    db.await_reach(&far, true)
}

#[test]
fn the_rights_of_the_manifest_are_enough_and_a_missing_one_is_named() -> Result<()> {
    let (plane, mut nodes) = three_nodes()?;
    let own = plane.api.with_token(&plane.token()?);
    for (path, expected) in [
        ("/api/v1/nodes", 200),
        ("/api/v1/pods", 200),
        ("/api/v1/namespaces", 200),
        ("/apis/networking.k8s.io/v1/networkpolicies", 200),
        ("/api/v1/secrets", 403),
        ("/api/v1/namespaces/kube-system/configmaps", 403),
        ("/api/v1/nodes/node-1", 403),
    ] {
        let (status, body) = own.answer(path)?;
        ensure!(status == expected, "{path}: {status} {body}");
    }
    let label = json!({ "metadata": { "labels": { "own": "yes" } } });
    ensure!(
        own.merge(&nodes[0].path(), &label).is_err(),
        "a Node is not its own to change"
    );

    let all = pods(&nodes)?;
    let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/viaduct";
    let rules = plane.api.get(role)?["rules"].clone();
    let all_rules = rules.as_array().context("a role has rules")?;
    let fewer: Vec<&Value> = (all_rules.iter())
        .filter(|rule| rule["resources"] != json!(["nodes"]))
        .collect();
    plane.api.merge(role, &json!({ "rules": fewer }))?;
    // A watch that runs keeps its right; another instance needs it.
    nodes[0].kube.restart()?;
    nodes[0]
        .kube
        .await_counted("api_failures_total{resource=\"nodes\",code=\"403\"}")?;
    await_all_stale(&nodes[..1], true)?;
    await_connected(&all)?;
    plane.api.merge(role, &json!({ "rules": rules }))?;
    await_all_stale(&nodes[..1], false)?;
    nodes[0].kube.await_ready()
}

/// Returns what differs between the two answers to a request: keys of `one` that `other` lacks or
/// has with a value of another type, and words of a status that are not the same.
fn differences(path: &str, one: &Value, other: &Value, found: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            for (key, value) in one {
                match other.get(key) {
                    Some(same) => differences(&format!("{path}.{key}"), value, same, found),
                    // The answers of the tests have all keys, a real server's no empty ones.
                    None if is_empty(value) => {}
                    None => found.push(format!("{path}.{key} is {value} in one only")),
                }
            }
        }
        (Value::Array(one), Value::Array(other)) => {
            if let (Some(one), Some(other)) = (one.first(), other.first()) {
                differences(&format!("{path}[]"), one, other, found);
            }
        }
        (Value::String(one), Value::String(other)) => {
            let words = ["kind", "apiVersion", "reason", "status", "type"];
            if words.contains(&last(path)) && one != other {
                found.push(format!("{path}: {one} and {other}"));
            }
        }
        (Value::Number(one), Value::Number(other)) => {
            if last(path) == "code" && one != other {
                found.push(format!("{path}: {one} and {other}"));
            }
        }
        (Value::Null, _) => {}
        _ if std::mem::discriminant(one) == std::mem::discriminant(other) => {}
        _ => found.push(format!("{path}: {one} and {other}")),
    }
}

/// Returns the last key of a path.
fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Returns status and body of an answer; of a watch the first event.
fn answer(api: &Api, path: &str) -> Result<(u16, Value)> {
    let (status, body) = api.answer(path)?;
    let first = body.lines().next().unwrap_or_default();
    let text = if path.contains("watch=") {
        first
    } else {
        &body
    };
    let value = serde_json::from_str(text).with_context(|| format!("{path}: {body}"))?;
    Ok((status, value))
}

/// A real API server, and that of the tests, with the same Nodes.
struct Servers {
    plane: ControlPlane,
    of_tests: ApiServer,
    /// Clients of the one of the tests, and of the real one.
    clients: [Api; 2],
}

const NODES: &str = "/api/v1/nodes";

impl Servers {
    fn new(network: &Network) -> Result<Self> {
        let plane = ControlPlane::start(network, Nodes::OfTheTest)?;
        let machine = &network.hosts[0].sandbox.node;
        let of_tests = ApiServer::new();
        of_tests.listen(machine, API)?;
        of_tests.faults(|faults| faults.token = Some(FIRST_TOKEN.to_owned()));
        let clients = [Api::of_tests(machine, API, FIRST_TOKEN), plane.api.clone()];
        for number in 1..4 {
            let addresses = [format!("198.51.100.{number}")];
            let object = node(&format!("node-{number}"), &[], &addresses);
            plane.api.create(NODES, &object)?;
            of_tests.put_node(object);
        }
        Ok(Self {
            plane,
            of_tests,
            clients,
        })
    }

    /// Changes a label that each Node has: a watch from the start has no order.
    fn change(&self, name: &str) -> Result<()> {
        let label = json!({ "metadata": { "labels": { "kubernetes.io/hostname": "changed" } } });
        self.plane.api.merge(&format!("{NODES}/{name}"), &label)?;
        let mut changed = node(name, &[], &["198.51.100.1".to_owned()]);
        changed["metadata"]["labels"] = label["metadata"]["labels"].clone();
        self.of_tests.put_node(changed);
        Ok(())
    }

    /// Makes both forget all changes so far.
    fn forget(&mut self) -> Result<()> {
        self.plane.compact()?;
        self.plane.kill_server()?;
        self.plane.restart_server()?;
        self.of_tests.compact();
        Ok(())
    }

    /// Sends each server its path, and returns the answers, which must be alike.
    fn compare(&self, what: &str, paths: &[String; 2]) -> Result<[Value; 2]> {
        compare(what, &self.clients, paths)
    }
}

fn compare(what: &str, clients: &[Api; 2], paths: &[String; 2]) -> Result<[Value; 2]> {
    let (status, one) = answer(&clients[0], &paths[0])?;
    let (expected, other) = answer(&clients[1], &paths[1])?;
    ensure!(
        status == expected,
        "{what}: {status} and {expected}: {one} {other}"
    );
    let mut found = Vec::new();
    differences("", &one, &other, &mut found);
    ensure!(found.is_empty(), "{what}: {found:#?}");
    Ok([one, other])
}

#[test]
fn the_api_server_of_the_tests_answers_as_a_real_one() -> Result<()> {
    let network = Network::routed()?;
    let mut servers = Servers::new(&network)?;
    let same = |path: &str| [path.to_owned(), path.to_owned()];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    servers.compare("version", &same("/version"))?;
    servers.compare("unknown path", &same("/api/v1/absent"))?;
    let lists = servers.compare("list", &same(NODES))?;
    let pages = servers.compare("first page", &same(&format!("{NODES}?limit=1")))?;
    let next = pages.map(|page| {
        let token = text(&page["metadata"]["continue"]);
        format!("{NODES}?limit=1&continue={token}")
    });
    servers.compare("second page", &next)?;
    let watch = lists.map(|list| {
        let version = text(&list["metadata"]["resourceVersion"]);
        format!("{NODES}?watch=true&timeoutSeconds=2&resourceVersion={version}")
    });
    servers.change("node-1")?;
    servers.compare("watch", &watch)?;
    let from_start = format!("{NODES}?watch=true&timeoutSeconds=2&resourceVersion=0");
    servers.compare("watch from the start", &same(&from_start))?;

    servers.change("node-2")?;
    servers.forget()?;
    servers.compare("expired page", &next)?;
    servers.compare("expired watch", &watch)?;
    let clients = servers.clients.each_ref();
    let without_rights = clients.map(|client| client.with_token("unknown"));
    compare("unknown token", &without_rights, &same(NODES)).map(drop)
}
