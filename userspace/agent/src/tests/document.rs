//! The OpenAPI document beside the router and its answers.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use api::{ErrorReason, MAX_INTEGER, PageQuery};
use jsonschema::Validator;
use serde_json::Map;

use super::*;

/// Methods by path.
type Operations = BTreeMap<String, BTreeSet<String>>;

fn document() -> Value {
    serde_json::from_str(include_str!("../../../../docs/reference/openapi.json")).unwrap()
}

/// Returns the operations of the document.
fn documented() -> Operations {
    let document = document();
    let paths = document["paths"].as_object().unwrap().iter();
    let operations = paths.map(|(path, methods)| {
        let methods = methods.as_object().unwrap().keys();
        (path.clone(), methods.map(|it| it.to_uppercase()).collect())
    });
    operations.collect()
}

/// Returns the paths of the router, as its `Debug` output lists them.
fn routes() -> BTreeSet<String> {
    let router = format!("{:?}", routes::paths());
    let (router, _) = router.split_once("fallback_router").unwrap();
    let quoted = router.split('"').skip(1).step_by(2);
    let paths: BTreeSet<String> = quoted
        .filter(|text| text.starts_with('/'))
        .map(str::to_owned)
        .collect();
    assert!(paths.len() > 25, "the router prints no paths: {router}");
    paths
}

/// Returns the head of the response to a request with this method.
fn head(agent: &Agent, method: &str, path: &str) -> String {
    let mut stream = UnixStream::connect(agent.client.socket()).unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: viaduct\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response.split("\r\n\r\n").next().unwrap().to_lowercase()
}

#[test]
fn the_document_has_the_paths_and_methods_of_the_router_and_no_others() {
    let agent = Agent::start(&[]);
    let served: Operations = routes()
        .into_iter()
        .map(|path| {
            let concrete = path.replace("{id}", "c1").replace("{ifname}", "eth0");
            let head = head(&agent, "PATCH", &concrete);
            assert!(head.starts_with("http/1.1 405"), "{path}: {head}");
            let allow = head.lines().find_map(|line| line.strip_prefix("allow: "));
            let methods = allow.unwrap().split(',').map(|it| it.trim().to_uppercase());
            (path, methods.filter(|it| it != "HEAD").collect())
        })
        .collect();
    assert_eq!(documented(), served);
}

/// Validates answers by a copy of the document whose schemas permit no other fields.
struct Strict(Value);

impl Strict {
    fn new() -> Self {
        let mut document = document();
        let text = document.to_string();
        let schemas = document["components"]["schemas"].as_object_mut().unwrap();
        for (name, schema) in schemas {
            // A schema with which another one is composed permits the other's fields.
            let composed = format!("\"allOf\":[{{\"$ref\":\"#/components/schemas/{name}\"");
            if !text.contains(&composed) {
                schema["unevaluatedProperties"] = false.into();
            }
        }
        Self(document)
    }

    fn validator(&self, schema: &Value) -> Validator {
        let mut whole = schema.as_object().cloned().unwrap_or_else(Map::new);
        whole.insert("components".to_owned(), self.0["components"].clone());
        jsonschema::draft202012::new(&Value::Object(whole)).unwrap()
    }

    fn response(&self, method: &str, path: &str) -> Value {
        let content = &self.0["paths"][path][method]["responses"]["200"]["content"];
        let of_type = content.as_object().and_then(|it| it.values().next());
        of_type.map_or(Value::Null, |content| content["schema"].clone())
    }

