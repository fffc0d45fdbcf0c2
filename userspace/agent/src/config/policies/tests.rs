//! Tests of the validation of network policies.

use serde_json::{Value, json};

use super::*;

/// Returns the error of a policy `a` with these keys, or with this ingress rule.
fn refused(setting: &Value) -> String {
    let error = parse(&setting.to_string()).unwrap_err();
    format!("{error:#}")
}

fn with_policy(keys: &Value) -> Value {
    let mut policy = json!({ "name": "a", "pods": [], "ingress": [] });
    for (key, value) in keys.as_object().unwrap() {
        policy[key] = value.clone();
    }
    json!({ "policies": [policy], "groups": { "web": ["10.1.0.1"] } })
}

fn with_peer(peer: &Value) -> Value {
    with_policy(&json!({ "ingress": [{}, { "from": [peer] }] }))
}

fn with_port(port: &Value) -> Value {
    with_policy(&json!({ "egress": [{ "ports": [port] }] }))
}

#[test]
fn network_policies_are_parsed_with_their_groups() {
    let text = json!({
        "policies": [
            {
                "name": "shop/db",
                "container_ids": ["c1"],
                "pods": ["shop/db-0", "10.1.0.9/28", "fd00::7", "10.1.0.200"],
                "ingress": [{
                    "from": [{ "group": "web" }, { "cidr": "10.0.0.0/8", "except": ["10.9.1.1/16"] }],
                    "ports": [
                        { "protocol": "TCP", "port": 5432 },
                        { "protocol": "udp", "port": 1000, "last_port": 2000 },
                        { "protocol": "sctp" },
                    ],
                }],
            },
            { "name": "shop/closed", "pods": ["0.0.0.0/0"], "ingress": [], "egress": [{ "to": [] }] },
        ],
        "groups": { "web": ["10.1.0.7", "fd00:1::/64"], "empty": [] },
    });
    insta::assert_snapshot!(parse(&text.to_string()).unwrap().to_string(), @r"
    group empty 
    group web 10.1.0.7/32,fd00:1::/64
    policy shop%2fdb
    pod shop db-0
    prefix 10.1.0.0/28
    prefix 10.1.0.200/32
    prefix fd00::7/128
    ingress
    rule @web,10.0.0.0/8!10.9.0.0/16 tcp:5432-5432,udp:1000-2000,sctp
    policy shop%2fclosed
    prefix 0.0.0.0/0
    ingress
    egress
    rule * 
    ");
    assert_eq!(parse("{}").unwrap(), NetworkPolicies::default());
}

#[test]
fn an_invalid_peer_of_a_policy_refuses_the_list_and_is_named_with_its_rule() {
    for (peer, words) in [
        (json!({ "cidr": "10.0.0.0/33" }), "invalid CIDR address"),
        (json!({ "cidr": "10.0.0.1" }), "invalid CIDR address"),
        (json!({ "group": "db" }), "group \"db\" is not in groups"),
        (json!({}), "neither cidr nor group"),
        (
            json!({ "group": "web", "cidr": "10.0.0.0/8" }),
            "both cidr and group",
        ),
        (
            json!({ "group": "web", "except": ["10.0.0.0/8"] }),
            "except needs a cidr",
        ),
        (
            json!({ "cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"] }),
            "except 11.0.0.0/16 is not a part of 10.0.0.0/8",
        ),
        (
            json!({ "cidr": "10.0.0.0/8", "except": ["0.0.0.0/0"] }),
            "except 0.0.0.0/0 is not a part of",
        ),
        (
            json!({ "cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"] }),
            "is not a part of",
        ),
        (
            json!({ "cidr": "0.0.0.0/0", "except": ["fd00::/64"] }),
            "except fd00::/64 is not a part of 0.0.0.0/0",
        ),
        (json!({ "cidr": "::ffff:10.0.0.0/104" }), "IPv4 in IPv6"),
    ] {
        let error = refused(&with_peer(&peer));
        let place = "policy a: ingress rule 2: ";
        assert!(error.starts_with(place), "{error}");
        assert!(error.contains(words), "{peer}: {error}");
    }
}

