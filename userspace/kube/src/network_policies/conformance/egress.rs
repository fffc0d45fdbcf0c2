//! Cases of egress, and of blocks of addresses.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::*;

pub(super) fn cases(address: &dyn Fn(&str) -> IpAddr) -> Vec<Case> {
    let mut cases = egress_rules();
    cases.extend(both_directions());
    cases.extend(blocks(address));
    cases
}

/// The table in which x/a opens nothing.
fn silent() -> Table {
    all().deny("x/a", "/")
}

/// The pod y/a as a peer.
fn y_a() -> Value {
    json!({ "namespaceSelector": ns("y"), "podSelector": selector("a") })
}

fn egress_rules() -> Vec<Case> {
    let to = |peers: Value| vec![egress("p", "a", json!([{ "to": peers }]))];
    let open = json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}] });
    vec![
        one(
            "egress of a pod is denied",
            vec![egress("p", "a", json!([]))],
            everywhere(&silent()),
        ),
        one(
            "egress is denied although the server allows it",
            vec![egress("p", "a", json!([])), policy("y", "open", open)],
            everywhere(&silent()),
        ),
        one(
            "egress to a pod of another namespace",
            to(json!([y_a()])),
            everywhere(&silent().allow("x/a", "y/a")),
        ),
        one(
            "egress to the own namespace",
            to(json!([{ "podSelector": {} }])),
            everywhere(&silent().allow("x/a", "x/")),
        ),
    ]
}

fn both_directions() -> Vec<Case> {
    let together = json!({
        "podSelector": selector("a"), "policyTypes": ["Ingress", "Egress"],
        "ingress": [{ "from": [{ "podSelector": selector("b") }] }],
        "egress": [{ "to": [{ "namespaceSelector": {} }], "ports": [{ "port": 80 }] }],
    });
    let from_z = json!({
        "podSelector": selector("a"), "policyTypes": ["Ingress"],
        "ingress": [{ "from": [{ "namespaceSelector": ns("z") }] }],
    });
    let of_b = || closed().allow("x/b", "x/a");
    let denied = one(
        "a policy of ingress says nothing about egress",
        vec![ingress("p", "a", json!([]))],
        everywhere(&closed()),
    );
    vec![
        one(
            "ingress and egress together",
            vec![policy("x", "p", together)],
            vec![
                on("TCP", 80, of_b()),
                on("TCP", 81, of_b().deny("x/a", "/")),
            ],
        ),
        one(
            "egress of the client and ingress of the server are needed both",
            vec![
                egress("p", "a", json!([{ "to": [y_a()] }])),
                policy("y", "q", from_z),
            ],
            everywhere(&silent().deny("/", "y/a").allow("z/", "y/a")),
        ),
        then(
            denied,
            vec![egress("q", "a", json!([{}]))],
            everywhere(&closed()),
        ),
    ]
}

fn blocks(address: &dyn Fn(&str) -> IpAddr) -> Vec<Case> {
    let is_ipv4 = address("x/a").is_ipv4();
    let host = |pod: &str| format!("{}/{}", address(pod), if is_ipv4 { 32 } else { 128 });
    let world = if is_ipv4 { "0.0.0.0/0" } else { "::/0" };
    let other_world = if is_ipv4 { "::/0" } else { "0.0.0.0/0" };
    let to = |block: Value| vec![egress("p", "a", json!([{ "to": [{ "ipBlock": block }] }]))];
    let from = |block: Value| {
        vec![ingress(
            "p",
            "a",
            json!([{ "from": [{ "ipBlock": block }] }]),
        )]
    };
    let overlapping = ingress(
        "q",
        "a",
        json!([{ "from": [{ "ipBlock": { "cidr": host("x/b") } }] }]),
    );
    vec![
        one(
            "egress to a block",
            to(json!({ "cidr": host("y/b") })),
            everywhere(&silent().allow("x/a", "y/b")),
        ),
        one(
            "egress to a block with an exception",
            to(json!({ "cidr": world, "except": [host("y/b")] })),
            everywhere(&all().deny("x/a", "y/b")),
        ),
        one(
            "ingress from a block",
            from(json!({ "cidr": host("z/c") })),
            everywhere(&closed().allow("z/c", "x/a")),
        ),
        one(
            "ingress from a block with exceptions",
            from(json!({ "cidr": world, "except": [host("x/b"), host("y/b")] })),
            everywhere(&all().deny("x/b", "x/a").deny("y/b", "x/a")),
        ),
        then(
            one(
                "an address in an exception and in another block",
                from(json!({ "cidr": world, "except": [host("x/b")] })),
                everywhere(&all().deny("x/b", "x/a")),
            ),
            vec![overlapping],
            everywhere(&all()),
        ),
        one(
            "a block of the other family",
            from(json!({ "cidr": other_world })),
            everywhere(&closed()),
        ),
    ]
}
