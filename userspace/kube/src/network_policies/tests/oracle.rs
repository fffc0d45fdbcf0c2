//! Evaluates the objects of the API as they are, by Kubernetes' documentation: shares no code with
//! the compiled policies.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;

use super::evaluate::Connection;

/// The objects of a cluster, by name or `namespace/name`.
#[derive(Clone, Debug, Default)]
pub(super) struct Objects {
    pub(super) namespaces: BTreeMap<String, Value>,
    pub(super) pods: BTreeMap<String, Value>,
    pub(super) policies: BTreeMap<String, Value>,
}

/// Returns whether the policies allow a connection of a pod.
pub(super) fn allows(objects: &Objects, pod: &Value, connection: Connection) -> bool {
    let (kind, rules) = if connection.is_ingress {
        ("Ingress", "ingress")
    } else {
        ("Egress", "egress")
    };
    let isolating: Vec<&Value> = objects
        .policies
        .values()
        .filter(|policy| policy["metadata"]["namespace"] == pod["metadata"]["namespace"])
        .filter(|policy| selects(&policy["spec"]["podSelector"], &pod["metadata"]["labels"]))
        .filter(|policy| has_type(&policy["spec"], kind))
        .collect();
    isolating.is_empty()
        || isolating.iter().any(|policy| {
            let mut rules = items(&policy["spec"][rules]);
            rules.any(|rule| rule_allows(objects, pod, rule, connection))
        })
}

fn has_type(spec: &Value, kind: &str) -> bool {
    let types: Vec<&Value> = items(&spec["policyTypes"]).collect();
    if types.is_empty() {
        kind == "Ingress" || items(&spec["egress"]).count() > 0
    } else {
        types.iter().any(|one| *one == kind)
    }
}

fn rule_allows(objects: &Objects, pod: &Value, rule: &Value, connection: Connection) -> bool {
    let list = if connection.is_ingress { "from" } else { "to" };
    let peers: Vec<&Value> = items(&rule[list]).collect();
    let ports: Vec<&Value> = items(&rule["ports"]).collect();
    let peer_pods: Vec<&Value> = objects
        .pods
        .values()
        .filter(|one| has_address(one, connection.peer))
        .collect();
    let servers: Vec<&Value> = if connection.is_ingress {
        vec![pod]
    } else {
        peer_pods.clone()
    };
    let has_peer = peers.is_empty()
        || peers.iter().any(|peer| {
            let block = &peer["ipBlock"];
            if block.is_object() {
                return is_within(&block["cidr"], connection.peer)
                    && !items(&block["except"]).any(|one| is_within(one, connection.peer));
            }
            let namespace = &pod["metadata"]["namespace"];
            peer_pods
                .iter()
                .any(|one| selects_pod(objects, namespace, peer, one))
        });
    let has_port = ports.is_empty() || ports.iter().any(|port| is_port(port, &servers, connection));
    has_peer && has_port
}

fn selects_pod(objects: &Objects, own_namespace: &Value, peer: &Value, pod: &Value) -> bool {
    let namespace = &pod["metadata"]["namespace"];
    let is_in_namespace = if peer["namespaceSelector"].is_null() {
        namespace == own_namespace
    } else {
        let name = namespace.as_str().unwrap();
        let mut labels = objects.namespaces[name]["metadata"]["labels"].clone();
        labels["kubernetes.io/metadata.name"] = namespace.clone();
        selects(&peer["namespaceSelector"], &labels)
    };
    is_in_namespace && selects(&peer["podSelector"], &pod["metadata"]["labels"])
}

fn is_port(port: &Value, servers: &[&Value], connection: Connection) -> bool {
    if port["protocol"].as_str().unwrap_or("TCP") != connection.protocol {
        return false;
    }
    let number = u64::from(connection.port);
    match &port["port"] {
        Value::Null => true,
        Value::String(name) => servers.iter().any(|server| {
            let containers = items(&server["spec"]["containers"]);
            let mut ports = containers.flat_map(|one| items(&one["ports"]));
            ports.any(|one| {
                one["name"] == **name
                    && one["containerPort"] == number
                    && one["protocol"].as_str().unwrap_or("TCP") == connection.protocol
            })
        }),
        Value::Number(first) => {
            let first = first.as_u64().unwrap();
            let last = port["endPort"].as_u64().unwrap_or(first);
            (first..=last).contains(&number)
        }
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => panic!("{port}"),
    }
}

/// Returns whether the address is that of the pod, and not of its node or of a pod before.
pub(super) fn has_address(pod: &Value, address: IpAddr) -> bool {
    let is_ended = ["Succeeded", "Failed"]
        .iter()
        .any(|phase| pod["status"]["phase"] == *phase);
    let mut own = items(&pod["status"]["podIPs"]);
    !is_ended
        && pod["spec"]["hostNetwork"] != true
        && own.any(|one| one["ip"].as_str().unwrap().parse() == Ok(address))
}

fn selects(selector: &Value, labels: &Value) -> bool {
    let mut wanted = selector["matchLabels"].as_object().into_iter().flatten();
    wanted.all(|(key, value)| labels[key] == *value)
        && items(&selector["matchExpressions"]).all(|one| {
            let label = &labels[one["key"].as_str().unwrap()];
            let is_value = || items(&one["values"]).any(|value| value == label);
            match one["operator"].as_str().unwrap() {
                "In" => is_value(),
                "NotIn" => !is_value(),
                "Exists" => !label.is_null(),
                "DoesNotExist" => label.is_null(),
                other => panic!("{other}"),
            }
        })
}

fn is_within(cidr: &Value, address: IpAddr) -> bool {
    let (network, length) = cidr.as_str().unwrap().split_once('/').unwrap();
    let length: u32 = length.parse().unwrap();
    match (network.parse().unwrap(), address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            (network.to_bits() ^ address.to_bits()).leading_zeros() >= length
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            (network.to_bits() ^ address.to_bits()).leading_zeros() >= length
        }
        _ => false,
    }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}
