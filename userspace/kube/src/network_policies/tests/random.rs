//! Random clusters: the compiled policies of each node allow what those of the API allow.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Map, Value, json};

use super::evaluate::Connection;
use super::{NODES, World, oracle};

const NAMESPACES: [&str; 3] = ["x", "y", "z"];
const KEYS: [&str; 3] = ["k", "l", "kubernetes.io/metadata.name"];
const VALUES: [&str; 3] = ["p", "q", "x"];
const PORTS: [u16; 3] = [80, 81, 8080];
/// Addresses that are no pod's.
const OUTSIDE: [&str; 3] = ["10.0.0.200", "192.0.2.1", "fd00::99"];

fn labels() -> impl Strategy<Value = Value> {
    let pairs = (select(&KEYS[..2]), select(&VALUES[..2]));
    vec(pairs, 0..3).prop_map(|pairs| {
        let pairs = pairs.into_iter();
        Value::Object(
            pairs
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
        )
    })
}

fn expression() -> impl Strategy<Value = Value> {
    let with_values = (select(vec!["In", "NotIn"]), subsequence(&VALUES[..], 1..3));
    let without = select(vec!["Exists", "DoesNotExist"]).prop_map(|operator| (operator, vec![]));
    (select(&KEYS[..]), prop_oneof![with_values, without]).prop_map(
        |(key, (operator, values))| json!({ "key": key, "operator": operator, "values": values }),
    )
}

fn selector() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({})),
        labels().prop_map(|labels| json!({ "matchLabels": labels })),
        vec(expression(), 1..3).prop_map(|list| json!({ "matchExpressions": list })),
        (labels(), expression())
            .prop_map(|(labels, one)| json!({ "matchLabels": labels, "matchExpressions": [one] })),
    ]
}

fn block() -> impl Strategy<Value = Value> {
    let v4 = (0..16_u8, 28..=32_u8, vec(0..16_u8, 0..2)).prop_map(|(low, length, holes)| {
        let holes = holes.into_iter().filter(|hole| length == 28 && *hole < 16);
        let except: Vec<String> = holes.map(|hole| format!("10.0.0.{hole}/32")).collect();
        json!({ "cidr": format!("10.0.0.{low}/{length}"), "except": except })
    });
    let v6 = (0..16_u8, 124..=128_u8)
        .prop_map(|(low, length)| json!({ "cidr": format!("fd00::{low:x}/{length}") }));
    let all = Just(json!({ "cidr": "0.0.0.0/0", "except": ["10.0.0.8/29", "192.0.2.0/24"] }));
    prop_oneof![v4, v6, all]
}

fn peer() -> impl Strategy<Value = Value> {
    prop_oneof![
        block().prop_map(|block| json!({ "ipBlock": block })),
        selector().prop_map(|pods| json!({ "podSelector": pods })),
        selector().prop_map(|namespaces| json!({ "namespaceSelector": namespaces })),
        (selector(), selector()).prop_map(
            |(namespaces, pods)| json!({ "namespaceSelector": namespaces, "podSelector": pods })
        ),
    ]
}

fn protocol() -> impl Strategy<Value = Option<&'static str>> {
    option::of(select(vec!["TCP", "UDP", "SCTP"]))
}

fn port() -> impl Strategy<Value = Value> {
    let number = prop_oneof![
        Just(json!({})),
        select(&PORTS[..]).prop_map(|port| json!({ "port": port })),
        select(&PORTS[..]).prop_map(|port| json!({ "port": port, "endPort": port.max(100) })),
        select(vec!["http", "dns", "none"]).prop_map(|name| json!({ "port": name })),
        Just(json!({ "port": "http" })),
    ];
    (number, protocol()).prop_map(|(mut port, protocol)| {
        port["protocol"] = json!(protocol);
        port
    })
}

fn rules(peers: &'static str) -> impl Strategy<Value = Option<Vec<Value>>> {
    let lists = (option::of(vec(peer(), 0..3)), option::of(vec(port(), 0..3)));
    let rule = lists.prop_map(move |(list, ports)| {
        let mut rule = Map::new();
        rule.extend(list.map(|list| (peers.to_owned(), json!(list))));
        rule.extend(ports.map(|ports| ("ports".to_owned(), json!(ports))));
        Value::Object(rule)
    });
    option::of(vec(rule, 0..3))
}

