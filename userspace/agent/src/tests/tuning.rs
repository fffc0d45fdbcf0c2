//! DEL of the tuning plugin over the API.

use super::*;

const NETNS: &str = "/run/netns/c1";

/// Makes the namespace of a container and its interface, as another plugin does.
fn add_interface(agent: &Agent, mac: &str) {
    agent.fake.add_netns(NETNS);
    agent.fake.add_pod_link(NETNS, "eth0");
    agent
        .fake
        .edit_pod(NETNS, "eth0", |side| side.mac = mac.parse().ok());
}

fn mac(agent: &Agent) -> String {
    let side = agent.fake.pod(NETNS, "eth0").unwrap();
    side.mac.unwrap().to_string()
}

/// The runtime uses the container ID again afterwards.
#[test]
fn a_del_of_tuning_without_a_namespace_deletes_the_previous_settings() {
    let agent = Agent::start(&FLAGS);
    let folder = agent.directory.path().join("backups");
    let config = json!({
        "cniVersion": "1.1.0", "name": "theirs", "type": "tuning", "mac": "02:00:00:00:00:02",
        "dataDir": folder, "prevResult": { "cniVersion": "1.1.0", "ips": [] },
    });
    add_interface(&agent, "02:00:00:00:00:01");
    agent.cni_as("tuning", CniVerb::Add, "c1", &config).unwrap();
    assert_eq!(mac(&agent), "02:00:00:00:00:02");
    let backup = folder.join("c1_eth0.json");
    assert!(backup.exists());

    agent.fake.remove_netns(NETNS);
    let mut del = request("tuning", "c1", &config);
    del.netns = String::new();
    let reply = agent.client.post(CniVerb::Del.path(), &del).unwrap();
    assert!(reply.is_success());
    assert!(!backup.exists());

    add_interface(&agent, "02:00:00:00:00:03");
    agent.cni_as("tuning", CniVerb::Del, "c1", &config).unwrap();
    assert_eq!(mac(&agent), "02:00:00:00:00:03");
}
