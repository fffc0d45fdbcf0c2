//! Cases of ingress: isolation, selectors of peers, and changes.

use serde_json::{Value, json};

use super::*;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = isolation();
    cases.extend(pod_selectors());
    cases.extend(namespace_selectors());
    cases.extend(both_selectors());
    cases.extend(updates());
    cases.extend(label_updates());
    cases
}

fn isolation() -> Vec<Case> {
    let both = json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] });
    let without_types = json!({ "podSelector": selector("a"), "egress": [{ "to": [{ "podSelector": selector("b") }] }] });
    let only_selector = json!({ "podSelector": selector("a") });
    vec![
        one("no policy", vec![], everywhere(&all())),
        one(
            "default-deny-ingress",
            vec![ingress("deny", "", json!([]))],
            everywhere(&all().deny("/", "x/")),
        ),
        one(
            "default-deny-egress",
            vec![egress("deny", "", json!([]))],
            everywhere(&all().deny("x/", "/")),
        ),
        one(
            "default-deny-all",
            vec![policy("x", "deny", both)],
            everywhere(&all().deny("/", "x/").deny("x/", "/")),
        ),
        one(
            "allow-all",
            vec![ingress("allow", "", json!([{}]))],
            everywhere(&all()),
        ),
        one(
            "empty lists of peers and ports are those of all",
            vec![ingress("allow", "", json!([{ "from": [], "ports": [] }]))],
            everywhere(&all()),
        ),
        one(
            "a policy without types is one of ingress",
            vec![policy("x", "deny", only_selector)],
            everywhere(&closed()),
        ),
        one(
            "a policy without types that has rules of egress is one of both",
            vec![policy("x", "deny", without_types)],
            everywhere(&closed().deny("x/a", "/").allow("x/a", "x/b")),
        ),
        one(
            "rules of a type that is not in the list have no effect",
            vec![policy(
                "x",
                "p",
                json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}], "egress": [] }),
            )],
            everywhere(&all()),
        ),
        one(
            "an allow-all policy beside default-deny",
            vec![
                ingress("deny", "", json!([])),
                ingress("allow", "a", json!([{}])),
            ],
            everywhere(&all().deny("/", "x/").allow("/", "x/a")),
        ),
    ]
}

fn pod_selectors() -> Vec<Case> {
    let from = |peers: Value| vec![ingress("p", "a", json!([{ "from": peers }]))];
    vec![
        one(
            "from pods of the server's namespace, by podSelector",
            from(json!([{ "podSelector": selector("b") }])),
            everywhere(&closed().allow("x/b", "x/a")),
        ),
        one(
            "from the same namespace only",
            vec![ingress(
                "p",
                "",
                json!([{ "from": [{ "podSelector": {} }] }]),
            )],
            everywhere(&all().deny("y/", "x/").deny("z/", "x/")),
        ),
        one(
            "podSelector with matchExpressions In",
            from(json!([{ "podSelector": expression("pod", "In", &["b", "d"]) }])),
            everywhere(&closed().allow("x/b", "x/a")),
        ),
        one(
            "podSelector with matchExpressions NotIn",
            from(json!([{ "podSelector": expression("pod", "NotIn", &["b"]) }])),
            everywhere(&closed().allow("x/c", "x/a")),
        ),
        one(
            "podSelector with matchExpressions Exists",
            from(json!([{ "podSelector": expression("pod", "Exists", &[]) }])),
            everywhere(&closed().allow("x/", "x/a")),
        ),
        one(
            "podSelector with matchExpressions DoesNotExist selects none",
            from(json!([{ "podSelector": expression("pod", "DoesNotExist", &[]) }])),
            everywhere(&closed()),
        ),
        one(
            "any of several podSelectors",
            from(json!([{ "podSelector": selector("b") }, { "podSelector": selector("c") }])),
            everywhere(&closed().allow("x/", "x/a")),
        ),
        one(
            "a podSelector that selects no pod",
            from(json!([{ "podSelector": selector("nothing") }])),
            everywhere(&closed()),
        ),
        one(
            "a policy of pods by matchExpressions",
            vec![policy(
                "x",
                "p",
                json!({ "podSelector": expression("pod", "In", &["a", "b"]), "policyTypes": ["Ingress"] }),
            )],
            everywhere(&all().deny("/", "x/a").deny("/", "x/b")),
        ),
    ]
}

