//! Tests of single rules: what is sent, word by word.

use super::*;

/// A pod of the namespace x with the label `pod`.
fn pod(name: &str, node: &str, addresses: &[&str]) -> Value {
    let ips: Vec<Value> = addresses.iter().map(|one| json!({ "ip": one })).collect();
    json!({ "metadata": { "namespace": "x", "name": name, "labels": { "pod": name } },
        "spec": { "nodeName": node, "containers": [] },
        "status": { "phase": "Running", "podIPs": ips } })
}

fn policy(name: &str, spec: &Value) -> Value {
    json!({ "metadata": { "namespace": "x", "name": name }, "spec": spec })
}

/// Returns what the agent of n1 is sent.
fn sent(policies: &[Value], pods: &[Value]) -> PoliciesSetting {
    let mut world = World::default();
    world.put("Namespace", &json!({ "metadata": { "name": "x" } }));
    for pod in pods {
        world.put("Pod", pod);
    }
    for policy in policies {
        world.put("NetworkPolicy", policy);
    }
    world.settings().remove("n1").unwrap()
}

fn as_json(setting: &PoliciesSetting) -> Value {
    serde_json::to_value(setting).unwrap()
}

#[test]
fn policies_of_local_pods_are_sent_with_groups_of_the_whole_clusters_pods() {
    let from = json!([{ "from": [
        { "podSelector": { "matchLabels": { "pod": "b" } } },
        { "ipBlock": { "cidr": "10.9.0.1/8", "except": ["10.1.0.0/16"] } },
    ], "ports": [{ "port": 80 }, { "port": 90, "endPort": 99, "protocol": "SCTP" }] }]);
    let select = json!({ "matchLabels": { "pod": "a" } });
    let of_a = json!({ "podSelector": select, "policyTypes": ["Ingress"], "ingress": from });
    let of_b = json!({ "podSelector": { "matchLabels": { "pod": "b" } } });
    let pods = [
        pod("a", "n1", &["10.0.1.1"]),
        pod("b", "n2", &["10.0.2.10", "fd00::2"]),
        pod("c", "n1", &["10.0.1.2"]),
    ];
    let setting = sent(&[policy("web", &of_a), policy("other-node", &of_b)], &pods);
    let expected = json!({
        "policies": [{
            "name": "x/web", "pods": ["x/a"],
            "ingress": [{
                "from": [
                    { "group": "pods pod=b of namespace x" },
                    { "cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"] },
                ],
                "ports": [
                    { "protocol": "tcp", "port": 80 },
                    { "protocol": "sctp", "port": 90, "last_port": 99 },
                ],
            }],
        }],
        "groups": { "pods pod=b of namespace x": ["10.0.2.10", "fd00::2"] },
    });
    assert_eq!(as_json(&setting), expected);
}

#[test]
fn a_local_pod_is_selected_before_it_has_an_address_and_after_it_has_ended() {
    let deny = policy("deny", &json!({ "podSelector": {} }));
    let mut pending = pod("a", "n1", &[]);
    pending["status"] = json!({ "phase": "Pending" });
    let mut ended = pod("b", "n1", &["10.0.1.2"]);
    ended["status"]["phase"] = json!("Failed");
    let mut in_host_network = pod("c", "n1", &["192.0.2.1"]);
    in_host_network["spec"]["hostNetwork"] = json!(true);
    let elsewhere = pod("d", "n2", &["10.0.2.4"]);
    let without_node = json!({ "metadata": { "namespace": "x", "name": "e" } });
    let pods = [pending, ended, in_host_network, elsewhere, without_node];
    let setting = sent(&[deny], &pods);
    assert_eq!(setting.policies[0].pods, ["x/a", "x/b"]);
    assert_eq!(setting.policies[0].ingress, Some(Vec::new()));
    assert_eq!(setting.policies[0].egress, None);
}

