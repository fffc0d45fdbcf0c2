//! Flows in the API: rows with their pods, and lists that need the flow table.

use api::{FlowQuery, FlowsView};

use super::*;

#[test]
fn hostports_are_listed_without_flow_counts_if_the_flow_table_cannot_be_read() {
    let nowhere = kernel::FlowReader::new("/nowhere".as_ref());
    let agent = Agent::reading(FlowSource::new(move || nowhere.read()), &FLAGS);
    agent.add("c1").unwrap();
    let ports: Vec<PortView> = agent.get(path::HOSTPORTS);
    assert_eq!(ports[0].port.attachment, "default/c1/eth0");
    assert_eq!(ports[0].flows, None);
    assert!(!agent.client.get(path::FLOWS).unwrap().is_success());
}

#[test]
fn flows_are_listed_with_their_pod() {
    let agent = Agent::start(&FLAGS);
    let list = |query: &FlowQuery| -> FlowsView { agent.get(&query.to_path()) };
    let none_yet = list(&FlowQuery::default());
    assert_eq!(none_yet.matching, 1, "{none_yet:?}");
    assert_eq!(none_yet.flows[0].container_id, None);

    agent.add("c1").unwrap();
    let all = list(&FlowQuery::default());
    assert_eq!(all.matching, 2, "{all:?}");
    for name in ["c1", "web", "default/web"] {
        let pod = Some(name.to_owned());
        let of_pod = list(&FlowQuery {
            pod,
            ..FlowQuery::default()
        });
        assert_eq!(of_pod.matching, 1, "{name}: {of_pod:?}");
        let flow = &of_pod.flows[0];
        assert_eq!(flow.container_id.as_deref(), Some("c1"));
        assert_eq!(flow.seen.source, "10.0.0.2:40000");
        assert_eq!(flow.translated.source, "10.0.0.9:40000");
        assert_eq!((flow.protocol.as_str(), flow.age_seconds), ("tcp", 50));
    }
    let none = list(&FlowQuery {
        limit: Some(0),
        ..FlowQuery::default()
    });
    assert_eq!((none.matching, none.flows.len()), (2, 0));
    let wrong = agent.client.get("/v1/flows?colour=red").unwrap().error();
    assert!(wrong.message.contains("colour"), "{wrong}");
}