fn policy() -> impl Strategy<Value = Value> {
    let types = option::of(subsequence(vec!["Ingress", "Egress"], 0..=2));
    (
        select(&NAMESPACES[..]),
        selector(),
        types,
        rules("from"),
        rules("to"),
    )
        .prop_map(|(namespace, pods, types, ingress, egress)| {
            json!({ "metadata": { "namespace": namespace }, "spec": { "podSelector": pods,
                "policyTypes": types, "ingress": ingress, "egress": egress } })
        })
}

fn container() -> impl Strategy<Value = Value> {
    let facts = (select(vec!["http", "dns"]), protocol(), select(&PORTS[..]));
    let port = facts.prop_map(|(name, protocol, number)| {
        json!({ "name": name, "protocol": protocol, "containerPort": number })
    });
    vec(port, 0..3).prop_map(|ports| json!({ "ports": ports }))
}

fn pod() -> impl Strategy<Value = Value> {
    let phase = select(vec![
        "Running",
        "Running",
        "Running",
        "Pending",
        "Succeeded",
        "Failed",
    ]);
    let place = (
        select(&NAMESPACES[..]),
        select(&NODES[..]),
        prop::bool::weighted(0.1),
    );
    (place, phase, labels(), vec(container(), 1..3)).prop_map(
        |((namespace, node, is_host), phase, labels, containers)| {
            json!({ "metadata": { "namespace": namespace, "labels": labels },
                "spec": { "nodeName": node, "hostNetwork": is_host, "containers": containers },
                "status": { "phase": phase } })
        },
    )
}

/// Pods that have ended keep the addresses of others in the API.
fn with_address(mut pod: Value, index: usize) -> Value {
    let low = if pod["status"]["phase"] == "Running" || pod["status"]["phase"] == "Pending" {
        index
    } else {
        0
    };
    let mut ips = vec![json!({ "ip": format!("10.0.0.{low}") })];
    if !index.is_multiple_of(3) {
        ips.push(json!({ "ip": format!("fd00::{low:x}") }));
    }
    pod["status"]["podIPs"] = json!(ips);
    pod["metadata"]["name"] = json!(format!("pod-{index}"));
    pod
}

fn world() -> impl Strategy<Value = World> {
    let namespaces = [labels(), labels(), labels()];
    (namespaces, vec(pod(), 0..8), vec(policy(), 0..5)).prop_map(|(namespaces, pods, policies)| {
        let mut world = World::default();
        for (name, labels) in NAMESPACES.iter().zip(namespaces) {
            world.put(
                "Namespace",
                &json!({ "metadata": { "name": name, "labels": labels } }),
            );
        }
        for (index, pod) in pods.into_iter().enumerate() {
            world.put("Pod", &with_address(pod, index));
        }
        for (index, mut policy) in policies.into_iter().enumerate() {
            policy["metadata"]["name"] = json!(format!("policy-{index}"));
            world.put("NetworkPolicy", &policy);
        }
        world
    })
}

fn connections(world: &World) -> Vec<Connection> {
    let pods = world.objects.pods.values();
    let ips = pods.flat_map(|pod| pod["status"]["podIPs"].as_array().into_iter().flatten());
    let addresses = ips.filter_map(|one| one["ip"].as_str()).chain(OUTSIDE);
    let mut connections = Vec::new();
    for address in addresses {
        for port in [80, 90, 8080] {
            for protocol in ["TCP", "UDP"] {
                connections.extend([true, false].map(|is_ingress| Connection {
                    is_ingress,
                    peer: address.parse().unwrap(),
                    protocol,
                    port,
                }));
            }
        }
    }
    connections
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn compiled_policies_allow_what_the_objects_of_the_api_allow(world in world()) {
        let settings = world.settings();
        for (name, pod) in &world.objects.pods {
            let first = pod["status"]["podIPs"][0]["ip"].as_str().unwrap().parse().unwrap();
            if !oracle::has_address(pod, first) {
                continue;
            }
            let setting = &settings[pod["spec"]["nodeName"].as_str().unwrap()];
            for connection in connections(&world) {
                let found = super::evaluate::allows(setting, name, connection);
                let expected = oracle::allows(&world.objects, pod, connection);
                prop_assert_eq!(found, expected, "{} {:?}\n{:#?}", name, connection, setting);
            }
        }
    }
}