#[test]
fn an_invalid_port_of_a_policy_refuses_the_list_and_is_named_with_its_rule() {
    for (port, words) in [
        (json!({ "protocol": "tcp", "port": 0 }), "port 0"),
        (
            json!({ "protocol": "tcp", "port": 9, "last_port": 8 }),
            "last_port 8 is less than port 9",
        ),
        (
            json!({ "protocol": "tcp", "last_port": 8 }),
            "last_port 8 without port",
        ),
        (json!({ "protocol": "icmp" }), "unknown protocol \"icmp\""),
    ] {
        let error = refused(&with_port(&port));
        let place = "policy a: egress rule 1: ";
        assert!(error.starts_with(place), "{error}");
        assert!(error.contains(words), "{port}: {error}");
    }
    assert!(refused(&with_port(&json!({ "protocol": "tcp", "port": 65_536 }))).contains("JSON"));
}

#[test]
fn an_invalid_selector_of_pods_refuses_the_list_and_is_never_another_name() {
    for pod in [
        "",
        "web",
        "shop/",
        "/web",
        "shop/web/0",
        "10.0.0.0/33",
        "fd00::/129",
        "10.0.0.256",
        "shop/we b",
        "Shop/web",
        "shop/web.",
        "shop/-web",
    ] {
        let error = refused(&with_policy(&json!({ "pods": [pod] })));
        let words = format!("policy a: {pod:?} is neither a pod");
        assert!(error.starts_with(&words), "{pod}: {error}");
    }
    let good = with_policy(&json!({ "pods": ["shop/web-0.example", "1/2"] }));
    assert_eq!(parse(&good.to_string()).unwrap().policies[0].pods.len(), 2);
}

#[test]
fn invalid_names_and_groups_refuse_the_list_of_policies() {
    let named = |name: &str| json!({ "name": name, "pods": [], "ingress": [] });
    let long = "x".repeat(MAX_POLICY_NAME + 1);
    for (setting, words) in [
        (
            json!({ "policies": [named("")] }),
            "policy: the name has 0 bytes",
        ),
        (
            json!({ "policies": [named(&long)] }),
            "the name has 1025 bytes",
        ),
        (json!({ "policies": [named("a\nb")] }), "control character"),
        (
            json!({ "policies": [named("a"), named("b"), named("a")] }),
            "policy a: a second one of this name",
        ),
        (
            json!({ "policies": [{ "name": "a", "pods": [] }] }),
            "policy a: neither ingress nor egress",
        ),
        (
            json!({ "groups": { "web": ["10.0.0.7", "x"] } }),
            "group web: invalid CIDR address: x",
        ),
        (
            json!({ "groups": { "": [] } }),
            "group: the name has 0 bytes",
        ),
        (json!("x"), "invalid JSON"),
        (json!({ "policy": [] }), "unknown key policy"),
        (
            with_policy(&json!({ "engress": [] })),
            "unknown key policies.0.engress",
        ),
    ] {
        let error = refused(&setting);
        assert!(error.contains(words), "{error}");
    }
    assert!(parse("{\"policies\": [").is_err());
}

#[test]
fn lists_of_policies_beyond_the_maximum_are_refused() {
    let policy = |number: usize| PolicySetting {
        name: number.to_string(),
        ingress: Some(Vec::new()),
        ..PolicySetting::default()
    };
    let mut setting = PoliciesSetting {
        policies: (0..MAX_POLICIES).map(policy).collect(),
        ..PoliciesSetting::default()
    };
    let addresses = vec!["10.0.0.1".to_owned(); MAX_PREFIXES];
    setting.groups.insert("web".to_owned(), addresses.clone());
    validate(&setting).unwrap();
    for (change, words) in [
        (
            PoliciesSetting {
                policies: (0..=MAX_POLICIES).map(policy).collect(),
                ..setting.clone()
            },
            "the list has 4097 policies: 4096 is the maximum",
        ),
        (
            PoliciesSetting {
                groups: BTreeMap::from([("web".to_owned(), [&*addresses, &addresses].concat())]),
                ..setting.clone()
            },
            "the list has 131072 prefixes: 65536 is the maximum",
        ),
    ] {
        assert_eq!(validate(&change).unwrap_err().to_string(), words);
    }
}
