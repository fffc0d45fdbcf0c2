//! Hostports that pods dial: the one pod's packets go to the other pod, and answers come from what was dialled.

use abi::{Address, Direction, DropReason, EndpointFlags, Port, protocol};
use anyhow::Result;
use verdict::simulator::Place::{FromPod, UplinkIn, UplinkOut};
use verdict::simulator::example::{
    self, FAMILIES, HOSTPORT, INTERFACE, OTHER_INTERFACE, POD_PORT, SCTP_HOSTPORT,
};
use verdict::simulator::frame::{Body, Frame, flag};

use crate::bench::{Bench, MOVED, on_bench};

/// A transport, with whatever else it is made of.
type Make = fn(u16, u16) -> Body;

fn syn(source: u16, destination: u16) -> Body {
    Body::Tcp(source, destination, flag::SYN, b"data".to_vec())
}

fn udp(source: u16, destination: u16) -> Body {
    Body::Udp(source, destination, b"query".to_vec())
}

fn sctp(source: u16, destination: u16) -> Body {
    Body::Sctp(source, destination, b"init chunk".to_vec())
}

/// What the second pod sends to the node, by its gateway's station.
fn sent(family: usize, to: Address, body: Body) -> Frame {
    let source = example::other_pod()[family];
    Frame::new(source, to, body).from_to(example::other_mac(), example::bridge_mac())
}

/// What the first pod sends.
fn answered(family: usize, to: Address, body: Body) -> Frame {
    let source = example::pod()[family];
    Frame::new(source, to, body).from_to(example::mac(), example::bridge_mac())
}

fn to_server(frame: Frame) -> Frame {
    frame.from_to(example::bridge_mac(), example::mac())
}

fn to_client(frame: Frame) -> Frame {
    frame.from_to(example::bridge_mac(), example::other_mac())
}

/// The second pod dials, the first one answers; the server sees `seen_port`.
fn exchange(
    bench: &mut Bench,
    family: usize,
    dialled: (Address, u16),
    seen: (u16, u16),
    make: Make,
) -> Result<()> {
    let (pod, client) = (example::pod()[family], example::other_pod()[family]);
    let (address, port) = dialled;
    let (seen_port, served) = seen;
    let ask = sent(family, address, make(40_000, port));
    let asked = to_server(ask.becoming(client, pod, make(seen_port, served)));
    bench.interface = OTHER_INTERFACE;
    bench.delivers(&ask, &asked, INTERFACE)?;
    let answer = answered(family, client, make(served, seen_port));
    let heard = to_client(answer.becoming(address, client, make(port, 40_000)));
    bench.interface = INTERFACE;
    bench.delivers(&answer, &heard, OTHER_INTERFACE)
}

#[test]
fn a_pod_reaches_the_other_by_any_address_of_the_node() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let node = (example::node()[family], HOSTPORT);
            exchange(bench, family, node, (40_000, POD_PORT), syn)?;
            exchange(bench, family, node, (40_000, POD_PORT), udp)?;
        }
        assert_eq!(bench.flows()?.len(), 8);
        for pod in [example::POD, example::OTHER_POD] {
            let sent = bench.counters(pod, Direction::Egress)?;
            let received = bench.counters(pod, Direction::Ingress)?;
            assert_eq!((sent.packets, received.packets), (4, 4));
        }
        Ok(())
    })
}

#[test]
fn sctp_ports_change_with_their_crc() -> Result<()> {
    on_bench(|bench| {
        bench.change(|world| {
            for (key, hostport) in &mut world.hostports {
                if key.protocol == protocol::SCTP {
                    hostport.port = Port::new(POD_PORT);
                }
            }
        })?;
        for family in FAMILIES {
            let (node, pod, remote) = (
                example::node()[family],
                example::pod()[family],
                example::remote()[family],
            );
            let dialled = (node, SCTP_HOSTPORT);
            exchange(bench, family, dialled, (40_000, POD_PORT), sctp)?;
            let init = Frame::new(remote, node, sctp(7, SCTP_HOSTPORT));
            let to_pod = init.becoming(remote, pod, sctp(7, POD_PORT));
            bench.becomes(UplinkIn, &init, &to_pod)?;
            let answer = Frame::new(pod, remote, sctp(POD_PORT, 7));
            let wire = answer.becoming(node, remote, sctp(SCTP_HOSTPORT, 7));
            bench.becomes(UplinkOut, &answer, &wire)?;
        }
        Ok(())
    })
}