#[test]
fn groups_have_pods_that_are_being_deleted_and_neither_ended_ones_nor_nodes() {
    let spec = json!({ "podSelector": { "matchLabels": { "pod": "a" } },
        "ingress": [{ "from": [{ "podSelector": {} }] }] });
    let mut deleting = pod("b", "n2", &["10.0.2.2"]);
    deleting["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
    let mut ended = pod("c", "n2", &["10.0.2.3"]);
    ended["status"]["phase"] = json!("Succeeded");
    let mut of_node = pod("d", "n2", &["192.0.2.2"]);
    of_node["spec"]["hostNetwork"] = json!(true);
    let mut old = pod("e", "n2", &[]);
    old["status"] = json!({ "podIP": "10.0.2.5" });
    let pods = [pod("a", "n1", &[]), deleting, ended, of_node, old];
    let setting = sent(&[policy("p", &spec)], &pods);
    assert_eq!(
        setting.groups["pods of namespace x"],
        ["10.0.2.2", "10.0.2.5"]
    );
}

#[test]
fn a_peer_that_selects_nothing_is_an_empty_group_and_not_all() {
    let spec = json!({ "podSelector": {}, "policyTypes": ["Egress"],
        "egress": [{ "to": [{ "namespaceSelector": { "matchLabels": { "a": "b" } } }] }] });
    let setting = sent(&[policy("p", &spec)], &[pod("a", "n1", &["10.0.1.1"])]);
    let group = "pods of namespaces a=b";
    assert_eq!(setting.groups[group], [""; 0]);
    let rules = setting.policies[0].egress.as_ref().unwrap();
    assert_eq!(rules[0].to[0].group.as_deref(), Some(group));
}

#[test]
fn names_of_long_selectors_are_those_that_the_agent_accepts_and_differ() {
    let selecting = |last: &str| {
        let mut values: Vec<String> = (0..100).map(|n| format!("a-long-value-{n}")).collect();
        values.push(last.to_owned());
        let expressions = json!([{ "key": "app", "operator": "In", "values": values }]);
        json!({ "from": [{ "podSelector": { "matchExpressions": expressions } }] })
    };
    let rules = ["one", "other"].map(selecting);
    let spec = json!({ "podSelector": {}, "ingress": rules });
    let sent = sent(&[policy("long", &spec)], &[pod("own", "n1", &["10.1.0.1"])]);
    assert_eq!(sent.groups.len(), 2, "two names");
    for name in sent.groups.keys() {
        assert!(name.len() <= api::MAX_POLICY_NAME, "{name}");
    }
}

/// A pod with a port "http" of this number.
fn serving(name: &str, node: &str, address: &str, number: u16) -> Value {
    let mut pod = pod(name, node, &[address]);
    let port = json!({ "name": "http", "containerPort": number });
    pod["spec"]["containers"] = json!([{ "name": "c" }, { "ports": [port] }]);
    pod
}

#[test]
fn a_policy_is_split_by_the_numbers_that_its_pods_have_for_a_named_port() {
    let spec = json!({ "podSelector": {}, "policyTypes": ["Ingress"],
        "ingress": [{ "ports": [{ "port": "http" }] }, { "ports": [{ "port": 22 }] }] });
    let policies = [policy("web", &spec)];
    let mut pods = vec![
        serving("a", "n1", "10.0.1.1", 80),
        serving("b", "n1", "10.0.1.2", 80),
        serving("c", "n2", "10.0.2.3", 8080),
    ];
    let names = |setting: &PoliciesSetting| -> Vec<(String, Vec<String>, usize)> {
        let policies = setting.policies.iter();
        policies
            .map(|one| {
                (
                    one.name.clone(),
                    one.pods.clone(),
                    one.ingress.as_ref().unwrap().len(),
                )
            })
            .collect()
    };
    let entry = |name: &str, pods: &[&str], rules| {
        let pods = pods.iter().map(ToString::to_string).collect();
        (name.to_owned(), pods, rules)
    };
    // One number on this node: the name is that of the policy.
    assert_eq!(
        names(&sent(&policies, &pods)),
        [entry("x/web", &["x/a", "x/b"], 2)]
    );
    pods.push(serving("d", "n1", "10.0.1.4", 8080));
    pods.push(pod("e", "n1", &["10.0.1.5"]));
    assert_eq!(
        names(&sent(&policies, &pods)),
        [
            // The rule of the named port only allows nothing, and is left out.
            entry("x/web (http/tcp=none)", &["x/e"], 1),
            entry("x/web (http/tcp=80)", &["x/a", "x/b"], 2),
            entry("x/web (http/tcp=8080)", &["x/d"], 2),
        ]
    );
}

#[test]
fn a_named_port_of_egress_splits_the_group_by_the_numbers_of_the_peers() {
    let spec = json!({ "podSelector": { "matchLabels": { "pod": "a" } }, "policyTypes": ["Egress"],
        "egress": [{ "to": [{ "podSelector": {} }], "ports": [{ "port": "http" }, { "port": 443 }] }] });
    let pods = [
        pod("a", "n1", &["10.0.1.1"]),
        serving("b", "n2", "10.0.2.2", 80),
        serving("c", "n2", "10.0.2.3", 8080),
        serving("d", "n1", "10.0.1.4", 8080),
    ];
    let setting = as_json(&sent(&[policy("p", &spec)], &pods));
    let to = |group: &str, port: u16| json!({ "to": [{ "group": group }], "ports": [{ "protocol": "tcp", "port": port }] });
    let expected = json!([
        to("pods of namespace x", 443),
        to("pods of namespace x with port http/tcp=80", 80),
        to("pods of namespace x with port http/tcp=8080", 8080),
    ]);
    assert_eq!(setting["policies"][0]["egress"], expected);
    let groups = json!({
        "pods of namespace x": ["10.0.1.1", "10.0.1.4", "10.0.2.2", "10.0.2.3"],
        "pods of namespace x with port http/tcp=80": ["10.0.2.2"],
        "pods of namespace x with port http/tcp=8080": ["10.0.1.4", "10.0.2.3"],
    });
    assert_eq!(setting["groups"], groups);
}

#[test]
fn ports_of_init_containers_count_only_if_those_stay() {
    let spec =
        json!({ "podSelector": {}, "ingress": [{ "ports": [{ "port": "a" }, { "port": "b" }] }] });
    let mut server = pod("a", "n1", &["10.0.1.1"]);
    server["spec"]["initContainers"] = json!([
        { "ports": [{ "name": "a", "containerPort": 1 }] },
        { "ports": [{ "name": "b", "containerPort": 2 }], "restartPolicy": "Always" },
    ]);
    let setting = sent(&[policy("p", &spec)], &[server]);
    let ports = &setting.policies[0].ingress.as_ref().unwrap()[0].ports;
    assert_eq!(
        ports.iter().map(|one| one.port).collect::<Vec<_>>(),
        [Some(2)]
    );
}

/// Returns the policy as sent, and why it has no rule.
fn invalid(spec: &Value) -> (PoliciesSetting, String) {
    let policies = [policy("p", spec)];
    let mut cluster = Cluster::new("n1");
    for event in complete(&policies) {
        cluster.apply_policy(event);
    }
    let problem = cluster
        .policies()
        .unwrap()
        .values()
        .next()
        .unwrap()
        .problem
        .clone();
    let pods = [pod("a", "n1", &["10.0.1.1"]), pod("b", "n1", &["10.0.1.2"])];
    (
        sent(&policies, &pods),
        problem.map(|one| one.to_string()).unwrap_or_default(),
    )
}

#[test]
fn a_policy_that_is_not_understood_isolates_its_pods_and_allows_nothing() {
    let allowing = |peer: &Value, port: &Value| {
        json!({ "podSelector": { "matchLabels": { "pod": "a" } },
        "policyTypes": ["Ingress", "Egress"], "ingress": [{}, { "from": [peer], "ports": [port] }], "egress": [{}] })
    };
    let peer = |peer: Value| allowing(&peer, &json!({}));
    let port = |port: Value| allowing(&json!({ "podSelector": {} }), &port);
    let odd = json!({ "matchExpressions": [{ "key": "k", "operator": "Gt", "values": ["1"] }] });
    for (spec, why) in [
        (
            peer(json!({ "podSelector": odd })),
            "selector: unknown operator \"Gt\"",
        ),
        (
            peer(json!({ "namespaceSelector": odd })),
            "selector: unknown operator \"Gt\"",
        ),
        (
            peer(json!({ "ipBlock": { "cidr": "10.0.0.0" } })),
            "invalid prefix \"10.0.0.0\"",
        ),
        (
            peer(json!({ "ipBlock": { "cidr": "10.0.0.0/8", "except": ["11.0.0.0/9"] } })),
            "except \"11.0.0.0/9\" is not within the prefix of its ipBlock",
        ),
        (
            peer(json!({ "ipBlock": { "cidr": "10.0.0.0/8" }, "podSelector": {} })),
            "peer with both ipBlock and a selector",
        ),
        (
            peer(json!({ "serviceSelector": {} })),
            "peer with neither podSelector, namespaceSelector nor ipBlock",
        ),
        (
            port(json!({ "protocol": "ICMP" })),
            "unknown protocol \"ICMP\"",
        ),
        (port(json!({ "port": 0 })), "invalid port 0"),
        (port(json!({ "port": 70_000 })), "invalid port 70000"),
        (
            port(json!({ "port": 80, "endPort": 79 })),
            "invalid port 79",
        ),
        (
            port(json!({ "port": "http", "endPort": 80 })),
            "endPort without a number as port",
        ),
        (
            port(json!({ "endPort": 80 })),
            "endPort without a number as port",
        ),
    ] {
        let (setting, problem) = invalid(&spec);
        assert_eq!(problem, why);
        let [policy] = setting.policies.as_slice() else {
            panic!("{setting:?}");
        };
        assert_eq!(policy.pods, ["x/a"], "{why}");
        assert_eq!(policy.ingress, Some(Vec::new()), "{why}");
        assert_eq!(policy.egress, Some(Vec::new()), "{why}");
    }
}

/// The agent would refuse the whole list.
#[test]
fn a_policy_with_a_block_that_the_agent_refuses_isolates_its_pods_alone() {
    for (block, why) in [
        (
            json!({ "cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"] }),
            "except \"10.0.0.0/8\" is not within the prefix of its ipBlock",
        ),
        (
            json!({ "cidr": "::ffff:10.0.0.0/104" }),
            "invalid prefix \"::ffff:10.0.0.0/104\"",
        ),
    ] {
        let rules = json!([{ "from": [{ "ipBlock": block }] }]);
        let (setting, problem) = invalid(&json!({ "podSelector": {}, "ingress": rules }));
        assert_eq!(problem, why);
        assert_eq!(setting.policies[0].ingress, Some(Vec::new()), "{why}");
    }
}

