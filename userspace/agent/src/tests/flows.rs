//! Flows in the API: rows with their pods, and lists that need the flow table.

use std::collections::BTreeMap;

use abi::{Offloaded, Seen};
use api::{FlowOrder, FlowQuery, FlowsView};

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

/// Returns a table with a flow of the node for each of these: port, protocol, age and idle time in
/// seconds, bytes of each direction, and the decision of the offload table.
fn flows_of_node(flows: &[(u16, u8, [u32; 2], u64, u32)]) -> FlowTable {
    let mut table = FlowTable {
        now: 1_000,
        ..FlowTable::default()
    };
    for (port, protocol, [age, idle], bytes, decision) in flows {
        let tuple = Tuple {
            source: Address::v4([192, 0, 2, 1]),
            destination: Address::v4([192, 0, 2, 7]),
            source_port: Port::new(*port),
            destination_port: Port::new(53),
            protocol: *protocol,
            reserved: [0; 3],
        };
        let flow = |translated, flags| Flow {
            translated,
            flags: flags | FlowFlags::NODE,
            created: 1_000 - age,
            last_seen: 1_000 - idle,
            seen: Seen::PACKET,
            bytes: *bytes,
            packets: 100 - bytes,
            ..Flow::default()
        };
        table
            .entries
            .insert(tuple, flow(tuple, FlowFlags::ORIGINAL));
        table
            .entries
            .insert(tuple.reverse(), flow(tuple.reverse(), 0));
        let decision = Offloaded {
            decision: *decision,
            expires: 1_001,
            ..Offloaded::default()
        };
        table.offloaded.insert(tuple, decision);
    }
    table
}

/// Returns an agent whose node has four flows.
fn agent_with_flows() -> Agent {
    let (tcp, udp) = (abi::protocol::TCP, abi::protocol::UDP);
    let table = move || {
        Ok(flows_of_node(&[
            (1, tcp, [40, 9], 20, Offloaded::ACCEPTED),
            (2, udp, [30, 3], 40, 3),
            (3, tcp, [10, 8], 10, 77),
            (4, 47, [20, 7], 30, Offloaded::BEHIND_NAT),
        ]))
    };
    Agent::reading(FlowSource::new(table), &FLAGS)
}

#[test]
fn flows_have_their_path_and_why_they_take_the_stack() {
    let agent = agent_with_flows();
    let view: FlowsView = agent.get(&FlowQuery::default().to_path());
    let paths: BTreeMap<&str, &str> = view
        .flows
        .iter()
        .map(|flow| (flow.path.as_str(), flow.stack_reason.as_str()))
        .filter(|(path, reason)| *path != "stack" || !reason.is_empty())
        .collect();
    assert_eq!(
        paths,
        [("offloaded", ""), ("stack", "not established")].into()
    );
}

#[test]
fn flows_are_sorted_and_filtered_by_protocol() {
    let agent = agent_with_flows();
    let list = |query: FlowQuery| -> (String, u64) {
        let view: FlowsView = agent.get(&query.to_path());
        let ports = view.flows.iter().map(|flow| {
            let (_, port) = flow.seen.source.rsplit_once(':').unwrap_or(("", "4"));
            port.to_owned()
        });
        (ports.collect(), view.matching)
    };
    let sorted = |sort, limit| FlowQuery {
        sort: Some(sort),
        limit,
        ..FlowQuery::default()
    };
    for (sort, ports) in [
        (FlowOrder::Bytes, "2413"),
        (FlowOrder::Packets, "3142"),
        (FlowOrder::Age, "3421"),
        (FlowOrder::Idle, "2431"),
    ] {
        assert_eq!(list(sorted(sort, None)), (ports.to_owned(), 4));
        assert_eq!(list(sorted(sort, Some(2))), (ports[..2].to_owned(), 4));
        assert_eq!(list(sorted(sort, Some(0))), (String::new(), 4));
    }
    for (protocol, ports) in [("tcp", "13"), ("udp", "2"), ("47", "4"), ("icmp", "")] {
        let protocol = Some(protocol.to_owned());
        let query = FlowQuery {
            protocol,
            ..FlowQuery::default()
        };
        assert_eq!(list(query.clone()).0, ports);
        let query = FlowQuery {
            sort: Some(FlowOrder::Age),
            ..query
        };
        assert_eq!(list(query).1, ports.len() as u64);
    }
    for wrong in ["sort=rate", "protocol=gre", "protocol=256"] {
        let reply = agent
            .client
            .get(&format!("{}?{wrong}", path::FLOWS))
            .unwrap();
        assert!(!reply.is_success(), "{wrong}");
    }
}