    fn accepts(&self, schema: &Value, answer: &Value, what: &str) {
        let validator = self.validator(schema);
        let errors: Vec<String> = validator
            .iter_errors(answer)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{what}: {errors:#?} in {answer:#}");
        assert_eq!(largest(answer).max(MAX_INTEGER), MAX_INTEGER, "{what}");
    }
}

/// Returns the largest integer of a value.
fn largest(value: &Value) -> u64 {
    match value {
        Value::Number(number) => number.as_u64().unwrap_or(0),
        Value::Array(items) => items.iter().map(largest).max().unwrap_or(0),
        Value::Object(map) => map.values().map(largest).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::String(_) => 0,
    }
}

/// Starts an agent with two pods, one of them with limits, ports and an IPv6 address.
fn with_pods() -> Agent {
    let cidrs = "--pod-cidr=10.1.2.0/24,fd00:1:2::/64";
    let agent = Agent::start(&[cidrs, "--ingress-default=50M"]);
    for container in ["c1", "c2"] {
        let mut config = config();
        config["runtimeConfig"]["portMappings"][0]["hostPort"] =
            if container == "c1" { 8_080 } else { 8_081 }.into();
        agent.fake.add_netns(&format!("/run/netns/{container}"));
        agent.cni(CniVerb::Add, container, &config).unwrap();
    }
    agent
}

/// Returns network policies with every key.
fn network_policies() -> Value {
    json!({
        "policies": [{
            "name": "default/web",
            "pods": ["default/web", "10.9.0.0/16"],
            "ingress": [{
                "from": [{ "group": "all" }, { "cidr": "10.0.0.0/8", "except": ["10.9.0.0/16"] }],
                "ports": [{ "protocol": "tcp", "port": 80, "last_port": 90 }],
            }],
            "egress": [{ "to": [{ "cidr": "fd00::/8" }], "ports": [{ "protocol": "udp" }] }],
        }],
        "groups": { "all": ["10.1.2.0/24"] },
    })
}

/// Returns the requests of the test, by method and path of the document, each with the path to
/// request and the body. A new path must be added here.
fn requests() -> Vec<(&'static str, &'static str, String, Value)> {
    let get =
        |path: &'static str, query: &str| ("get", path, format!("{path}{query}"), Value::Null);
    let put = |path: &'static str, body: Value| {
        let concrete = path.replace("{id}", "c1").replace("{ifname}", "eth0");
        ("put", path, concrete, body)
    };
    let post = |path: &'static str, body: Value| ("post", path, path.to_owned(), body);
    let limits = json!({ "ingress": "10M", "egress": "none" });
    let peer = json!([{ "name": "b", "prefixes": ["10.1.3.0/24"], "addresses": ["192.0.2.7"] }]);
    let query = json!({ "netns": "/run/netns/c1", "ifname": "eth0" });
    let attachment = (
        "get",
        path::ATTACHMENT,
        path::ATTACHMENT.replace("{id}", "c1"),
        Value::Null,
    );
    vec![
        get(path::OPENAPI, ""),
        get(path::STATUS, ""),
        get(path::NETWORKS, ""),
        get(path::COUNTERS, ""),
        get(path::LEASES, ""),
        get(path::LEASES, "?limit=1"),
        get(path::HOSTPORTS, ""),
        get(path::HOSTPORTS, "?limit=1"),
        get(path::FLOWS, "?limit=7"),
        get(path::WHY, "?from=c1&to=192.0.2.7:80"),
        get(path::ATTACHMENTS, ""),
        get(path::ATTACHMENTS, "?limit=1"),
        attachment,
        get(path::POD_CIDRS, ""),
        put(path::PEERS, peer),
        get(path::PEERS, ""),
        put(path::PEER_SOURCE, json!({ "program": "viaduct-kube" })),
        put(path::POLICIES, network_policies()),
        get(path::POLICIES, ""),
        get(path::HAIRPIN_MODE, ""),
        put(path::HAIRPIN_MODE, json!({ "mode": "hairpin-veth" })),
        put(path::BYPASS, json!({ "mode": "never", "seconds": 1 })),
        put(path::NON_MASQUERADE_CIDRS, json!(["10.0.0.0/8"])),
        get(path::NON_MASQUERADE_CIDRS, ""),
        put(path::BANDWIDTH, limits.clone()),
        put(path::ONLY_BANDWIDTH, limits),
        put(
            path::POD_CIDRS,
            json!({ "podCIDRs": ["10.1.2.0/24", "fd00:1:2::/64"] }),
        ),
        post(path::INSIDE, query),
        post(
            path::KEPT_CONNECTIONS,
            json!({ "addresses": [], "dryRun": true }),
        ),
    ]
}

#[test]
fn answers_of_the_agent_are_as_the_document_says() {
    let agent = with_pods();
    let strict = Strict::new();
    for (method, path, concrete, body) in requests() {
        let reply = match method {
            "get" => agent.client.get(&concrete),
            "put" => agent.client.put(&concrete, &body),
            _ => agent.client.post(&concrete, &body),
        };
        let what = format!("{method} {concrete}");
        let answer = reply
            .unwrap()
            .decode::<Value>()
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        if !body.is_null() {
            let content = &strict.0["paths"][path][method]["requestBody"]["content"];
            let schema = &content["application/json"]["schema"];
            strict.accepts(schema, &body, &format!("body of {what}"));
        }
        strict.accepts(&strict.response(method, path), &answer, &what);
    }
}

