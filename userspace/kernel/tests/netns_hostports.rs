//! Hostports that pods dial: real pods, real sockets, both families.

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
fn pods_of_any_network_reach_a_hostport_as_themselves() {
    on_a_node(|node| {
        let mut planned = Planned::new(node, None);
        let (server, near, far) = (
            server(&node.add_netns("server")),
            attachment(&node.add_netns("near"), 3),
            stranger(&node.add_netns("far")),
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
                    for ask in [ask_tcp, ask_udp, ask_connected_udp] {
                        let seen = in_pod(&client.netns, || ask(to)).unwrap();
                        assert_eq!(seen, expected, "{to}");
                    }
                }
            }
        }
        let measured = planned.host.measure().unwrap();
        assert!(measured.drops.is_empty(), "{:?}", measured.drops);
        let counters = measured.pods[&server.slot];
        assert!(counters.ingress.packets > 24 && counters.egress.packets > 24);
    });
}

#[test]
fn streams_arrive_whole() {
    const LENGTH: usize = 64 << 20;
    on_a_node(|node| {
        let mut planned = Planned::new(node, None);
        let (server, client) = (
            server(&node.add_netns("server")),
            stranger(&node.add_netns("client")),
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
fn a_pod_that_dials_itself_sees_its_gateway() {
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
                for ask in [ask_tcp, ask_udp, ask_connected_udp] {
                    assert_eq!(in_pod(&server.netns, || ask(to)).unwrap(), expected);
                }
            }
        }
    });
}

#[test]
fn a_port_that_nobody_serves_is_refused_at_once() {
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
                for ask in [ask_tcp, ask_connected_udp] {
                    let error = in_pod(&pod.netns, || ask(to)).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{to}");
                }
            }
        }
    });
}

#[test]
fn datagrams_in_fragments_arrive_whole() {
    on_a_node(|node| {
        let mut planned = Planned::new(node, None);
        let (server, client) = (
            server(&node.add_netns("server")),
            stranger(&node.add_netns("client")),
        );
        planned.add(&server);
        planned.add(&client);
        let _serving = Server::start(&server.netns, POD_PORT);
        for pod in [&client, &server] {
            for family in [0, 1] {
                let to = at(NODE[family], HOSTPORT);
                let ask = || Datagrams::new(to)?.ask(to, 4_000);
                assert_eq!(in_pod(&pod.netns, ask).unwrap().server, to);
            }
        }
    });
}

/// The next owner of the hostport: another pod, in another slot.
fn next(node: &Node, name: &str) -> Attachment {
    let mut next = attachment(&node.add_netns(name), 5);
    next.port_mappings = vec![mapping(HOSTPORT, Protocol::Udp, None)];
    next.generation = 2;
    next
}

#[test]
fn a_client_that_keeps_its_port_reaches_the_next_owner_at_once() {
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
                socket.ask(to, 5).unwrap();
            });
        }
        let sockets = [0, 1].map(|family| {
            let to = at(NODE[family], HOSTPORT);
            let socket = in_pod(&client.netns, || Datagrams::new(to).unwrap());
            socket.ask(to, 5).unwrap();
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
            assert_eq!(socket.ask(to, 5).unwrap().server, to);
        }
    });
}

#[test]
fn one_port_of_a_client_reaches_a_server_by_several_ways_at_a_time() {
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
                let seen = socket.ask(to, 5).unwrap();
                assert_eq!(seen.client, address_of(&client, family));
                assert_eq!(seen.server, to, "each answer comes from where it was asked");
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
            let error = in_pod(&client.netns, || ask_tcp(to)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        }
    });
}