#[test]
fn an_sctp_crc_that_is_left_to_the_card_is_left_alone() -> Result<()> {
    on_bench(|bench| {
        bench.change(|world| {
            for hostport in world.hostports.values_mut() {
                hostport.port = Port::new(POD_PORT);
            }
        })?;
        for family in FAMILIES {
            let crc = [42, 62][family];
            let (node, remote) = (example::node()[family], example::remote()[family]);
            let init = Frame::new(remote, node, sctp(7, SCTP_HOSTPORT));
            let to_pod = init.becoming(remote, example::pod()[family], sctp(7, POD_PORT));
            let blank = |frame: &Frame| {
                let mut bytes = frame.bytes();
                bytes[crc..crc + 4].fill(0);
                bytes
            };
            bench.turns_into(UplinkIn, &blank(&init), &blank(&to_pod))?;
            // A frame that the link has filled up to its shortest length.
            let fill = |frame: &Frame| [frame.bytes(), vec![0xa5; 30]].concat();
            let init = Frame::new(remote, node, sctp(8, SCTP_HOSTPORT));
            let to_pod = init.becoming(remote, example::pod()[family], sctp(8, POD_PORT));
            bench.turns_into(UplinkIn, &fill(&init), &fill(&to_pod))?;
        }
        Ok(())
    })
}

/// behaviours E11, R14, F37.
#[test]
fn a_pod_that_dials_itself_is_its_gateway() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, gateway) = (example::pod()[family], example::gateway()[family]);
            for make in [syn as Make, udp] {
                for node in [example::node()[family], gateway] {
                    let port = if node == gateway { MOVED } else { 40_000 };
                    let ask = answered(family, node, make(40_000, HOSTPORT));
                    let asked = to_server(ask.becoming(gateway, pod, make(port, POD_PORT)));
                    bench.delivers(&ask, &asked, INTERFACE)?;
                    let answer = answered(family, gateway, make(POD_PORT, port));
                    let heard = to_server(answer.becoming(node, pod, make(HOSTPORT, 40_000)));
                    bench.delivers(&answer, &heard, INTERFACE)?;
                }
            }
        }
        Ok(())
    })
}

/// behaviour E4.
#[test]
fn two_ways_to_one_server_are_told_apart_by_the_clients_port() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let node = (example::node()[family], HOSTPORT);
            exchange(bench, family, node, (40_000, POD_PORT), udp)?;
            let gateway = (example::gateway()[family], HOSTPORT);
            exchange(bench, family, gateway, (MOVED, POD_PORT), udp)?;
            exchange(bench, family, node, (40_000, POD_PORT), udp)?;
        }
        Ok(())
    })
}

#[test]
fn a_client_that_comes_directly_as_well_is_told_apart() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, client) = (example::pod()[family], example::other_pod()[family]);
            for make in [syn as Make, udp] {
                let direct = sent(family, pod, make(40_000, POD_PORT));
                let back = answered(family, client, make(POD_PORT, 40_000));
                for _ in 0..2 {
                    bench.interface = OTHER_INTERFACE;
                    bench.passes(FromPod, &direct)?;
                    bench.interface = INTERFACE;
                    bench.passes(FromPod, &back)?;
                    let node = (example::node()[family], HOSTPORT);
                    exchange(bench, family, node, (MOVED, POD_PORT), make)?;
                }
            }
        }
        Ok(())
    })
}

