//! Connections between two pods and the node, from their sockets.

use abi::{Offloaded, protocol};
use model::{
    Assigned, AttachmentKey, Bandwidth, IfName, InterfaceAddress, Mac, NetnsPath, PortOptions,
};

use super::*;

fn parse<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().unwrap()
}

/// Returns the pod `N` at `10.0.0.N` and `fd00::N`, in slot `N`.
fn pod(number: u32) -> Attachment {
    let assigned = |address: &str| Assigned {
        address: parse::<InterfaceAddress>(address),
        gateway: None,
    };
    Attachment {
        key: AttachmentKey {
            network: parse("net"),
            container_id: parse(&format!("c{number}")),
            ifname: parse("eth0"),
        },
        netns: Netns {
            path: parse::<NetnsPath>(&format!("/run/netns/c{number}")),
            device: 4,
            inode: number.into(),
        },
        pod: None,
        bridge: parse::<IfName>("cbr0"),
        mac: Mac([2, 0, 0, 0, 0, 1]),
        mtu: 1_500,
        addresses: vec![
            assigned(&format!("10.0.0.{number}/24")),
            assigned(&format!("fd00::{number}/64")),
        ],
        routes: Vec::new(),
        port_mappings: Vec::new(),
        standby: BTreeSet::new(),
        bandwidth: Bandwidth::default(),
        masquerade: true,
        hairpin: false,
        port: PortOptions::default(),
        adopted: None,
        slot: number,
        generation: 7,
    }
}

fn socket(protocol: u8, local: &str, peer: &str, packets: u64) -> ConnectedSocket {
    let traffic = |packets| {
        (protocol == protocol::TCP).then_some(Traffic {
            packets,
            bytes: packets * 10,
        })
    };
    ConnectedSocket {
        protocol,
        local: parse(local),
        peer: parse(peer),
        state: match protocol {
            protocol::TCP => SocketState::Established,
            _ => SocketState::Connected,
        },
        idle: (protocol == protocol::TCP).then_some(3),
        sent: traffic(packets),
        received: traffic(packets + 1),
    }
}

fn tcp(local: &str, peer: &str) -> ConnectedSocket {
    socket(protocol::TCP, local, peer, 4)
}

fn sockets(
    connected: impl IntoIterator<Item = ConnectedSocket>,
    listening: &[(u8, u16)],
) -> NamespaceSockets {
    NamespaceSockets {
        connected: connected.into_iter().collect(),
        listening: listening.iter().copied().collect(),
        is_truncated: false,
    }
}

/// Returns the flows of the node and of the pods 2 and 3.
fn flows(node: NamespaceSockets, pods: [NamespaceSockets; 2]) -> Vec<LiveFlow> {
    let attachments = [pod(2), pod(3)];
    let namespaces = attachments.iter().map(|pod| pod.netns.clone());
    let table = SocketTable {
        node,
        pods: namespaces.zip(pods).collect(),
    };
    table.flows(&attachments, &FlowTable::default(), &[])
}

fn ends(flow: &LiveFlow) -> [String; 2] {
    assert_eq!(flow.original, flow.translated);
    [flow.original.source, flow.original.destination].map(|end| end.to_string())
}

#[test]
fn both_sockets_of_a_connection_make_one_flow_from_the_end_that_opened_it() {
    for (client, server) in [
        ("10.0.0.2:40000", "10.0.0.3:50000"),
        ("[fd00::2]:40000", "[fd00::3]:50000"),
    ] {
        let listening = [(protocol::TCP, 50_000)];
        let mut of_client = tcp(client, server);
        of_client.state = SocketState::FinWait2;
        let of_server = socket(protocol::TCP, server, client, 5);
        for (pods, packets) in [
            (
                [sockets([of_client], &[]), sockets([of_server], &listening)],
                [4, 5],
            ),
            // The sockets of one pod are unknown, or it has no more.
            ([sockets([of_client], &[]), sockets([], &listening)], [4, 5]),
            ([sockets([], &[]), sockets([of_server], &listening)], [6, 5]),
        ] {
            let both = flows(NamespaceSockets::default(), pods);
            let [flow] = both.as_slice() else {
                panic!("{both:?}");
            };
            assert_eq!(ends(flow), [client, server]);
            assert_eq!(flow.kind, FlowKind::PodToPod);
            assert_eq!((flow.pod, flow.generation), (2, 7));
            assert_eq!(flow.peer_pod, Some((3, 7)));
            assert_eq!((flow.age, flow.idle), (None, Some(3)));
            let traffic = [flow.sent, flow.replied].map(|it| it.unwrap().packets);
            assert_eq!(traffic, packets);
            let state = if packets == [4, 5] {
                "fin-wait-2"
            } else {
                "established"
            };
            assert_eq!(flow.state.name(), state);
        }
    }
}

#[test]
fn a_connection_without_a_listening_end_is_from_the_higher_port() {
    let [high, low] = ["10.0.0.3:50000", "10.0.0.2:40000"];
    for listening in [&[][..], &[(protocol::TCP, 50_000), (protocol::TCP, 40_000)]] {
        let all = sockets([tcp(high, low)], listening);
        let other = sockets([tcp(low, high)], listening);
        let found = flows(NamespaceSockets::default(), [other, all]);
        assert_eq!(found.iter().map(ends).collect::<Vec<_>>(), [[high, low]]);
    }
}

