//! Packets that enter the node: hostports from outside, pods addressed directly, spoofed sources.

use abi::{
    Address, Direction, DropReason, EndpointFlags, FlowFlags, Hostport, HostportKey, Port, Seen,
    Tuple, protocol,
};
use anyhow::Result;
use verdict::Socket;
use verdict::simulator::Place::{UplinkIn, UplinkOut};
use verdict::simulator::example::{self, FAMILIES, HOSTPORT, OWN_HOSTPORT, POD_PORT};
use verdict::simulator::frame::{Body, Frame, flag};

use crate::bench::{Bench, MOVED, on_bench, on_machine};

fn tcp(source: u16, destination: u16, flags: u8) -> Body {
    Body::Tcp(source, destination, flags, b"data".to_vec())
}

fn udp(source: u16, destination: u16) -> Body {
    Body::Udp(source, destination, b"query".to_vec())
}

#[test]
fn a_hostport_leads_to_the_pod_and_the_client_keeps_its_address() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, node) = (example::pod()[family], example::node()[family]);
            let client = example::remote()[family];
            let syn = Frame::new(client, node, tcp(50_123, HOSTPORT, flag::SYN));
            let to_pod = syn.becoming(client, pod, tcp(50_123, POD_PORT, flag::SYN));
            bench.becomes(UplinkIn, &syn, &to_pod)?;
            let both = flag::SYN | flag::ACK;
            let answer = Frame::new(pod, client, tcp(POD_PORT, 50_123, both));
            let wire = answer.becoming(node, client, tcp(HOSTPORT, 50_123, both));
            bench.becomes(UplinkOut, &answer, &wire)?;
            let query = Frame::new(client, node, udp(50_123, HOSTPORT));
            let to_pod = query.becoming(client, pod, udp(50_123, POD_PORT));
            bench.becomes(UplinkIn, &query, &to_pod)?;
            let answer = Frame::new(pod, client, udp(POD_PORT, 50_123));
            let wire = answer.becoming(node, client, udp(HOSTPORT, 50_123));
            bench.becomes(UplinkOut, &answer, &wire)?;
            let port = example::SCTP_HOSTPORT;
            let init = Frame::new(client, node, Body::Sctp(50_123, port, b"init".to_vec()));
            let to_pod = init.becoming(client, pod, init.body.clone());
            bench.becomes(UplinkIn, &init, &to_pod)?;
        }
        let flows = bench.flows()?;
        assert_eq!(flows.len(), 12);
        assert!(flows.values().all(|flow| flow.flags & FlowFlags::DNAT != 0));
        let syn_seen = flows
            .iter()
            .filter(|(key, flow)| key.protocol == protocol::TCP && flow.seen & Seen::SYN != 0);
        assert_eq!(syn_seen.count(), 4);
        Ok(())
    })
}

/// behaviour F32
#[test]
fn a_hostport_of_an_exact_address_wins_over_the_wildcard() -> Result<()> {
    on_bench(|bench| {
        bench.change(|world| {
            let key =
                HostportKey::wildcard(abi::Family::V4, Port::new(OWN_HOSTPORT), protocol::TCP);
            let first = HostportKey::wildcard(abi::Family::V4, Port::new(HOSTPORT), protocol::TCP);
            let hostport = world.hostports[&first];
            world.hostports.insert(key, hostport);
            world.locals.insert(Address::v4([192, 0, 2, 200]));
        })?;
        let client = example::remote()[0];
        let cases = [
            (example::node()[0], example::other_pod()[0]),
            (Address::v4([192, 0, 2, 200]), example::pod()[0]),
        ];
        for (node, pod) in cases {
            let syn = Frame::new(client, node, tcp(50_123, OWN_HOSTPORT, flag::SYN));
            let to_pod = syn.becoming(client, pod, tcp(50_123, POD_PORT, flag::SYN));
            bench.becomes(UplinkIn, &syn, &to_pod)?;
        }
        Ok(())
    })
}