#[test]
fn a_client_that_comes_directly_later_on_is_told_apart() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, client) = (example::pod()[family], example::other_pod()[family]);
            let node = (example::node()[family], HOSTPORT);
            exchange(bench, family, node, (40_000, POD_PORT), udp)?;
            let direct = sent(family, pod, udp(40_000, POD_PORT));
            let moved = direct.becoming(client, pod, udp(MOVED, POD_PORT));
            bench.interface = OTHER_INTERFACE;
            bench.becomes(FromPod, &direct, &moved)?;
            let answer = answered(family, client, udp(POD_PORT, MOVED));
            let heard = answer.becoming(pod, client, udp(POD_PORT, 40_000));
            bench.interface = INTERFACE;
            bench.becomes(FromPod, &answer, &heard)?;
            exchange(bench, family, node, (40_000, POD_PORT), udp)?;
        }
        Ok(())
    })
}

#[test]
fn what_pods_say_to_pods_without_hostports_is_not_noted() -> Result<()> {
    on_bench(|bench| {
        bench.change(|world| {
            for endpoint in world.endpoints.values_mut() {
                endpoint.flags &= !EndpointFlags::PUBLISHED;
            }
        })?;
        bench.interface = OTHER_INTERFACE;
        for family in FAMILIES {
            let direct = sent(family, example::pod()[family], udp(40_000, POD_PORT));
            bench.passes(FromPod, &direct)?;
        }
        assert!(bench.flows()?.is_empty());
        Ok(())
    })
}

/// behaviours N1, F40.
#[test]
fn only_the_nodes_own_addresses_have_hostports() -> Result<()> {
    on_bench(|bench| {
        bench.change(|world| {
            // A service's address, and one that the node has lost.
            let lost = abi::HostportKey::new(example::friend()[0], Port::new(443), protocol::TCP);
            let any =
                abi::HostportKey::wildcard(abi::Family::V4, Port::new(HOSTPORT), protocol::TCP);
            world.hostports.insert(lost, world.hostports[&any]);
            for endpoint in world.endpoints.values_mut() {
                endpoint.flags &= !EndpointFlags::PUBLISHED;
            }
        })?;
        bench.interface = OTHER_INTERFACE;
        for family in FAMILIES {
            let (friend, pod) = (example::friend()[family], example::pod()[family]);
            for (to, port) in [(friend, HOSTPORT), (friend, 443), (pod, HOSTPORT)] {
                bench.passes(FromPod, &sent(family, to, syn(40_000, port)))?;
            }
            let node = example::node()[family];
            bench.passes(FromPod, &sent(family, node, syn(40_000, 22)))?;
            bench.passes(FromPod, &sent(family, node, Body::echo_request(&node, 1)))?;
        }
        assert!(bench.flows()?.is_empty());
        Ok(())
    })
}

/// A port unreachable that quotes a packet, with the checksum of that which its sender got: nobody corrects it.
fn unreachable(packet: &Frame, got: &Frame) -> Body {
    let (kind, code, ports) = if packet.source.is_v4() {
        (3, 3, 20)
    } else {
        (1, 4, 40)
    };
    let behind = ports + 4;
    let mut quote = packet.packet();
    quote[behind..].copy_from_slice(&got.packet()[behind..]);
    Body::Icmp(kind, code, [0; 4], quote)
}

#[test]
fn a_port_unreachable_speaks_of_what_was_dialled() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (node, client) = (example::node()[family], example::other_pod()[family]);
            let dialled = (node, HOSTPORT);
            exchange(bench, family, dialled, (40_000, POD_PORT), udp)?;
            let asked = Frame::new(client, example::pod()[family], udp(40_000, POD_PORT));
            let ask = asked.becoming(client, node, udp(40_000, HOSTPORT));
            let error = answered(family, client, unreachable(&asked, &asked));
            let heard = to_client(error.becoming(node, client, unreachable(&ask, &asked)));
            bench.delivers(&error, &heard, OTHER_INTERFACE)?;
            // The other way round, when the client has gone before the answer.
            let answer = Frame::new(node, client, udp(HOSTPORT, 40_000));
            let sent_answer =
                answer.becoming(example::pod()[family], client, udp(POD_PORT, 40_000));
            let error = sent(family, node, unreachable(&answer, &answer));
            let pod = example::pod()[family];
            let heard = to_server(error.becoming(client, pod, unreachable(&sent_answer, &answer)));
            bench.interface = OTHER_INTERFACE;
            bench.delivers(&error, &heard, INTERFACE)?;
        }
        Ok(())
    })
}

