//! Plans from states of a node.

use api::HostportView;
use serde_json::{Value, json};

use super::*;

/// Returns the cached result of a container of the reference bridge and `portmap`.
pub(in crate::migrate) fn cached(id: &str, address: &str, host_port: u16) -> Cached {
    cached_with(
        id,
        address,
        &json!([{ "hostPort": host_port, "containerPort": 80, "protocol": "tcp" }]),
        &json!({}),
    )
}

fn cached_with(id: &str, address: &str, ports: &Value, keys: &Value) -> Cached {
    let mut portmap = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
    for (key, value) in keys.as_object().unwrap() {
        portmap[key] = value.clone();
    }
    let list = json!({
        "cniVersion": "1.0.0", "name": "net",
        "plugins": [{ "type": "bridge", "bridge": "cni0" }, portmap],
    });
    let mut capabilities = serde_json::Map::new();
    capabilities.insert("portMappings".to_owned(), ports.clone());
    Cached {
        container_id: id.parse().unwrap(),
        ifname: "eth0".parse().unwrap(),
        network: "net".to_owned(),
        netns: format!("/run/netns/{id}"),
        config: list.to_string(),
        args: vec![("IgnoreUnknown".to_owned(), "1".to_owned())],
        capabilities,
        result: json!({
            "cniVersion": "1.0.0",
            "interfaces": [
                { "name": "cni0" }, { "name": "veth1" },
                { "name": "eth0", "sandbox": format!("/run/netns/{id}") },
            ],
            "ips": [{ "address": format!("{address}/24"), "gateway": "10.1.0.1", "interface": 2 }],
        }),
    }
}

pub(in crate::migrate) fn observed(cached: Vec<Cached>) -> Observed {
    Observed {
        live: cached.iter().map(|it| it.netns.clone()).collect(),
        cached,
        attachments: Vec::new(),
        program: Ok(PORTMAP.to_owned()),
        of_pods: Vec::new(),
        kept: 0,
    }
}

fn adopted(id: &str, ports: usize) -> AttachmentView {
    AttachmentView {
        container_id: id.to_owned(),
        ifname: "eth0".to_owned(),
        network: "net".to_owned(),
        adopted: true,
        hostports: vec![HostportView::default(); ports],
        ..AttachmentView::default()
    }
}

fn steps(direction: Direction, observed: &Observed) -> Vec<Step> {
    let plan = Plan::new(direction, observed);
    plan.pods.into_iter().map(|pod| pod.step).collect()
}

#[test]
fn running_pods_with_ports_are_published_by_viaduct() {
    let observed = observed(vec![
        cached("a", "10.1.0.2", 8080),
        cached("b", "10.1.0.3", 8081),
    ]);
    let plan = Plan::new(Direction::Apply, &observed);
    assert_eq!(plan.addresses(), ["10.1.0.2", "10.1.0.3"]);
    assert!(plan.pods.iter().all(|pod| pod.step == Step::Publish));
    assert_eq!(plan.pods[0].ports[0].to_string(), "8080->80/tcp");
}

#[test]
fn pods_without_ports_and_pods_of_viaduct_are_not_migrated() {
    let none = cached_with("a", "10.1.0.2", &json!([]), &json!({}));
    let mut unchained = cached("b", "10.1.0.3", 8080);
    unchained.config =
        json!({ "cniVersion": "1.0.0", "name": "net", "plugins": [{ "type": "bridge" }] })
            .to_string();
    let mut observed = observed(vec![none, unchained, cached("c", "10.1.0.4", 8081)]);
    observed.attachments = vec![AttachmentView {
        adopted: false,
        ..adopted("c", 1)
    }];
    assert_eq!(steps(Direction::Apply, &observed), []);
}

#[test]
fn an_interrupted_migration_is_continued_in_either_direction() {
    let mut observed = observed(vec![cached("a", "10.1.0.2", 8080)]);
    assert_eq!(steps(Direction::Undo, &observed), [Step::Done]);
    observed.attachments = vec![adopted("a", 1)];
    assert_eq!(steps(Direction::Apply, &observed), [Step::RemoveRules]);
    assert_eq!(steps(Direction::Undo, &observed), [Step::Restore]);
    // Unpublished, and kept for connections.
    observed.attachments = vec![adopted("a", 0)];
    assert_eq!(steps(Direction::Apply, &observed), [Step::Publish]);
    assert_eq!(steps(Direction::Undo, &observed), [Step::Release]);
}

#[test]
fn a_pod_without_its_namespace_is_refused() {
    let mut observed = observed(vec![cached("a", "10.1.0.2", 8080)]);
    observed.live.clear();
    let gone = Refusal::NamespaceGone("/run/netns/a".to_owned());
    assert_eq!(steps(Direction::Apply, &observed), [Step::Refuse(gone)]);
}

#[test]
fn settings_that_viaduct_does_not_honour_are_refused_by_their_names() {
    let ports = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
    for keys in [
        json!({ "conditionsV4": ["-s", "10.0.0.0/8"] }),
        json!({ "snat": false }),
    ] {
        let observed = observed(vec![cached_with("a", "10.1.0.2", &ports, &keys)]);
        let steps = steps(Direction::Apply, &observed);
        let [Step::Refuse(Refusal::Configuration(why))] = &steps[..] else {
            panic!("{steps:?}");
        };
        let key = keys.as_object().unwrap().keys().next().unwrap();
        assert!(why.contains(key), "{why}");
    }
}

#[test]
fn pods_that_share_a_port_are_refused_and_name_each_other() {
    let observed = observed(vec![
        cached("a", "10.1.0.2", 8080),
        cached("b", "10.1.0.3", 8080),
    ]);
    for (step, other) in steps(Direction::Apply, &observed).iter().zip(["b", "a"]) {
        let Step::Refuse(refusal) = step else {
            panic!("{step:?}");
        };
        assert!(
            refusal
                .to_string()
                .contains(&format!("container {other} publishes 8080"))
        );
    }
}

#[test]
fn a_pod_with_connections_through_published_ports_is_refused() {
    let mut observed = observed(vec![
        cached("a", "10.1.0.2", 8080),
        cached("b", "10.1.0.3", 8081),
    ]);
    observed.of_pods = vec![TranslatedConnection {
        client: "10.1.0.3:40000".to_owned(),
        server: "192.0.2.1:8080".to_owned(),
        pod: "10.1.0.2:80".to_owned(),
    }];
    let found = steps(Direction::Apply, &observed);
    let refusal = Refusal::Connections {
        first: "10.1.0.3:40000 to 192.0.2.1:8080".to_owned(),
        count: 1,
    };
    assert_eq!(found, [Step::Publish, Step::Refuse(refusal)]);
}

#[test]
fn without_the_reference_plugin_nothing_is_migrated() {
    let mut observed = observed(vec![cached("a", "10.1.0.2", 8080)]);
    observed.program = Err("portmap is Viaduct's".to_owned());
    let refusal = Refusal::NoProgram("portmap is Viaduct's".to_owned());
    assert_eq!(
        steps(Direction::Apply, &observed),
        [Step::Refuse(refusal.clone())]
    );
    observed.attachments = vec![adopted("a", 1)];
    assert_eq!(steps(Direction::Undo, &observed), [Step::Refuse(refusal)]);
}