/// behaviour F31: a port range is expanded to single ports, which adds no cost per packet.
#[test]
fn a_hostport_reaches_its_pod_beside_ten_thousand_others() -> Result<()> {
    on_bench(|bench| {
        bench.change(|world| {
            let any = HostportKey::wildcard(abi::Family::V4, Port::new(HOSTPORT), protocol::TCP);
            let elsewhere = Hostport {
                address: example::other_pod()[0],
                ..world.hostports[&any]
            };
            let keys = (20_000..30_000)
                .map(Port::new)
                .map(|port| HostportKey::wildcard(abi::Family::V4, port, protocol::TCP));
            world.hostports.extend(keys.map(|key| (key, elsewhere)));
        })?;
        let (client, node) = (example::remote()[0], example::node()[0]);
        let syn = Frame::new(client, node, tcp(50_123, HOSTPORT, flag::SYN));
        let to_pod = syn.becoming(client, example::pod()[0], tcp(50_123, POD_PORT, flag::SYN));
        bench.becomes(UplinkIn, &syn, &to_pod)
    })
}

/// behaviours N1, F40
#[test]
fn a_wildcard_hostport_is_only_on_the_nodes_own_addresses() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let client = example::remote()[family];
            let elsewhere = example::friend()[family];
            let syn = Frame::new(client, elsewhere, tcp(50_123, HOSTPORT, flag::SYN));
            bench.passes(UplinkIn, &syn)?;
        }
        assert!(bench.flows()?.is_empty());
        Ok(())
    })
}

#[test]
fn a_tcp_flow_to_a_hostport_survives_the_loss_of_the_flow_table() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, node) = (example::pod()[family], example::node()[family]);
            let client = example::remote()[family];
            let data = Frame::new(client, node, tcp(50_123, HOSTPORT, flag::ACK));
            let to_pod = data.becoming(client, pod, tcp(50_123, POD_PORT, flag::ACK));
            bench.becomes(UplinkIn, &data, &to_pod)?;
        }
        Ok(())
    })
}

#[test]
fn a_connection_of_the_node_from_a_port_that_is_a_hostport_is_left_alone() -> Result<()> {
    on_machine(|machine, bench| {
        machine.call("ip address add 192.0.2.1/32 dev lo")?;
        let own = example::node()[0];
        let socket = std::net::UdpSocket::bind(("192.0.2.1", HOSTPORT))?;
        socket.connect("192.0.2.1:5300")?;
        let listener = std::net::TcpListener::bind("192.0.2.1:5301")?;
        let connected = connect_from(HOSTPORT, listener.local_addr()?)?;
        let incoming = |port: u16, number: u8| Tuple {
            source: own,
            destination: own,
            source_port: Port::new(port),
            destination_port: Port::new(HOSTPORT),
            protocol: number,
            reserved: [0; 3],
        };
        bench.change(|world| {
            world.sockets.extend([
                (incoming(5_300, protocol::UDP), Socket::Connected),
                (incoming(5_301, protocol::TCP), Socket::Connected),
            ]);
        })?;
        bench.passes(UplinkIn, &Frame::new(own, own, udp(5_300, HOSTPORT)))?;
        let data = tcp(5_301, HOSTPORT, flag::ACK);
        bench.passes(UplinkIn, &Frame::new(own, own, data))?;
        assert!(bench.flows()?.is_empty());
        // Other clients still reach the pod, but not by the loopback address, which is on no wire.
        let loopback = Address::v4([127, 0, 0, 1]);
        let query = Frame::new(example::remote()[0], loopback, udp(5_300, HOSTPORT));
        bench.drops(UplinkIn, &query, DropReason::Martian)?;
        let query = Frame::new(
            example::remote()[0],
            example::node()[0],
            udp(5_300, HOSTPORT),
        );
        let to_pod = query.becoming(query.source, example::pod()[0], udp(5_300, POD_PORT));
        bench.becomes(UplinkIn, &query, &to_pod)?;
        drop((socket, listener, connected));
        Ok(())
    })
}

/// Opens a TCP connection from a given source port, which the standard library does not support.
fn connect_from(port: u16, to: std::net::SocketAddr) -> Result<std::os::fd::OwnedFd> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
    use std::os::fd::AsRawFd as _;
    let end = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    bind(end.as_raw_fd(), &SockaddrIn::new(192, 0, 2, 1, port))?;
    connect(end.as_raw_fd(), &SockaddrIn::new(192, 0, 2, 1, to.port()))?;
    Ok(end)
}