fn namespace_selectors() -> Vec<Case> {
    let from = |peers: Value| vec![ingress("p", "a", json!([{ "from": peers }]))];
    let by_name = json!({ "matchLabels": { "kubernetes.io/metadata.name": "z" } });
    vec![
        one(
            "from a different namespace, by namespaceSelector",
            from(json!([{ "namespaceSelector": ns("y") }])),
            everywhere(&closed().allow("y/", "x/a")),
        ),
        one(
            "from all namespaces",
            from(json!([{ "namespaceSelector": {} }])),
            everywhere(&all()),
        ),
        one(
            "namespaceSelector with matchExpressions",
            from(json!([{ "namespaceSelector": expression("ns", "In", &["y", "q"]) }])),
            everywhere(&closed().allow("y/", "x/a")),
        ),
        one(
            "namespaceSelector with NotIn",
            from(json!([{ "namespaceSelector": expression("ns", "NotIn", &["x"]) }])),
            everywhere(&closed().allow("y/", "x/a").allow("z/", "x/a")),
        ),
        one(
            "namespaceSelector by the name of the namespace",
            from(json!([{ "namespaceSelector": by_name }])),
            everywhere(&closed().allow("z/", "x/a")),
        ),
        one(
            "a namespaceSelector that selects no namespace",
            from(json!([{ "namespaceSelector": ns("q") }])),
            everywhere(&closed()),
        ),
    ]
}

fn both_selectors() -> Vec<Case> {
    let from = |peers: Value| vec![ingress("p", "a", json!([{ "from": peers }]))];
    let several = json!([{
        "namespaceSelector": expression("ns", "NotIn", &["x"]),
        "podSelector": expression("pod", "In", &["b", "c"]),
    }]);
    vec![
        one(
            "podSelector or namespaceSelector",
            from(json!([{ "podSelector": selector("b") }, { "namespaceSelector": ns("y") }])),
            everywhere(&closed().allow("x/b", "x/a").allow("y/", "x/a")),
        ),
        one(
            "podSelector and namespaceSelector",
            from(json!([{ "namespaceSelector": ns("y"), "podSelector": selector("b") }])),
            everywhere(&closed().allow("y/b", "x/a")),
        ),
        one(
            "expressions of pods and namespaces",
            from(several),
            everywhere(
                &closed()
                    .allow("y/b", "x/a")
                    .allow("y/c", "x/a")
                    .allow("z/b", "x/a")
                    .allow("z/c", "x/a"),
            ),
        ),
        one(
            "an empty podSelector with a namespaceSelector",
            from(json!([{ "namespaceSelector": ns("z"), "podSelector": {} }])),
            everywhere(&closed().allow("z/", "x/a")),
        ),
        one(
            "a podSelector of all namespaces",
            from(json!([{ "namespaceSelector": {}, "podSelector": selector("c") }])),
            everywhere(&closed().allow("/c", "x/a")),
        ),
    ]
}

fn updates() -> Vec<Case> {
    let allow = || ingress("p", "a", json!([{}]));
    let deny = || ingress("p", "a", json!([]));
    vec![
        then(
            one("a policy is updated", vec![allow()], everywhere(&all())),
            vec![deny()],
            everywhere(&closed()),
        ),
        then(
            one("a policy is deleted", vec![deny()], everywhere(&closed())),
            vec![Change::Delete("x", "p")],
            everywhere(&all()),
        ),
        then(
            one(
                "one of two policies is deleted",
                vec![deny(), ingress("q", "a", json!([{}]))],
                everywhere(&all()),
            ),
            vec![Change::Delete("x", "q")],
            everywhere(&closed()),
        ),
    ]
}

fn label_updates() -> Vec<Case> {
    let from = |peer: Value| vec![ingress("p", "a", json!([{ "from": [peer] }]))];
    let updated = |key: &str| json!({ "matchLabels": { key: "updated" } });
    let isolated = json!({ "podSelector": { "matchLabels": { "target": "isolated" } }, "policyTypes": ["Ingress"] });
    vec![
        then(
            one(
                "a namespace gets the label of a peer",
                from(json!({ "namespaceSelector": updated("ns2") })),
                everywhere(&closed()),
            ),
            vec![Change::LabelNamespace("y", ["ns2", "updated"])],
            everywhere(&closed().allow("y/", "x/a")),
        ),
        then(
            one(
                "a pod gets the label of a peer",
                from(json!({ "podSelector": updated("pod2") })),
                everywhere(&closed()),
            ),
            vec![Change::LabelPod("x/b", ["pod2", "updated"])],
            everywhere(&closed().allow("x/b", "x/a")),
        ),
        then(
            one(
                "a pod gets the label of a policy",
                vec![policy("x", "p", isolated)],
                everywhere(&all()),
            ),
            vec![Change::LabelPod("x/a", ["target", "isolated"])],
            everywhere(&closed()),
        ),
    ]
}
