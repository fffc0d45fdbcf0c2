//! Masquerade: packets of pods leave with the uplink's address, all other packets unchanged.

use abi::{Address, Direction, DropReason, Flow, FlowFlags, HostportKey, Port, Tuple, protocol};
use anyhow::Result;
use verdict::Socket;
use verdict::simulator::Place::{UplinkIn, UplinkOut};
use verdict::simulator::example::{self, FAMILIES};
use verdict::simulator::frame::{Body, Frame, flag};

use crate::bench::{Bench, MOVED, on_bench, on_machine};
use crate::expect::on_small_bench;

fn tcp(source: u16, destination: u16) -> Body {
    Body::Tcp(source, destination, flag::SYN, b"data".to_vec())
}

fn udp(source: u16, destination: u16) -> Body {
    Body::Udp(source, destination, b"odd".to_vec())
}

#[test]
fn a_pods_flow_gets_the_uplinks_address_and_keeps_its_port() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, node) = (example::pod()[family], example::node()[family]);
            let remote = example::remote()[family];
            let bodies = [
                (tcp(40_000, 443), tcp(443, 40_000)),
                (udp(40_000, 53), udp(53, 40_000)),
                (Body::echo_request(&pod, 77), Body::echo_reply(&pod, 77)),
                (
                    Body::Other(47, b"gre".to_vec()),
                    Body::Other(47, b"gre".to_vec()),
                ),
                (
                    Body::Sctp(40_000, 7, b"init".to_vec()),
                    Body::Sctp(7, 40_000, b"init".to_vec()),
                ),
            ];
            for (request, reply) in bodies {
                let out = Frame::new(pod, remote, request.clone());
                let wire = out.becoming(node, remote, request);
                bench.becomes(UplinkOut, &out, &wire)?;
                bench.becomes(UplinkOut, &out, &wire)?;
                let back = Frame::new(remote, node, reply.clone());
                bench.becomes(UplinkIn, &back, &back.becoming(remote, pod, reply))?;
            }
        }
        let flows = bench.flows()?;
        assert_eq!(flows.len(), 20);
        for (key, flow) in &flows {
            let original = flow.flags & FlowFlags::ORIGINAL != 0;
            assert_eq!(flow.packets, if original { 2 } else { 1 });
            assert_eq!(flows[&flow.translated.reverse()].translated, key.reverse());
        }
        assert_eq!(
            bench.counters(example::POD, Direction::Egress)?.new_flows,
            10
        );
        Ok(())
    })
}

#[test]
fn a_udp_checksum_of_zero_stays_zero_and_one_that_becomes_zero_is_sent_as_ones() -> Result<()> {
    on_bench(|bench| {
        let (pod, node) = (example::pod()[0], example::node()[0]);
        let remote = example::remote()[0];
        let body = Body::UdpUnchecked(40_000, 53, b"x".to_vec());
        let out = Frame::new(pod, remote, body.clone());
        bench.becomes(UplinkOut, &out, &out.becoming(node, remote, body))?;
        // One payload makes the checksum zero after the translation.
        let with = |word: u16| Body::Udp(40_001, 53, word.to_be_bytes().to_vec());
        let sum = |word| {
            let bytes = Frame::new(node, remote, with(word)).bytes();
            u16::from_be_bytes([bytes[40], bytes[41]])
        };
        let word = (0..=u16::MAX)
            .find(|word| sum(*word) == 0xffff)
            .expect("one payload of all has this sum");
        let out = Frame::new(pod, remote, with(word));
        bench.becomes(UplinkOut, &out, &out.becoming(node, remote, with(word)))
    })
}

#[test]
fn packets_excluded_from_masquerade_leave_unchanged() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let pod = example::pod()[family];
            let remote = example::remote()[family];
            for destination in [example::friend()[family], example::node()[family]] {
                bench.passes(UplinkOut, &Frame::new(pod, destination, tcp(40_000, 443)))?;
            }
            let reply = Body::echo_reply(&pod, 1);
            bench.drops(
                UplinkOut,
                &Frame::new(pod, remote, reply),
                DropReason::NoFlow,
            )?;
            let other = example::friend()[family];
            bench.passes(UplinkOut, &Frame::new(other, remote, tcp(40_000, 443)))?;
            let own = example::node()[family];
            bench.passes(UplinkOut, &Frame::new(own, remote, tcp(40_000, 443)))?;
        }
        let pod = example::pod();
        let group = Address::v4([239, 1, 2, 3]);
        bench.passes(UplinkOut, &Frame::new(pod[0], group, udp(5_353, 5_353)))?;
        let all = Address::v4([255; 4]);
        bench.passes(UplinkOut, &Frame::new(pod[0], all, udp(68, 67)))?;
        // Packets of the node without a socket reserve their port.
        let flows = bench.flows()?;
        assert_eq!(flows.len(), 4);
        let is_nodes = |flow: &Flow| flow.pod == 0 && flow.flags & FlowFlags::NODE != 0;
        assert!(
            flows
                .iter()
                .all(|(key, flow)| is_nodes(flow) && *key == flow.translated)
        );
        Ok(())
    })
}

