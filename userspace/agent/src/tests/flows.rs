//! Flows in the API: rows with their pods, and lists that need the flow table.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};

use abi::{Offloaded, Seen};
use api::{FlowOrder, FlowQuery, FlowsView};
use kernel::ObserveError;
use steps::{ConnectedSocket, NamespaceSockets, SocketQuery, SocketState, SocketTable, Traffic};

use super::*;

/// Returns a source of this flow table, on a node without sockets.
pub(super) fn source(
    table: impl Fn() -> Result<FlowTable, ObserveError> + Send + Sync + 'static,
) -> FlowSource {
    FlowSource::new(table, |_| Ok(SocketTable::default()))
}

#[test]
fn hostports_are_listed_without_flow_counts_if_the_flow_table_cannot_be_read() {
    let nowhere = kernel::FlowReader::new("/nowhere".as_ref());
    let agent = Agent::reading(source(move || nowhere.read()), &FLAGS);
    agent.add("c1").unwrap();
    let ports: Vec<PortView> = agent.get(path::HOSTPORTS);
    assert_eq!(ports[0].port.attachment, "default/c1/eth0");
    assert_eq!(ports[0].flows, None);
    assert!(!agent.client.get(path::FLOWS).unwrap().is_success());
}

/// Returns a table with a flow from outside to each of these addresses of the first pod and of the
/// node. The flow to the pod's own address is not translated.
fn flows_from_outside(to: [[u8; 4]; 2], port: u16) -> FlowTable {
    let [pod, node] = to.map(|address| Tuple {
        source: Address::v4([192, 0, 2, 2]),
        destination: Address::v4(address),
        source_port: Port::new(40_000),
        destination_port: Port::new(port),
        protocol: abi::protocol::TCP,
        reserved: [0; 3],
    });
    let translated = Tuple {
        source_port: Port::new(40_001),
        ..pod
    };
    let mut table = FlowTable::default();
    for (from, to, flags) in [(pod, pod, 0), (node, translated, FlowFlags::DNAT)] {
        let flow = |translated, flags| Flow {
            translated,
            flags,
            pod: 1,
            generation: 1,
            ..Flow::default()
        };
        let original = flow(to, flags | FlowFlags::ORIGINAL);
        table.entries.insert(from, original);
        let reply = flow(from.reverse(), flags);
        table.entries.insert(to.reverse(), reply);
    }
    table
}

#[test]
fn flows_of_routed_ports_are_counted_and_no_sockets_are_read_for_hostports() {
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    let sockets = move |_: &SocketQuery| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(SocketTable::default())
    };
    let table = || Ok(flows_from_outside([[10, 1, 2, 2], [192, 0, 2, 1]], 80));
    let agent = Agent::reading(FlowSource::new(table, sockets), &FLAGS);
    let mut config = config();
    let mapping = |host: &str| json!({ "hostPort": 80, "containerPort": 80, "protocol": "tcp", "hostIP": host });
    config["runtimeConfig"]["portMappings"] = json!([
        mapping("10.1.2.2"),
        mapping("192.0.2.1"),
        mapping("192.0.2.9")
    ]);
    agent.fake.add_netns("/run/netns/c1");
    agent.cni(CniVerb::Add, "c1", &config).unwrap();
    let ports: Vec<PortView> = agent.get(path::HOSTPORTS);
    let counts: BTreeMap<Option<&str>, Option<u64>> = ports
        .iter()
        .map(|port| (port.port.host_address.as_deref(), port.flows))
        .collect();
    let expected = [("10.1.2.2", 1), ("192.0.2.1", 1), ("192.0.2.9", 0)]
        .map(|(at, flows)| (Some(at), Some(flows)));
    assert_eq!(counts, expected.into());
    assert_eq!(reads.load(Ordering::Relaxed), 0);
    let _flows: FlowsView = agent.get(path::FLOWS);
    assert_eq!(reads.load(Ordering::Relaxed), 1);
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
        assert_eq!(
            (flow.protocol.as_str(), flow.age_seconds),
            ("tcp", Some(50))
        );
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
    Agent::reading(source(table), &FLAGS)
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

