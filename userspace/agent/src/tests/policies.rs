//! Network policies over the API.

use api::PoliciesView;

use super::*;

fn replace(agent: &Agent, policies: &Value) -> Result<PoliciesView, ErrorBody> {
    let reply = agent.client.put(path::POLICIES, policies).unwrap();
    if reply.is_success() {
        Ok(reply.decode().unwrap())
    } else {
        Err(reply.error())
    }
}

/// Returns policies that select pods by name, by prefix, by address and none.
fn policies() -> Value {
    let policy = |name: &str, pods: Value| json!({ "name": name, "pods": pods, "ingress": [], "egress": [{}] });
    json!({
        "policies": [
            policy("named", json!(["default/web", "default/other"])),
            policy("prefix", json!(["10.1.2.0/24"])),
            policy("address", json!(["10.1.2.200"])),
            policy("none", json!([])),
        ],
        "groups": { "web": ["10.1.2.7", "10.1.3.9/24"] },
    })
}

#[test]
fn network_policies_are_listed_with_the_containers_that_they_select() {
    let agent = Agent::start(&["--pod-cidr=10.1.2.0/24"]);
    assert_eq!(
        agent.get::<PoliciesView>(path::POLICIES),
        PoliciesView::default()
    );
    let before = replace(&agent, &policies()).unwrap();
    assert!(
        before
            .policies
            .iter()
            .all(|one| one.container_ids.is_empty())
    );
    agent.add("c1").unwrap();
    let view: PoliciesView = agent.get(path::POLICIES);
    let containers: Vec<Vec<String>> = view
        .policies
        .iter()
        .map(|one| one.container_ids.clone())
        .collect();
    assert_eq!(containers, [vec!["c1"], vec!["c1"], vec![], vec![]]);
    assert_eq!(view.groups["web"], ["10.1.2.7/32", "10.1.3.0/24"]);
    assert_eq!(view.policies[2].policy.pods, ["10.1.2.200/32"]);
    assert_eq!(view.policies[0].policy.ingress, Some(Vec::new()));
    assert_eq!(agent.get::<Status>(path::STATUS).policies, 4);
    let metrics = agent.client.get(path::METRICS).unwrap().body;
    let metrics = String::from_utf8(metrics).unwrap();
    assert!(metrics.contains("viaduct_network_policies 4"), "{metrics}");

    // The answer can be sent back.
    let again = serde_json::to_value(&view).unwrap();
    assert_eq!(replace(&agent, &again).unwrap(), view);
}

#[test]
fn an_invalid_list_of_network_policies_changes_nothing() {
    let agent = Agent::start(&["--pod-cidr=10.1.2.0/24"]);
    let view = replace(&agent, &policies()).unwrap();
    let mut invalid = policies();
    invalid["policies"][1]["egress"][0]["to"] = json!([{ "cidr": "10.0.0.0/8", "group": "web" }]);
    let error = replace(&agent, &invalid).unwrap_err();
    let text = format!("{error:?}");
    assert!(
        text.contains("policy prefix: egress rule 1: a peer has both cidr and group"),
        "{text}"
    );
    let misspelt = json!({ "policy": [] });
    let error = format!("{:?}", replace(&agent, &misspelt).unwrap_err());
    assert!(error.contains("unknown key policy"), "{error}");
    assert_eq!(agent.get::<PoliciesView>(path::POLICIES), view);
}