#[test]
fn a_family_without_the_masquerade_flag_is_not_masqueraded() -> Result<()> {
    on_bench(|bench| {
        bench.change(|world| {
            for endpoint in world.endpoints.values_mut() {
                endpoint.flags &= !abi::EndpointFlags::MASQUERADE_V6;
            }
        })?;
        let (pod, remote) = (example::pod(), example::remote());
        bench.passes(UplinkOut, &Frame::new(pod[1], remote[1], tcp(40_000, 443)))?;
        let out = Frame::new(pod[0], remote[0], tcp(40_000, 443));
        let wire = out.becoming(example::node()[0], remote[0], tcp(40_000, 443));
        bench.becomes(UplinkOut, &out, &wire)
    })
}

#[test]
fn two_pods_with_the_same_port_to_the_same_peer_get_different_ports() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (node, remote) = (example::node()[family], example::remote()[family]);
            let other = example::other_pod()[family];
            let first = Frame::new(example::pod()[family], remote, udp(40_000, 53));
            bench.becomes(
                UplinkOut,
                &first,
                &first.becoming(node, remote, udp(40_000, 53)),
            )?;
            let second = Frame::new(other, remote, udp(40_000, 53));
            bench.becomes(
                UplinkOut,
                &second,
                &second.becoming(node, remote, udp(MOVED, 53)),
            )?;
            let reply = Frame::new(remote, node, udp(53, MOVED));
            bench.becomes(
                UplinkIn,
                &reply,
                &reply.becoming(remote, other, udp(53, 40_000)),
            )?;
            // No port is left for a third flow: the range has one port.
            let third = Frame::new(other, remote, udp(MOVED, 53));
            bench.drops(UplinkOut, &third, DropReason::NoPort)?;
        }
        bench.flows()?;
        Ok(())
    })
}

#[test]
fn protocols_without_ports_cannot_be_shared_by_two_pods() -> Result<()> {
    on_bench(|bench| {
        let (node, remote) = (example::node()[0], example::remote()[0]);
        let gre = Body::Other(47, b"gre".to_vec());
        let first = Frame::new(example::pod()[0], remote, gre.clone());
        bench.becomes(
            UplinkOut,
            &first,
            &first.becoming(node, remote, gre.clone()),
        )?;
        let second = Frame::new(example::other_pod()[0], remote, gre);
        bench.drops(UplinkOut, &second, DropReason::NatClash)?;
        let sctp = Body::Sctp(4_000, 5_000, b"init".to_vec());
        let first = Frame::new(example::pod()[0], remote, sctp.clone());
        bench.becomes(
            UplinkOut,
            &first,
            &first.becoming(node, remote, sctp.clone()),
        )?;
        let second = Frame::new(example::other_pod()[0], remote, sctp);
        bench.drops(UplinkOut, &second, DropReason::NatClash)
    })
}

/// behaviour E1
#[test]
fn a_hostport_is_not_used_as_a_masquerade_port() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, node) = (example::pod()[family], example::node()[family]);
            let remote = example::remote()[family];
            let out = Frame::new(pod, remote, tcp(example::HOSTPORT, 443));
            bench.becomes(
                UplinkOut,
                &out,
                &out.becoming(node, remote, tcp(MOVED, 443)),
            )?;
        }
        let (pod, node) = (example::pod()[0], example::node()[0]);
        let remote = example::remote()[0];
        let out = Frame::new(pod, remote, tcp(example::OWN_HOSTPORT, 80));
        bench.becomes(UplinkOut, &out, &out.becoming(node, remote, tcp(MOVED, 80)))?;
        // A hostport of another protocol does not block the port.
        let out = Frame::new(pod, remote, udp(example::OWN_HOSTPORT, 80));
        let same = udp(example::OWN_HOSTPORT, 80);
        bench.becomes(UplinkOut, &out, &out.becoming(node, remote, same))
    })
}