/// Returns the sockets of a TCP connection that the pod with the first address of `query` has
/// opened to the one with the second, and of a connected UDP socket of the node.
fn sockets_of_two_pods(query: &SocketQuery) -> SocketTable {
    let mut addresses = query.addresses.iter().filter(|it| it.is_ipv4());
    let at = |address: &IpAddr, port| SocketAddr::new(*address, port);
    let (Some(client), Some(server)) = (addresses.next(), addresses.next()) else {
        return SocketTable::default();
    };
    let traffic = |packets| {
        Some(Traffic {
            packets,
            bytes: 100 * packets,
        })
    };
    let opened = ConnectedSocket {
        protocol: abi::protocol::TCP,
        local: at(client, 50_000),
        peer: at(server, 5432),
        state: SocketState::Established,
        idle: Some(2),
        sent: traffic(9),
        received: traffic(5),
    };
    let of_node = ConnectedSocket {
        protocol: abi::protocol::UDP,
        local: "10.1.2.1:40000".parse().unwrap(),
        peer: at(server, 53),
        state: SocketState::Connected,
        idle: None,
        sent: None,
        received: None,
    };
    let sockets = |connected| NamespaceSockets {
        connected,
        is_truncated: true,
        ..NamespaceSockets::default()
    };
    SocketTable {
        node: sockets(vec![of_node]),
        pods: (query.namespaces.iter())
            .map(|netns| (netns.clone(), sockets(vec![opened])))
            .collect(),
    }
}

#[test]
fn flows_between_pods_have_the_names_of_both_and_are_sorted_and_filtered_as_others() {
    let source = FlowSource::new(|| Ok(two_flows()), |query| Ok(sockets_of_two_pods(query)));
    let agent = Agent::reading(source, &FLAGS);
    agent.add("c1").unwrap();
    let config = json!({ "cniVersion": "1.1.0", "name": "pods", "type": "viaduct" });
    agent.fake.add_netns("/run/netns/c2");
    agent.cni(CniVerb::Add, "c2", &config).unwrap();
    let list = |query: FlowQuery| -> FlowsView { agent.get(&query.to_path()) };
    let all = list(FlowQuery {
        sort: Some(FlowOrder::Bytes),
        ..FlowQuery::default()
    });
    assert_eq!((all.matching, all.truncated_pods), (4, 2), "{all:?}");
    let flow = &all.flows[0];
    assert_eq!(flow.kind, "pod-to-pod");
    assert_eq!(flow.state, "established");
    assert_eq!(flow.container_id.as_deref(), Some("c1"));
    assert_eq!(flow.peer_container_id.as_deref(), Some("c2"));
    assert_eq!(flow.pod, flow.peer_pod);
    assert_eq!(flow.seen, flow.translated);
    assert_eq!((flow.age_seconds, flow.idle_seconds), (None, Some(2)));
    assert_eq!(
        (flow.sent_bytes, flow.answered_packets),
        (Some(900), Some(5))
    );
    // Flows of the table alone are counted in its usage.
    let usage: u64 = all.table.pods.iter().map(|pod| pod.flows).sum();
    assert_eq!(usage, 1);

    let [client, server] = [&flow.seen.source, &flow.seen.destination]
        .map(|end| end.parse::<SocketAddr>().unwrap().ip());
    let kinds = |pod: Option<&str>, peer: Option<IpAddr>, protocol: Option<&str>| -> Vec<String> {
        let view = list(FlowQuery {
            pod: pod.map(str::to_owned),
            peer,
            protocol: protocol.map(str::to_owned),
            sort: Some(FlowOrder::Idle),
            ..FlowQuery::default()
        });
        view.flows.into_iter().map(|flow| flow.kind).collect()
    };
    assert_eq!(kinds(None, None, Some("udp")), ["node-to-pod"]);
    assert_eq!(kinds(Some("c2"), None, None), ["pod-to-pod", "node-to-pod"]);
    assert_eq!(kinds(Some("c2"), Some(client), None), ["pod-to-pod"]);
    assert_eq!(kinds(Some("c1"), Some(server), None), ["pod-to-pod"]);
    assert_eq!(kinds(Some("c1"), Some(client), None), [""; 0]);
    assert_eq!(kinds(None, Some(client), None), ["pod-to-pod"]);
}

#[test]
fn the_flow_table_is_listed_alone_if_sockets_cannot_be_read() {
    let failed = |_: &SocketQuery| {
        Err(ObserveError {
            call: "list the addresses of the node".to_owned(),
            source: std::io::ErrorKind::TimedOut.into(),
        })
    };
    let agent = Agent::reading(FlowSource::new(|| Ok(two_flows()), failed), &FLAGS);
    agent.add("c1").unwrap();
    let view: FlowsView = agent.get(path::FLOWS);
    assert_eq!((view.matching, view.truncated_pods), (2, 1));
}
