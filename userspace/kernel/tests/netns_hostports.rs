//! Hostports that pods connect to: real pods, real sockets, both address families.

mod support;

use std::io::ErrorKind;
use std::net::SocketAddr;

use kernel::Kernel as _;
use model::{Attachment, Protocol};
use support::hostports::*;
use support::traffic::*;
use support::*;

fn dialled(family: usize) -> [SocketAddr; 2] {
    [at(NODE[family], HOSTPORT), at(GATEWAY[family], HOSTPORT)]
}

#[test]
fn pods_of_any_network_reach_a_hostport_with_their_own_address() {
    on_a_node(|node| {
        let mut planned = Planned::new(node, None);
        let (server, near, far) = (
            server(&node.add_netns("server")),
            attachment(&node.add_netns("near"), 3),
            pod_of_other_network(&node.add_netns("far")),
        );
        for pod in [&server, &near, &far] {
            planned.add(pod);
        }
        let _serving = Server::start(&server.netns, POD_PORT);
        for client in [&near, &far] {
            for family in [0, 1] {
                for to in dialled(family) {
                    let expected = Seen {
                        client: address_of(client, family),
                        server: to,
                    };
                    for request in [request_tcp, request_udp, request_connected_udp] {
                        let seen = in_pod(&client.netns, || request(to)).unwrap();
                        assert_eq!(seen, expected, "{to}");
                    }
                }
            }
        }
        let drops = planned.drops();
        assert!(drops.is_empty(), "{drops:?}");
        let counters = planned.host.measure().unwrap().pods[&server.slot];
        assert!(counters.ingress.packets > 24 && counters.egress.packets > 24);
    });
}

#[test]
fn a_long_tcp_stream_through_a_hostport_arrives_completely() {
    const LENGTH: usize = 64 << 20;
    on_a_node(|node| {
        let mut planned = Planned::new(node, None);
        let (server, client) = (
            server(&node.add_netns("server")),
            pod_of_other_network(&node.add_netns("client")),
        );
        planned.add(&server);
        planned.add(&client);
        for pod in [&client, &server] {
            for family in [0, 1] {
                let to = at(NODE[family], HOSTPORT);
                let got = stream(&server.netns, POD_PORT, &pod.netns, to, LENGTH);
                assert_eq!(got, LENGTH);
            }
        }
    });
}

#[test]
fn a_pod_that_connects_to_its_own_hostport_sees_the_gateway_address() {
    on_a_node(|node| {
        let mut planned = Planned::new(node, None);
        let server = server(&node.add_netns("server"));
        planned.add(&server);
        let _serving = Server::start(&server.netns, POD_PORT);
        for family in [0, 1] {
            for to in dialled(family) {
                let expected = Seen {
                    client: parse(GATEWAY[family]),
                    server: to,
                };
                for request in [request_tcp, request_udp, request_connected_udp] {
                    assert_eq!(in_pod(&server.netns, || request(to)).unwrap(), expected);
                }
            }
        }
    });
}

#[test]
fn a_hostport_without_a_server_is_refused_at_once() {
    on_a_node(|node| {
        let mut planned = Planned::new(node, None);
        let (server, client) = (
            server(&node.add_netns("server")),
            attachment(&node.add_netns("client"), 3),
        );
        planned.add(&server);
        planned.add(&client);
        for pod in [&client, &server] {
            for family in [0, 1] {
                let to = at(NODE[family], HOSTPORT);
                for request in [request_tcp, request_connected_udp] {
                    let error = in_pod(&pod.netns, || request(to)).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{to}");
                }
            }
        }
    });
}

#[test]
fn fragmented_datagrams_through_a_hostport_arrive_completely() {
    on_a_node(|node| {
        let mut planned = Planned::new(node, None);
        let (server, client) = (
            server(&node.add_netns("server")),
            pod_of_other_network(&node.add_netns("client")),
        );
        planned.add(&server);
        planned.add(&client);
        let _serving = Server::start(&server.netns, POD_PORT);
        for pod in [&client, &server] {
            for family in [0, 1] {
                let to = at(NODE[family], HOSTPORT);
                let request = || Datagrams::new(to)?.request(to, 4_000);
                assert_eq!(in_pod(&pod.netns, request).unwrap().server, to);
            }
        }
    });
}

/// Makes the next owner of the hostport: another pod, in another slot.
fn next(node: &Node, name: &str) -> Attachment {
    let mut next = attachment(&node.add_netns(name), 5);
    next.port_mappings = vec![mapping(HOSTPORT, Protocol::Udp, None)];
    next.generation = 2;
    next
}

#[test]
fn a_udp_client_that_keeps_its_port_reaches_the_next_hostport_owner() {
    on_a_node(|node| {
        let mut planned = Planned::new(node, None);
        let (server, client) = (
            server(&node.add_netns("server")),
            attachment(&node.add_netns("client"), 3),
        );
        planned.add(&server);
        planned.add(&client);
        let first = Server::start(&server.netns, POD_PORT);
        for family in [0, 1] {
            let to = at(NODE[family], HOSTPORT);
            in_pod(&client.netns, || {
                let socket = Datagrams::new(to).unwrap();
                socket.request(to, 5).unwrap();
            });
        }
        let sockets = [0, 1].map(|family| {
            let to = at(NODE[family], HOSTPORT);
            let socket = in_pod(&client.netns, || Datagrams::new(to).unwrap());
            socket.request(to, 5).unwrap();
            (to, socket)
        });
        drop(first);
        let mut gone = server.clone();
        gone.generation = 7;
        gone.port_mappings.clear();
        planned.write(&gone);
        let next = next(node, "next");
        planned.add(&next);
        let _second = Server::start(&next.netns, POD_PORT);
        for (to, socket) in sockets {
            assert_eq!(socket.request(to, 5).unwrap().server, to);
        }
    });
}

#[test]
fn one_client_port_reaches_a_server_by_several_addresses_at_once() {
    on_a_node(|node| {
        let mut planned = Planned::new(node, None);
        let (server, client) = (
            server(&node.add_netns("server")),
            attachment(&node.add_netns("client"), 3),
        );
        planned.add(&server);
        planned.add(&client);
        let _serving = Server::start(&server.netns, POD_PORT);
        for family in [0, 1] {
            let [first, second] = dialled(family);
            let own = SocketAddr::new(address_of(&server, family), POD_PORT);
            let socket = in_pod(&client.netns, || Datagrams::new(first).unwrap());
            for to in [first, second, own, first, own, second] {
                let seen = socket.request(to, 5).unwrap();
                assert_eq!(seen.client, address_of(&client, family));
                assert_eq!(
                    seen.server, to,
                    "the answer comes from the address that the request was sent to"
                );
            }
        }
    });
}

#[test]
fn a_pod_does_not_reach_hostports_by_its_own_loopback() {
    on_a_node(|node| {
        let mut planned = Planned::new(node, None);
        let (server, client) = (
            server(&node.add_netns("server")),
            attachment(&node.add_netns("client"), 3),
        );
        planned.add(&server);
        planned.add(&client);
        let _serving = Server::start(&server.netns, POD_PORT);
        for to in [at("127.0.0.1", HOSTPORT), at("::1", HOSTPORT)] {
            let error = in_pod(&client.netns, || request_tcp(to)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        }
    });
}