/// behaviour E1
#[test]
fn a_port_of_a_node_socket_is_not_used_as_a_masquerade_port() -> Result<()> {
    on_machine(|_, bench| {
        let udp_socket = std::net::UdpSocket::bind("0.0.0.0:45000")?;
        let tcp_socket = std::net::TcpListener::bind("[::]:46000")?;
        let (pod, node, remote) = (example::pod(), example::node(), example::remote());
        let incoming = |family: usize, port: u16, number: u8| Tuple {
            source: remote[family],
            destination: node[family],
            source_port: Port::new(443),
            destination_port: Port::new(port),
            protocol: number,
            reserved: [0; 3],
        };
        bench.change(|world| {
            world.sockets.extend([
                (incoming(0, 45_000, protocol::UDP), Socket::Open),
                (incoming(0, 46_000, protocol::TCP), Socket::Open),
                (incoming(1, 46_000, protocol::TCP), Socket::Open),
            ]);
        })?;
        let out = Frame::new(pod[0], remote[0], udp(45_000, 443));
        let wire = out.becoming(node[0], remote[0], udp(MOVED, 443));
        bench.becomes(UplinkOut, &out, &wire)?;
        for family in FAMILIES {
            let out = Frame::new(pod[family], remote[family], tcp(46_000, 443));
            let wire = out.becoming(node[family], remote[family], tcp(MOVED, 443));
            bench.becomes(UplinkOut, &out, &wire)?;
        }
        drop((udp_socket, tcp_socket));
        Ok(())
    })
}

#[test]
fn the_nodes_own_flow_moves_off_a_pods_port() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, node) = (example::pod()[family], example::node()[family]);
            let remote = example::remote()[family];
            let pods = Frame::new(pod, remote, udp(40_000, 53));
            let wire = pods.becoming(node, remote, udp(40_000, 53));
            bench.becomes(UplinkOut, &pods, &wire)?;
            let own = Frame::new(node, remote, udp(40_000, 53));
            let moved = own.becoming(node, remote, udp(MOVED, 53));
            bench.becomes(UplinkOut, &own, &moved)?;
            bench.becomes(UplinkOut, &own, &moved)?;
            let reply = Frame::new(remote, node, udp(53, MOVED));
            let to_node = reply.becoming(remote, node, udp(53, 40_000));
            bench.becomes(UplinkIn, &reply, &to_node)?;
            let reply = Frame::new(remote, node, udp(53, 40_000));
            let to_pod = reply.becoming(remote, pod, udp(53, 40_000));
            bench.becomes(UplinkIn, &reply, &to_pod)?;
        }
        let flows = bench.flows()?;
        let nodes = flows
            .values()
            .filter(|flow| flow.flags & FlowFlags::NODE != 0);
        assert_eq!(nodes.count(), 4);
        Ok(())
    })
}

#[test]
fn packets_with_an_unassigned_pod_address_are_dropped() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let remote = example::remote()[family];
            let unassigned = Frame::new(example::no_pod()[family], remote, tcp(40_000, 443));
            bench.drops(UplinkOut, &unassigned, DropReason::UnknownPod)?;
        }
        // The slot has a new owner, and the stale endpoint entry of the address no longer counts.
        bench.change(|world| world.pods[example::POD as usize].generation += 1)?;
        let late = Frame::new(example::pod()[0], example::remote()[0], tcp(40_000, 443));
        bench.drops(UplinkOut, &late, DropReason::UnknownPod)
    })
}

#[test]
fn an_uplink_without_an_address_drops_packets_of_that_family() -> Result<()> {
    on_bench(|bench| {
        bench.change(|world| {
            for uplink in world.uplinks.values_mut() {
                uplink.sources[1] = abi::Source::default();
            }
        })?;
        let out = Frame::new(example::pod()[1], example::remote()[1], tcp(40_000, 443));
        bench.drops(UplinkOut, &out, DropReason::NoSourceAddress)
    })
}

#[test]
fn a_flow_of_a_deleted_pod_is_recreated_for_its_successor() -> Result<()> {
    on_bench(|bench| {
        let (pod, node, remote) = (example::pod()[0], example::node()[0], example::remote()[0]);
        let out = Frame::new(pod, remote, udp(40_000, 53));
        let wire = out.becoming(node, remote, udp(40_000, 53));
        bench.becomes(UplinkOut, &out, &wire)?;
        bench.change(|world| {
            world.pods[example::POD as usize].generation += 1;
            for endpoint in world.endpoints.values_mut() {
                endpoint.generation += u32::from(endpoint.pod == example::POD);
            }
        })?;
        // A reply to the old pod is not translated: its flow is stale. The node has no such port.
        let reply = Frame::new(remote, node, udp(53, 40_000));
        bench.passes(UplinkIn, &reply)?;
        assert!(bench.flows()?.is_empty());
        bench.becomes(UplinkOut, &out, &wire)?;
        assert!(bench.flows()?.values().all(|flow| flow.generation == 42));
        Ok(())
    })
}

