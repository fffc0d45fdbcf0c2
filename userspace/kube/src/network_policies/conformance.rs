//! The cases of Kubernetes' own end-to-end tests of `NetworkPolicy` (sig-network, `Netpol`): which
//! pod of a small cluster reaches which other one, after which changes.
//!
//! The cluster has the Namespaces `x`, `y` and `z` with the label `ns`, each with the Pods `a`, `b`
//! and `c` with the label `pod`. Each Pod serves TCP, UDP and SCTP on the ports 80 and 81, under
//! the names `serve-80-tcp` and so on. This file depends on `std` and `serde_json` only, so that
//! a test with real pods can use it as a module too.

#[path = "conformance/egress.rs"]
mod egress;
#[path = "conformance/ingress.rs"]
mod ingress;
#[path = "conformance/ports.rs"]
mod ports;

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Value, json};

pub(crate) const NAMESPACES: [&str; 3] = ["x", "y", "z"];
pub(crate) const PODS: [&str; 3] = ["a", "b", "c"];
pub(crate) const PORTS: [u16; 2] = [80, 81];
pub(crate) const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];

/// A case: steps, each on top of the one before it.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) steps: Vec<Step>,
}

/// Changes of objects, and what is reached after them.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) changes: Vec<Change>,
    pub(crate) checks: Vec<Check>,
}

/// A change of an object.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Creates or replaces a policy.
    Policy(Value),
    /// Deletes the policy of a namespace and a name.
    Delete(&'static str, &'static str),
    /// Adds a label to a Namespace.
    LabelNamespace(&'static str, [&'static str; 2]),
    /// Adds a label to a Pod, `namespace/name`.
    LabelPod(&'static str, [&'static str; 2]),
}

/// Reachability of all pods by all pods on a port.
#[derive(Clone, Debug)]
pub(crate) struct Check {
    pub(crate) protocol: &'static str,
    pub(crate) port: u16,
    pub(crate) table: Table,
}

/// Whether a client reaches a server, both as `namespace/name`. A pod always reaches itself, which
/// is no entry.
#[derive(Clone, Debug)]
pub(crate) struct Table(BTreeMap<(String, String), bool>);

impl Table {
    fn new(connected: bool) -> Self {
        let pairs = pods().flat_map(|from| pods().map(move |to| (from.clone(), to)));
        Self(
            pairs
                .filter(|(from, to)| from != to)
                .map(|pair| (pair, connected))
                .collect(),
        )
    }

    /// Changes entries. An empty namespace or name stands for all.
    fn set(mut self, from: &str, to: &str, connected: bool) -> Self {
        for ((client, server), entry) in &mut self.0 {
            if is_meant(client, from) && is_meant(server, to) {
                *entry = connected;
            }
        }
        self
    }

    fn deny(self, from: &str, to: &str) -> Self {
        self.set(from, to, false)
    }

    fn allow(self, from: &str, to: &str) -> Self {
        self.set(from, to, true)
    }

    /// Returns client, server, and whether they are connected.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, &str, bool)> {
        let entries = self.0.iter();
        entries.map(|((from, to), connected)| (from.as_str(), to.as_str(), *connected))
    }
}

fn is_meant(pod: &str, pattern: &str) -> bool {
    let (namespace, name) = pattern.split_once('/').unwrap_or_default();
    let (own_namespace, own_name) = pod.split_once('/').unwrap_or_default();
    (namespace.is_empty() || namespace == own_namespace) && (name.is_empty() || name == own_name)
}

/// Returns all pods, as `namespace/name`.
pub(crate) fn pods() -> impl Iterator<Item = String> {
    let pairs = NAMESPACES
        .iter()
        .flat_map(|namespace| PODS.map(|name| (namespace, name)));
    pairs.map(|(namespace, name)| format!("{namespace}/{name}"))
}

/// Returns a Namespace.
pub(crate) fn namespace(name: &str) -> Value {
    let labels = json!({ "ns": name, "kubernetes.io/metadata.name": name });
    json!({ "kind": "Namespace", "apiVersion": "v1", "metadata": { "name": name, "labels": labels } })
}

/// Returns a Pod, `namespace/name`.
pub(crate) fn pod(pod: &str, node: &str, addresses: &[IpAddr]) -> Value {
    let (namespace, name) = pod.split_once('/').unwrap_or_default();
    let ports = PORTS.map(|port| {
        let ports = PROTOCOLS.map(|protocol| {
            let name = format!("serve-{port}-{}", protocol.to_lowercase());
            json!({ "name": name, "containerPort": port, "protocol": protocol })
        });
        json!({ "name": format!("cont-{port}"), "image": "agnhost", "ports": ports })
    });
    let ips: Vec<Value> = addresses.iter().map(|one| json!({ "ip": one })).collect();
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": { "namespace": namespace, "name": name, "labels": { "pod": name } },
        "spec": { "nodeName": node, "containers": ports },
        "status": { "phase": "Running", "podIP": addresses.first(), "podIPs": ips },
    })
}

fn policy(namespace: &str, name: &str, spec: Value) -> Change {
    let mut policy = json!({
        "kind": "NetworkPolicy", "apiVersion": "networking.k8s.io/v1",
        "metadata": { "namespace": namespace, "name": name },
    });
    policy["spec"] = spec;
    Change::Policy(policy)
}

/// A policy of ingress to pods `name` of the namespace x; to all pods if it is empty.
fn ingress(policy_name: &str, name: &str, rules: Value) -> Change {
    let mut spec = json!({ "podSelector": selector(name), "policyTypes": ["Ingress"] });
    spec["ingress"] = rules;
    policy("x", policy_name, spec)
}

/// A policy of egress from pods `name` of the namespace x.
fn egress(policy_name: &str, name: &str, rules: Value) -> Change {
    let mut spec = json!({ "podSelector": selector(name), "policyTypes": ["Egress"] });
    spec["egress"] = rules;
    policy("x", policy_name, spec)
}

fn selector(pod: &str) -> Value {
    match pod {
        "" => json!({}),
        _ => json!({ "matchLabels": { "pod": pod } }),
    }
}

fn ns(name: &str) -> Value {
    json!({ "matchLabels": { "ns": name } })
}

fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] })
}

fn on(protocol: &'static str, port: u16, table: Table) -> Check {
    Check {
        protocol,
        port,
        table,
    }
}

/// Checks a table on all ports and protocols.
fn everywhere(table: &Table) -> Vec<Check> {
    let ports = PORTS
        .iter()
        .flat_map(|port| PROTOCOLS.map(|protocol| (*port, protocol)));
    ports
        .map(|(port, protocol)| on(protocol, port, table.clone()))
        .collect()
}

fn all() -> Table {
    Table::new(true)
}

/// The table in which only x/a accepts nothing.
fn closed() -> Table {
    all().deny("/", "x/a")
}

fn one(name: &'static str, changes: Vec<Change>, checks: Vec<Check>) -> Case {
    Case {
        name,
        steps: vec![Step { changes, checks }],
    }
}

fn then(mut case: Case, changes: Vec<Change>, checks: Vec<Check>) -> Case {
    case.steps.push(Step { changes, checks });
    case
}

/// Returns all cases, of one family of addresses. `address` returns that of a pod.
pub(crate) fn cases(address: &dyn Fn(&str) -> IpAddr) -> Vec<Case> {
    let mut cases = ingress::cases();
    cases.extend(ports::cases());
    cases.extend(egress::cases(address));
    cases
}