/// Paths whose answers are validated elsewhere: streams, the log level, a reload and an uninstall
/// by the e2e test `api_document`. A drain answers nothing, and metrics are no JSON.
#[test]
fn each_path_of_the_document_is_requested_by_a_test() {
    let mut missing = documented();
    for (method, path, ..) in requests() {
        missing
            .get_mut(path)
            .unwrap()
            .remove(&method.to_uppercase());
    }
    missing.retain(|path, methods| !methods.is_empty() && !path.starts_with("/v1/cni/"));
    let elsewhere = [
        path::DRAIN,
        path::DROPS,
        path::EVENTS,
        path::LOG_LEVEL,
        path::METRICS,
        path::NETAVARK_CREATE,
        path::RELOAD,
        path::UNINSTALL,
    ];
    let missing: BTreeSet<&str> = missing.keys().map(String::as_str).collect();
    assert_eq!(missing, BTreeSet::from(elsewhere));
}

#[test]
fn events_are_lines_as_the_document_says_with_times_in_rfc_3339() {
    let agent = with_pods();
    let strict = Strict::new();
    let reply = agent.client.get(path::EVENTS).unwrap();
    let lines = String::from_utf8(reply.body).unwrap();
    assert!(lines.lines().count() > 1, "{lines}");
    for line in lines.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        strict.accepts(&strict.response("get", path::EVENTS), &event, line);
        let time = event["time"].as_str().unwrap();
        assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
    }
}

#[test]
fn errors_are_as_the_document_says_with_a_reason_of_its_list() {
    let agent = with_pods();
    let strict = Strict::new();
    let schema = json!({ "$ref": "#/components/schemas/ErrorBody" });
    for (path, reason) in [
        ("/v1/nothing", ErrorReason::NoSuchPath),
        ("/v2/status", ErrorReason::OtherApiVersion),
        ("/v1/reload", ErrorReason::NoSuchMethod),
        ("/v1/attachments?limit=many", ErrorReason::InvalidRequest),
        ("/v1/events?follow=7", ErrorReason::InvalidRequest),
        ("/v1/drops?reason=bad-luck", ErrorReason::InvalidRequest),
        ("/v1/flows?port=0x1", ErrorReason::InvalidRequest),
        ("/v1/attachments/c9", ErrorReason::UnknownContainer),
    ] {
        let reply = agent.client.get(path).unwrap();
        assert!(!reply.is_success(), "{path}");
        assert_eq!(reply.error().reason, reason.word(), "{path}");
        let body: Value = serde_json::from_slice(&reply.body).unwrap();
        strict.accepts(&schema, &body, path);
    }
    let taken = agent
        .client
        .put(path::POD_CIDRS, &pod_cidrs(&["10.9.0.0/24"]));
    assert_eq!(
        taken.unwrap().error().reason,
        ErrorReason::PodCidrsInUse.word()
    );
    let port = agent.cni(CniVerb::Add, "c1", &json!([])).unwrap_err();
    assert_eq!(port.reason, ErrorReason::InvalidBody.word());
    let attached = agent.client.post(path::UNINSTALL, &json!({})).unwrap();
    assert_eq!(attached.error().reason, ErrorReason::StillAttached.word());
}

#[test]
fn pages_of_attachments_leases_and_host_ports_have_each_item_once() {
    fn pages<T: api::PageItem + serde::de::DeserializeOwned>(agent: &Agent, path: &str) -> usize {
        let mut keys = BTreeSet::new();
        let mut next = Some(PageQuery::first(1));
        while let Some(query) = next {
            let page: Vec<T> = agent.get(&query.to_path(path));
            next = query.next(&page);
            for item in &page {
                assert!(keys.insert(item.page_key()), "{path}");
            }
        }
        keys.len()
    }
    let agent = with_pods();
    assert_eq!(pages::<AttachmentView>(&agent, path::ATTACHMENTS), 2);
    assert_eq!(pages::<Lease>(&agent, path::LEASES), 4);
    assert_eq!(pages::<PortView>(&agent, path::HOSTPORTS), 2);
}