#[test]
fn a_flow_that_leaves_by_another_uplink_gets_that_uplinks_address() -> Result<()> {
    on_bench(|bench| {
        let (pod, node, remote) = (example::pod()[0], example::node()[0], example::remote()[0]);
        let out = Frame::new(pod, remote, udp(40_000, 53));
        let wire = out.becoming(node, remote, udp(40_000, 53));
        bench.becomes(UplinkOut, &out, &wire)?;
        bench.change(|world| {
            for flow in world.flows.values_mut() {
                flow.uplink = 99;
            }
        })?;
        bench.becomes(UplinkOut, &out, &wire)?;
        assert!(bench.flows()?.values().all(|flow| flow.uplink == 1));
        Ok(())
    })
}

#[test]
fn the_source_address_on_the_next_hops_subnet_is_chosen() -> Result<()> {
    on_machine(|machine, bench| {
        machine.call("ip link add up0 type veth peer name far0")?;
        machine.call("ip addr add 172.31.0.9/24 dev up0")?;
        machine.call("ip addr add 172.31.1.9/24 dev up0")?;
        machine.call("ip link set up0 up")?;
        machine.call("ip link set far0 up")?;
        machine.call("ip route add default via 172.31.1.1 dev up0")?;
        machine.sysctl("ipv4/ip_forward", "1")?;
        let index = nix::net::if_::if_nametoindex("up0")?;
        let remote = example::remote()[0];
        bench.change(|world| {
            let mut uplink = world.uplinks[&example::INTERFACE];
            uplink.sources[0].address = Address::v4([172, 31, 0, 9]);
            uplink.sources[1].address = Address::v4([172, 31, 1, 9]);
            uplink.sources[1].prefix_len = 24;
            world.uplinks.insert(index, uplink);
            world.next_hops.insert(remote, Address::v4([172, 31, 1, 1]));
        })?;
        bench.move_to(index);
        let out = Frame::new(example::pod()[0], remote, udp(40_000, 53));
        let wire = out.becoming(Address::v4([172, 31, 1, 9]), remote, udp(40_000, 53));
        bench.becomes(UplinkOut, &out, &wire)
    })
}

#[test]
fn a_full_flow_table_refuses_new_flows_and_keeps_old_connections() -> Result<()> {
    on_small_bench(2, |bench| {
        let (pod, node, remote) = (example::pod()[0], example::node()[0], example::remote()[0]);
        let segment = |flags| Body::Tcp(40_000, 443, flags, vec![]);
        let sends = |bench: &mut Bench, flags| {
            let old = Frame::new(pod, remote, segment(flags));
            let wire = old.becoming(node, remote, segment(flags));
            bench.becomes(UplinkOut, &old, &wire)
        };
        sends(bench, flag::SYN)?;
        let answer = Body::Tcp(443, 40_000, flag::SYN | flag::ACK, vec![]);
        let back = Frame::new(remote, node, answer.clone());
        bench.becomes(UplinkIn, &back, &back.becoming(remote, pod, answer))?;
        sends(bench, flag::ACK)?;
        let new = Frame::new(pod, remote, udp(40_001, 53));
        bench.drops(UplinkOut, &new, DropReason::FlowTableFull)?;
        sends(bench, flag::ACK)
    })
}

#[test]
fn a_hostport_on_one_address_leaves_the_port_free_on_others() -> Result<()> {
    on_bench(|bench| {
        bench.change(|world| {
            let key = HostportKey::new(
                Address::v4([192, 0, 2, 200]),
                Port::new(7_000),
                protocol::TCP,
            );
            let hostport = world.hostports.values().next().copied();
            world.hostports.insert(key, hostport.unwrap_or_default());
        })?;
        let (pod, node, remote) = (example::pod()[0], example::node()[0], example::remote()[0]);
        let out = Frame::new(pod, remote, tcp(7_000, 443));
        bench.becomes(
            UplinkOut,
            &out,
            &out.becoming(node, remote, tcp(7_000, 443)),
        )
    })
}

/// The checksum of a corrupted packet must stay wrong after the translation.
#[test]
fn a_wrong_checksum_stays_wrong() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, node) = (example::pod()[family], example::node()[family]);
            let remote = example::remote()[family];
            for body in [
                tcp(40_000, 443),
                udp(40_000, 53),
                Body::echo_request(&pod, 9),
            ] {
                let out = Frame::new(pod, remote, body.clone());
                let wire = out.becoming(node, remote, body);
                let damaged = |frame: &Frame| {
                    let mut bytes = frame.bytes();
                    let last = bytes.len() - 1;
                    bytes[last] ^= 0x55;
                    bytes
                };
                bench.turns_into(UplinkOut, &damaged(&out), &damaged(&wire))?;
            }
        }
        Ok(())
    })
}