#[test]
fn a_listening_socket_does_not_block_a_hostport() -> Result<()> {
    on_machine(|_, bench| {
        // The agent reserves a port by such a socket.
        let holder = std::net::TcpListener::bind(("0.0.0.0", HOSTPORT))?;
        let (client, node, pod) = (example::remote()[0], example::node()[0], example::pod()[0]);
        for flags in [flag::SYN, flag::ACK] {
            let packet = Frame::new(client, node, tcp(50_123, HOSTPORT, flags));
            let to_pod = packet.becoming(client, pod, tcp(50_123, POD_PORT, flags));
            bench.becomes(UplinkIn, &packet, &to_pod)?;
        }
        drop(holder);
        Ok(())
    })
}

#[test]
fn packets_to_a_hostport_of_a_deleted_pod_are_dropped() -> Result<()> {
    on_bench(|bench| {
        bench.change(|world| world.pods[example::POD as usize].generation += 1)?;
        for family in FAMILIES {
            let (client, node) = (example::remote()[family], example::node()[family]);
            let syn = Frame::new(client, node, tcp(50_123, HOSTPORT, flag::SYN));
            bench.drops(UplinkIn, &syn, DropReason::StaleGeneration)?;
        }
        let ingress = bench.counters(example::POD, Direction::Ingress)?;
        assert_eq!(ingress.dropped_packets, 2);
        Ok(())
    })
}

#[test]
fn a_client_reaches_the_next_pod_when_the_first_is_replaced() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (client, node) = (example::remote()[family], example::node()[family]);
            let query = Frame::new(client, node, udp(50_123, HOSTPORT));
            let first = query.becoming(client, example::pod()[family], udp(50_123, POD_PORT));
            bench.becomes(UplinkIn, &query, &first)?;
        }
        bench.change(|world| {
            world.pods[example::POD as usize].generation += 1;
            for hostport in world.hostports.values_mut() {
                let family = usize::from(!hostport.address.is_v4());
                hostport.address = example::other_pod()[family];
                hostport.pod = example::OTHER_POD;
                hostport.generation = 40 + example::OTHER_POD;
            }
        })?;
        for family in FAMILIES {
            let (client, node) = (example::remote()[family], example::node()[family]);
            let query = Frame::new(client, node, udp(50_123, HOSTPORT));
            let pod = example::other_pod()[family];
            let second = query.becoming(client, pod, udp(50_123, POD_PORT));
            bench.becomes(UplinkIn, &query, &second)?;
        }
        assert_eq!(bench.flows()?.len(), 4);
        Ok(())
    })
}

/// behaviour E4
#[test]
fn a_client_port_reaches_a_pod_port_by_two_node_addresses_with_distinct_ports() -> Result<()> {
    on_bench(|bench| {
        let second = Address::v4([192, 0, 2, 200]);
        bench.change(|world| {
            world.locals.insert(second);
        })?;
        let (client, node, pod) = (example::remote()[0], example::node()[0], example::pod()[0]);
        let query = Frame::new(client, node, udp(50_123, HOSTPORT));
        let to_pod = query.becoming(client, pod, udp(50_123, POD_PORT));
        bench.becomes(UplinkIn, &query, &to_pod)?;
        let again = Frame::new(client, second, udp(50_123, HOSTPORT));
        let (_, packet) = bench.run(UplinkIn, &again.bytes())?;
        let port = u16::from_be_bytes([packet[34], packet[35]]);
        assert_ne!(port, 50_123);
        assert_eq!(
            packet,
            again.becoming(client, pod, udp(port, POD_PORT)).bytes()
        );
        for (from, to) in [(node, 50_123), (second, port)] {
            let reply = Frame::new(pod, client, udp(POD_PORT, to));
            let expected = reply.becoming(from, client, udp(HOSTPORT, 50_123));
            bench.becomes(UplinkOut, &reply, &expected)?;
        }
        Ok(())
    })
}

