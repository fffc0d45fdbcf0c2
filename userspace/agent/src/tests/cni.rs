//! CNI commands by the API: what is collected, what STATUS says, and what becomes of DELs that had to wait.

use super::*;

fn plain() -> Value {
    json!({ "cniVersion": "1.1.0", "name": "pods", "type": "viaduct" })
}

fn attached(agent: &Agent) -> Vec<String> {
    let views: Vec<AttachmentView> = agent.get(path::ATTACHMENTS);
    views.into_iter().map(|view| view.container_id).collect()
}

/// Three attachments, of which the runtime knows `c2` and of which `c3` is alive.
fn three() -> (Agent, Value) {
    let agent = Agent::start(&FLAGS);
    for container in ["c1", "c2", "c3"] {
        agent.fake.add_netns(&format!("/run/netns/{container}"));
        agent.cni(CniVerb::Add, container, &plain()).unwrap();
    }
    agent.fake.remove_netns("/run/netns/c1");
    let mut config = plain();
    config["cni.dev/valid-attachments"] = json!([{ "containerID": "c2", "ifname": "eth0" }]);
    (agent, config)
}

/// BEHAVIOURS S12
#[test]
fn gc_removes_what_nobody_knows_and_what_lives_only_when_forced() {
    let (agent, mut config) = three();
    agent.cni(CniVerb::Gc, "", &plain()).unwrap();
    assert_eq!(attached(&agent), ["c1", "c2", "c3"], "there is no list");
    agent.cni(CniVerb::Gc, "", &config).unwrap();
    assert_eq!(attached(&agent), ["c2", "c3"]);
    config["forceGC"] = json!(true);
    agent.cni(CniVerb::Gc, "", &config).unwrap();
    assert_eq!(attached(&agent), ["c2"]);
}

/// BEHAVIOURS S12: CRI-O sends null when a network has no pods.
#[test]
fn an_empty_list_means_that_nothing_is_wanted_and_another_network_is_not_meant() {
    for list in [json!(null), json!([])] {
        let (agent, mut config) = three();
        config["cni.dev/valid-attachments"] = list;
        let mut other = config.clone();
        other["name"] = json!("other");
        other["ipam"] = json!({ "type": "host-local", "subnet": "10.9.0.0/24" });
        agent.cni(CniVerb::Gc, "", &other).unwrap();
        assert_eq!(attached(&agent).len(), 3);
        agent.fake.remove_netns("/run/netns/c2");
        agent.cni(CniVerb::Gc, "", &config).unwrap();
        assert_eq!(attached(&agent), ["c3"]);
    }
}

/// BEHAVIOURS S11, C15: Multus takes a default route away and says so in the cached result.
#[test]
fn check_looks_for_the_routes_that_the_runtime_still_has() {
    let agent = Agent::start(&FLAGS);
    let result = agent.add("c1").unwrap();
    let mut config = config();
    config["prevResult"] = serde_json::from_str(&result).unwrap();
    agent.fake.edit_pod("/run/netns/c1", "eth0", |side| {
        side.routes
            .retain(|route| route.destination.prefix_len() > 0);
    });
    let refused = agent.cni(CniVerb::Check, "c1", &config).unwrap_err();
    assert!(refused.message.contains("0.0.0.0/0"), "{refused}");
    config["prevResult"]["routes"] = json!([{ "dst": "10.3.2.1/8" }]);
    agent.cni(CniVerb::Check, "c1", &config).unwrap();
}

/// BEHAVIOURS S13
#[test]
fn status_tells_a_network_that_is_full_from_a_datapath_that_is_broken() {
    let agent = Agent::start(&FLAGS);
    let code = |config: &Value| agent.cni(CniVerb::Status, "", config).map_err(|e| e.code);
    assert_eq!(code(&plain()), Ok(String::new()));

    let mut full = plain();
    full["name"] = json!("small");
    full["bridge"] = json!("br1");
    full["ipam"] = json!({ "type": "host-local", "subnet": "10.9.0.0/30" });
    agent.fake.add_netns("/run/netns/c1");
    agent.cni(CniVerb::Add, "c1", &full).unwrap();
    assert_eq!(code(&full), Err(50));
    assert_eq!(code(&plain()), Ok(String::new()), "it is another network");
}

/// BEHAVIOURS A1
#[test]
fn a_del_that_waited_is_executed_before_an_add_that_wants_what_it_frees() {
    let agent = Agent::start(&FLAGS);
    agent.add("c1").unwrap();
    let spool = Spool::beside(&agent.directory.path().join("v.sock"));
    spool
        .put("pods", &request("viaduct", "c1", &config()))
        .unwrap();
    // The same port of the node, and in the end the same container.
    agent.add("c2").unwrap();
    assert_eq!(attached(&agent), ["c2"]);
    assert!(spool.waiting().unwrap().is_empty());
    agent.cni(CniVerb::Del, "c2", &config()).unwrap();
    agent.cni(CniVerb::Add, "c1", &config()).unwrap();
    assert_eq!(attached(&agent), ["c1"]);
}