#[test]
fn a_policy_of_unknown_pods_isolates_all_that_it_may_select() {
    let select =
        json!({ "matchExpressions": [{ "key": "pod", "operator": "Like", "values": ["a"] }] });
    let (setting, problem) = invalid(&json!({ "podSelector": select, "ingress": [{}] }));
    assert_eq!(problem, "selector: unknown operator \"Like\"");
    assert_eq!(setting.policies[0].pods, ["x/a", "x/b"]);
    assert_eq!(setting.policies[0].ingress, Some(Vec::new()));
    assert_eq!(setting.policies[0].egress, None);
    // A type of a later version of the API, alone and beside one that is known.
    for (types, isolates_egress) in [
        (json!(["Forward"]), true),
        (json!(["Ingress", "Forward"]), false),
    ] {
        let (setting, problem) =
            invalid(&json!({ "podSelector": {}, "policyTypes": types, "ingress": [{}] }));
        assert_eq!(problem, "unknown policy type \"Forward\"");
        assert_eq!(setting.policies[0].ingress, Some(Vec::new()));
        assert_eq!(setting.policies[0].egress.is_some(), isolates_egress);
    }
}

#[test]
fn a_namespace_has_the_label_of_its_name_on_old_api_servers_too() {
    let spec = json!({ "podSelector": {}, "ingress": [{ "from": [
        { "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "x" } } }] }] });
    let setting = sent(&[policy("p", &spec)], &[pod("a", "n1", &["10.0.1.1"])]);
    let groups: Vec<_> = setting.groups.into_iter().collect();
    let name = "pods of namespaces kubernetes.io/metadata.name=x";
    assert_eq!(groups, [(name.to_owned(), vec!["10.0.1.1".to_owned()])]);
}

#[test]
fn lists_are_needed_only_by_rules_that_select_their_objects() {
    let needs = |specs: &[Value]| {
        let mut cluster = Cluster::new("n1");
        let policies: Vec<Value> = specs.iter().map(|spec| policy("p", spec)).collect();
        for event in complete(&policies) {
            cluster.apply_policy(event);
        }
        (cluster.needs().pods, cluster.needs().has_namespaces)
    };
    assert_eq!(needs(&[]), (None, false));
    for (spec, pods, namespaces) in [
        (json!({}), PodScope::Node, false),
        (
            json!({ "ingress": [{ "from": [{ "ipBlock": { "cidr": "10.0.0.0/8" } }], "ports": [{ "port": "a" }] }] }),
            PodScope::Node,
            false,
        ),
        (
            json!({ "ingress": [{ "from": [{ "podSelector": {} }] }] }),
            PodScope::Cluster,
            false,
        ),
        (
            json!({ "ingress": [{ "from": [{ "namespaceSelector": {} }] }] }),
            PodScope::Cluster,
            true,
        ),
        (
            json!({ "egress": [{ "ports": [{ "port": "a" }] }] }),
            PodScope::Cluster,
            false,
        ),
        // Not in effect.
        (
            json!({ "policyTypes": ["Ingress"], "egress": [{ "ports": [{ "port": "a" }] }] }),
            PodScope::Node,
            false,
        ),
    ] {
        assert_eq!(
            needs(std::slice::from_ref(&spec)),
            (Some(pods), namespaces),
            "{spec}"
        );
    }
}

#[test]
fn pods_of_a_workload_share_their_labels_and_ports() {
    let mut cluster = Cluster::new("n1");
    cluster.begin_pods(Some(PodScope::Cluster));
    let labelled = |name: &str, number: usize| {
        let mut pod = pod(name, "n2", &["10.0.2.1"]);
        pod["metadata"]["labels"] = json!({ "app": "web", "shard": number.to_string() });
        pod
    };
    let pods: Vec<Value> = (0..300)
        .map(|number| labelled(&format!("p{number}"), number % 3))
        .collect();
    for event in complete(&pods) {
        cluster.apply_pod(event);
    }
    assert_eq!(cluster.templates(), 3);
    // A pod whose labels change all the time leaves no old ones behind.
    for number in 0..1000 {
        let pod = labelled("p0", number);
        cluster.apply_pod(Event::Apply(parsed(&pod)));
    }
    assert!(cluster.templates() < 130, "{}", cluster.templates());
}