#[test]
fn replies_to_a_client_that_came_by_the_pods_own_address_are_not_masqueraded() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, client) = (example::pod()[family], example::remote()[family]);
            let exchanges = [
                (
                    tcp(50_123, 80, flag::SYN),
                    tcp(80, 50_123, flag::SYN | flag::ACK),
                ),
                (udp(50_123, 53), udp(53, 50_123)),
                (Body::echo_request(&pod, 9), Body::echo_reply(&pod, 9)),
            ];
            for (request, reply) in exchanges {
                bench.passes(UplinkIn, &Frame::new(client, pod, request))?;
                bench.passes(UplinkOut, &Frame::new(pod, client, reply))?;
            }
        }
        let flows = bench.flows()?;
        assert_eq!(flows.len(), 12);
        assert!(flows.iter().all(|(key, flow)| *key == flow.translated));
        assert!(flows.values().all(|flow| flow.packets == 1));
        Ok(())
    })
}

#[test]
fn peers_excluded_from_masquerade_need_a_flow_only_with_a_published_pod() -> Result<()> {
    on_bench(|bench| {
        let exchange = |bench: &mut Bench| -> Result<usize> {
            for family in FAMILIES {
                let (pod, friend) = (example::pod()[family], example::friend()[family]);
                bench.passes(UplinkIn, &Frame::new(friend, pod, udp(50_123, 53)))?;
                bench.passes(UplinkOut, &Frame::new(pod, friend, udp(53, 50_123)))?;
            }
            Ok(bench.flows()?.len())
        };
        bench.change(|world| {
            for endpoint in world.endpoints.values_mut() {
                endpoint.flags &= !EndpointFlags::PUBLISHED;
            }
        })?;
        assert_eq!(exchange(bench)?, 0);
        bench.change(|world| {
            for endpoint in world.endpoints.values_mut() {
                endpoint.flags |= EndpointFlags::PUBLISHED;
            }
        })?;
        assert_eq!(exchange(bench)?, 4);
        Ok(())
    })
}

#[test]
fn packets_from_outside_with_a_pods_source_are_dropped() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            for source in [example::pod(), example::no_pod()] {
                let frame = Frame::new(
                    source[family],
                    example::node()[family],
                    tcp(50_123, HOSTPORT, flag::SYN),
                );
                bench.drops(UplinkIn, &frame, DropReason::SpoofedFromOutside)?;
            }
        }
        Ok(())
    })
}

#[test]
fn the_nodes_own_traffic_enters_unchanged() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (node, remote) = (example::node()[family], example::remote()[family]);
            bench.passes(
                UplinkIn,
                &Frame::new(remote, node, tcp(443, 40_000, flag::ACK)),
            )?;
            bench.passes(
                UplinkIn,
                &Frame::new(remote, node, Body::echo_request(&node, 3)),
            )?;
            bench.passes(
                UplinkIn,
                &Frame::new(remote, node, Body::Other(47, vec![0; 8])),
            )?;
        }
        assert!(bench.flows()?.is_empty());
        Ok(())
    })
}

#[test]
fn a_client_that_uses_its_port_again_keeps_its_mapping() -> Result<()> {
    on_bench(|bench| {
        let (pod, node, remote) = (example::pod()[0], example::node()[0], example::remote()[0]);
        let other = Frame::new(example::other_pod()[0], remote, tcp(40_000, 443, flag::SYN));
        let wire = other.becoming(node, remote, tcp(40_000, 443, flag::SYN));
        bench.becomes(UplinkOut, &other, &wire)?;
        for flags in [flag::SYN, flag::FIN | flag::ACK, flag::SYN] {
            let out = Frame::new(pod, remote, tcp(40_000, 443, flags));
            let wire = out.becoming(node, remote, tcp(MOVED, 443, flags));
            bench.becomes(UplinkOut, &out, &wire)?;
            if flags != flag::SYN {
                let back = Frame::new(remote, node, tcp(443, MOVED, flag::RST));
                let to_pod = back.becoming(remote, pod, tcp(443, 40_000, flag::RST));
                bench.becomes(UplinkIn, &back, &to_pod)?;
            }
        }
        let closing = Seen::FIN | Seen::RST;
        assert!(bench.flows()?.values().all(|flow| flow.seen & closing == 0));
        Ok(())
    })
}
