//! ADDs that fail only because their CNI version cannot express the result, and their DELs.

use super::*;

fn attached(agent: &Agent) -> Vec<String> {
    let views: Vec<AttachmentView> = agent.get(path::ATTACHMENTS);
    views.into_iter().map(|view| view.container_id).collect()
}

/// A configuration with two addresses of one family, in a version whose result has one.
fn two_of_a_family() -> Value {
    json!({
        "cniVersion": "0.2.0", "name": "old", "type": "bridge", "bridge": "br8", "isGateway": true,
        "ipam": {
            "type": "host-local",
            "ranges": [[{ "subnet": "10.8.0.0/24" }], [{ "subnet": "10.9.0.0/24" }]],
        },
    })
}

fn has_bridge(agent: &Agent, name: &str) -> bool {
    let links = agent.fake.snapshot().links;
    links.contains_key(&name.parse().unwrap())
}

/// behaviours S10, R8: a runtime that repeats the DEL removes its sandbox.
#[test]
fn the_first_del_after_an_add_refused_for_its_addresses_fails_and_the_next_succeeds() {
    let agent = Agent::start(&FLAGS);
    let mut config = two_of_a_family();
    agent.fake.add_netns("/run/netns/c1");
    let send = |verb, config: &Value| agent.cni_as("bridge", verb, "c1", config);
    let words = "CNI version 0.2.0 does not support more than 1 address per family";
    let refused = |verb, config: &Value| {
        let error = send(verb, config).unwrap_err();
        assert_eq!((error.code, &*error.message), (1, words));
    };
    send(CniVerb::Del, &config).unwrap();
    refused(CniVerb::Add, &config);
    assert!(has_bridge(&agent, "br8"));
    assert!(attached(&agent).is_empty());
    refused(CniVerb::Del, &config);
    send(CniVerb::Del, &config).unwrap();

    // A DEL that removes an attachment succeeds, whatever its configuration is.
    refused(CniVerb::Add, &config);
    config["cniVersion"] = json!("1.0.0");
    send(CniVerb::Add, &config).unwrap();
    assert_eq!(attached(&agent), ["c1"]);
    config["cniVersion"] = json!("0.2.0");
    refused(CniVerb::Add, &config);
    assert_eq!(attached(&agent), ["c1"]);
    send(CniVerb::Del, &config).unwrap();
    assert!(attached(&agent).is_empty());
}

/// behaviour S10
#[test]
fn an_add_refused_for_its_missing_address_leaves_the_bridge_and_its_del_succeeds() {
    let agent = Agent::start(&FLAGS);
    let config =
        json!({ "cniVersion": "0.2.0", "name": "switch", "type": "bridge", "bridge": "br9" });
    let error = agent
        .cni_as("bridge", CniVerb::Add, "c1", &config)
        .unwrap_err();
    assert_eq!(error.message, "cannot convert: no valid IP addresses");
    assert!(!has_bridge(&agent, "br9"), "there is no namespace");
    agent.fake.add_netns("/run/netns/c1");
    agent
        .cni_as("bridge", CniVerb::Add, "c1", &config)
        .unwrap_err();
    assert!(has_bridge(&agent, "br9"));
    agent.cni_as("bridge", CniVerb::Del, "c1", &config).unwrap();
}

#[test]
fn an_add_with_another_fault_than_its_version_makes_no_bridge() {
    let agent = Agent::start(&FLAGS);
    agent.fake.add_netns("/run/netns/c1");
    let faults = [
        ("/ipam/resolvConf", json!("/nowhere/resolv.conf")),
        ("/mtu", json!(-1)),
        ("/vlan", json!(5000)),
        ("/ipam/ranges/1/0/subnet", json!("10.8.0.0/16")),
    ];
    for (path, value) in faults {
        let mut config = two_of_a_family();
        let (parent, key) = path.rsplit_once('/').unwrap();
        config.pointer_mut(parent).unwrap()[key] = value;
        let error = agent
            .cni_as("bridge", CniVerb::Add, "c1", &config)
            .unwrap_err();
        assert_ne!(error.code, 1, "{path}: {error}");
        assert!(!has_bridge(&agent, "br8"), "{path}");
        agent.cni_as("bridge", CniVerb::Del, "c1", &config).unwrap();
    }
}