#[test]
fn fragments_follow_the_first() -> Result<()> {
    on_bench(|bench| {
        bench.interface = OTHER_INTERFACE;
        for family in FAMILIES {
            let (client, pod) = (example::other_pod()[family], example::pod()[family]);
            let long = |source, destination| Body::Udp(source, destination, vec![7; 64]);
            let ask = sent(family, example::node()[family], long(40_000, HOSTPORT));
            let asked = to_server(ask.becoming(client, pod, long(40_000, POD_PORT)));
            for (piece, expected) in ask.fragments(9, 32).iter().zip(asked.fragments(9, 32)) {
                let (verdict, packet) = bench.run(FromPod, piece)?;
                assert_eq!(verdict, verdict::Verdict::RedirectPeer(INTERFACE));
                assert_eq!(packet, expected);
            }
            // One that comes before its first is the node's to put together.
            let [_, lost] = ask.fragments(10, 32);
            bench.turns_into(FromPod, &lost, &lost)?;
        }
        Ok(())
    })
}

#[test]
fn the_next_owner_gets_the_next_packet() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let node = (example::node()[family], HOSTPORT);
            exchange(bench, family, node, (40_000, POD_PORT), udp)?;
        }
        bench.change(|world| world.pods[example::POD as usize].generation += 1)?;
        bench.interface = OTHER_INTERFACE;
        for family in FAMILIES {
            let ask = sent(family, example::node()[family], udp(40_000, HOSTPORT));
            bench.drops(FromPod, &ask, DropReason::StaleGeneration)?;
        }
        assert!(bench.flows()?.is_empty());
        bench.change(|world| {
            for hostport in world.hostports.values_mut() {
                let family = usize::from(!hostport.address.is_v4());
                hostport.address = example::other_pod()[family];
                hostport.pod = example::OTHER_POD;
                hostport.generation = 40 + example::OTHER_POD;
            }
        })?;
        for family in FAMILIES {
            let (pod, gateway) = (example::other_pod()[family], example::gateway()[family]);
            let ask = sent(family, example::node()[family], udp(40_000, HOSTPORT));
            let asked = to_client(ask.becoming(gateway, pod, udp(40_000, POD_PORT)));
            bench.delivers(&ask, &asked, OTHER_INTERFACE)?;
        }
        Ok(())
    })
}

#[test]
fn the_next_owner_of_a_clients_address_gets_none_of_its_answers() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let node = (example::node()[family], HOSTPORT);
            exchange(bench, family, node, (40_000, POD_PORT), udp)?;
        }
        bench.change(|world| {
            for endpoint in world.endpoints.values_mut() {
                endpoint.flags &= !EndpointFlags::PUBLISHED;
                if endpoint.pod == example::OTHER_POD {
                    endpoint.interface = 13;
                }
            }
        })?;
        for family in FAMILIES {
            let client = example::other_pod()[family];
            let answer = answered(family, client, udp(POD_PORT, 40_000));
            bench.passes(FromPod, &answer)?;
        }
        assert!(bench.flows()?.is_empty());
        Ok(())
    })
}

#[test]
fn a_pod_that_is_not_checked_dials_as_itself_only() -> Result<()> {
    on_bench(|bench| {
        bench.change(|world| {
            world.pods[example::OTHER_POD as usize].flags &= !EndpointFlags::SPOOF_CHECK;
        })?;
        bench.interface = OTHER_INTERFACE;
        for family in FAMILIES {
            for source in [example::pod(), example::remote()] {
                let node = example::node()[family];
                let frame = Frame::new(source[family], node, syn(40_000, HOSTPORT));
                bench.passes(FromPod, &frame)?;
            }
        }
        assert!(bench.flows()?.is_empty());
        Ok(())
    })
}