#[test]
fn connections_with_the_node_are_of_the_pod_in_both_directions() {
    let udp = |local, peer| socket(protocol::UDP, local, peer, 0);
    let node = sockets(
        [
            tcp("10.0.0.1:40000", "10.0.0.2:80"),
            udp("10.0.0.1:40000", "10.0.0.2:53"),
            tcp("10.0.0.1:22", "10.0.0.3:40000"),
        ],
        &[(protocol::TCP, 22)],
    );
    let pods = [
        sockets([], &[(protocol::TCP, 80), (protocol::UDP, 53)]),
        sockets([tcp("10.0.0.3:40000", "10.0.0.1:22")], &[]),
    ];
    let found = flows(node, pods);
    let summary: Vec<_> = found
        .iter()
        .map(|flow| {
            (
                flow.kind.name(),
                flow.protocol,
                flow.pod,
                flow.peer(),
                flow.path,
            )
        })
        .collect();
    let node: IpAddr = parse("10.0.0.1");
    let stack = FlowPath::Stack(0);
    assert_eq!(
        summary,
        [
            ("pod-to-node", protocol::TCP, 3, node, stack),
            ("node-to-pod", protocol::TCP, 2, node, stack),
            ("node-to-pod", protocol::UDP, 2, node, stack),
        ]
    );
    let udp = &found[2];
    assert_eq!(udp.state.name(), "connected");
    assert_eq!((udp.idle, udp.sent, udp.replied), (None, None, None));
}

#[test]
fn connections_of_a_pod_with_itself_and_of_the_node_with_itself_are_not_listed() {
    let mut second = pod(4);
    second.netns = pod(2).netns;
    let table = SocketTable {
        node: sockets([tcp("10.0.0.1:40000", "192.0.2.1:80")], &[]),
        pods: [
            (
                pod(2).netns,
                sockets(
                    [
                        // Two interfaces of one pod, and an address that is no attachment's.
                        tcp("10.0.0.2:40000", "10.0.0.4:80"),
                        tcp("172.16.0.2:40000", "10.0.0.3:80"),
                    ],
                    &[],
                ),
            ),
            (pod(3).netns, sockets([], &[])),
        ]
        .into(),
    };
    let found = table.flows(&[pod(2), pod(3), second], &FlowTable::default(), &[]);
    assert_eq!(found, []);
}

#[test]
fn a_connection_of_the_flow_table_is_not_listed_again() {
    // Pod 2 connects to a hostport of pod 3.
    let pods = [
        sockets([tcp("10.0.0.2:40000", "192.0.2.1:8080")], &[]),
        sockets([tcp("10.0.0.3:80", "10.0.0.2:40000")], &[]),
    ];
    let attachments = [pod(2), pod(3)];
    let namespaces = attachments.iter().map(|pod| pod.netns.clone());
    let table = SocketTable {
        node: NamespaceSockets::default(),
        pods: namespaces.zip(pods).collect(),
    };
    let at = |source: &str, destination: &str| FlowEndpoints {
        source: parse(source),
        destination: parse(destination),
    };
    let without = table.flows(&attachments, &FlowTable::default(), &[]);
    assert_eq!(without.len(), 2);
    let published = LiveFlow {
        kind: FlowKind::Published,
        original: at("10.0.0.2:40000", "192.0.2.1:8080"),
        translated: at("10.0.0.2:40000", "10.0.0.3:80"),
        ..without[0]
    };
    assert_eq!(
        table.flows(&attachments, &FlowTable::default(), &[published]),
        []
    );
    let of_udp = LiveFlow {
        protocol: protocol::UDP,
        ..published
    };
    assert_eq!(
        table.flows(&attachments, &FlowTable::default(), &[of_udp]),
        without
    );
}

#[test]
fn the_path_between_pods_is_the_decision_about_either_direction() {
    let pods = [
        sockets([tcp("10.0.0.2:40000", "10.0.0.3:80")], &[]),
        sockets([], &[]),
    ];
    let attachments = [pod(2), pod(3)];
    let namespaces = attachments.iter().map(|pod| pod.netns.clone());
    let sockets = SocketTable {
        node: NamespaceSockets::default(),
        pods: namespaces.zip(pods).collect(),
    };
    let path = |table: &FlowTable| sockets.flows(&attachments, table, &[])[0].path;
    let ends = FlowEndpoints {
        source: parse("10.0.0.2:40000"),
        destination: parse("10.0.0.3:80"),
    };
    let tuple = ends.tuple(protocol::TCP);
    for tuple in [tuple, tuple.reverse()] {
        let accepted = Offloaded {
            decision: Offloaded::ACCEPTED,
            expires: 1,
            ..Offloaded::default()
        };
        let mut table = FlowTable {
            offloaded: [(tuple, accepted)].into(),
            ..FlowTable::default()
        };
        assert_eq!(path(&table), FlowPath::Offloaded);
        table.now = 1;
        assert_eq!(path(&table), FlowPath::Stack(0));
        table.bypasses = true;
        assert_eq!(path(&table), FlowPath::Bypass);
    }
}

#[test]
fn the_namespace_of_an_interface_that_the_runtime_moves_is_not_read() {
    let mut moved = pod(3);
    moved.netns.path = NetnsPath::of_node();
    let query = SocketQuery::of(&[pod(2), moved]);
    assert_eq!(query.addresses.len(), 4);
    assert_eq!(query.namespaces, [pod(2).netns].into());
}
