//! Hostports from pods: packets reach the publishing pod, and replies come from the dialled
//! address.

use abi::{Address, Direction, DropReason, EndpointFlags, Port, protocol};
use anyhow::Result;
use verdict::simulator::Place::{FromPod, UplinkIn, UplinkOut};
use verdict::simulator::example::{
    self, FAMILIES, HOSTPORT, INTERFACE, OTHER_INTERFACE, POD_PORT, SCTP_HOSTPORT,
};
use verdict::simulator::frame::{Body, Frame, flag};

use crate::bench::{Bench, MOVED, on_bench};

/// Makes a transport header with payload from source and destination port.
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

/// A frame from the second pod to the MAC address of its gateway.
fn from_client(family: usize, to: Address, body: Body) -> Frame {
    let source = example::other_pod()[family];
    Frame::new(source, to, body).from_to(example::other_mac(), example::bridge_mac())
}

/// A frame from the first pod to the MAC address of its gateway.
fn from_server(family: usize, to: Address, body: Body) -> Frame {
    let source = example::pod()[family];
    Frame::new(source, to, body).from_to(example::mac(), example::bridge_mac())
}

fn to_server(frame: Frame) -> Frame {
    frame.from_to(example::bridge_mac(), example::mac())
}

fn to_client(frame: Frame) -> Frame {
    frame.from_to(example::bridge_mac(), example::other_mac())
}

/// The second pod dials the address, the first one replies; the server sees `seen.0` as the
/// client's port and serves port `seen.1`.
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
    let request = from_client(family, address, make(40_000, port));
    let forwarded = to_server(request.becoming(client, pod, make(seen_port, served)));
    bench.interface = OTHER_INTERFACE;
    bench.delivers(&request, &forwarded, INTERFACE)?;
    let answer = from_server(family, client, make(served, seen_port));
    let translated = to_client(answer.becoming(address, client, make(port, 40_000)));
    bench.interface = INTERFACE;
    bench.delivers(&answer, &translated, OTHER_INTERFACE)
}

#[test]
fn a_pod_reaches_another_pods_hostport_by_the_nodes_address() -> Result<()> {
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
fn sctp_ports_and_crc_are_rewritten() -> Result<()> {
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
fn an_sctp_crc_left_to_offload_is_unchanged() -> Result<()> {
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
            // A frame that the link has padded to its minimum length.
            let fill = |frame: &Frame| [frame.bytes(), vec![0xa5; 30]].concat();
            let init = Frame::new(remote, node, sctp(8, SCTP_HOSTPORT));
            let to_pod = init.becoming(remote, example::pod()[family], sctp(8, POD_PORT));
            bench.turns_into(UplinkIn, &fill(&init), &fill(&to_pod))?;
        }
        Ok(())
    })
}

/// behaviours E11, R14, F37
#[test]
fn a_pod_that_dials_its_own_hostport_is_seen_as_its_gateway() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, gateway) = (example::pod()[family], example::gateway()[family]);
            for make in [syn as Make, udp] {
                for node in [example::node()[family], gateway] {
                    let port = if node == gateway { MOVED } else { 40_000 };
                    let request = from_server(family, node, make(40_000, HOSTPORT));
                    let forwarded = to_server(request.becoming(gateway, pod, make(port, POD_PORT)));
                    bench.delivers(&request, &forwarded, INTERFACE)?;
                    let answer = from_server(family, gateway, make(POD_PORT, port));
                    let translated = to_server(answer.becoming(node, pod, make(HOSTPORT, 40_000)));
                    bench.delivers(&answer, &translated, INTERFACE)?;
                }
            }
        }
        Ok(())
    })
}

/// behaviour E4
#[test]
fn two_hostport_addresses_of_one_server_get_distinct_client_ports() -> Result<()> {
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
fn a_direct_client_and_a_hostport_client_get_distinct_ports() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, client) = (example::pod()[family], example::other_pod()[family]);
            for make in [syn as Make, udp] {
                let direct = from_client(family, pod, make(40_000, POD_PORT));
                let back = from_server(family, client, make(POD_PORT, 40_000));
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
fn a_later_direct_client_gets_a_distinct_port() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, client) = (example::pod()[family], example::other_pod()[family]);
            let node = (example::node()[family], HOSTPORT);
            exchange(bench, family, node, (40_000, POD_PORT), udp)?;
            let direct = from_client(family, pod, udp(40_000, POD_PORT));
            let moved = direct.becoming(client, pod, udp(MOVED, POD_PORT));
            bench.interface = OTHER_INTERFACE;
            bench.becomes(FromPod, &direct, &moved)?;
            let answer = from_server(family, client, udp(POD_PORT, MOVED));
            let translated = answer.becoming(pod, client, udp(POD_PORT, 40_000));
            bench.interface = INTERFACE;
            bench.becomes(FromPod, &answer, &translated)?;
            exchange(bench, family, node, (40_000, POD_PORT), udp)?;
        }
        Ok(())
    })
}

#[test]
fn pod_to_pod_traffic_without_hostports_creates_no_flow() -> Result<()> {
    on_bench(|bench| {
        bench.change(|world| {
            for endpoint in world.endpoints.values_mut() {
                endpoint.flags &= !EndpointFlags::PUBLISHED;
            }
        })?;
        bench.interface = OTHER_INTERFACE;
        for family in FAMILIES {
            let direct = from_client(family, example::pod()[family], udp(40_000, POD_PORT));
            bench.passes(FromPod, &direct)?;
        }
        assert!(bench.flows()?.is_empty());
        Ok(())
    })
}

/// behaviours N1, F40
#[test]
fn only_the_nodes_own_addresses_have_hostports() -> Result<()> {
    on_bench(|bench| {
        bench.change(|world| {
            // A hostport of an address that the node no longer has.
            let lost = abi::HostportKey::new(example::friend()[0], Port::new(443), protocol::TCP);
            let any =
                abi::HostportKey::wildcard(abi::Family::V4, Port::new(HOSTPORT), protocol::TCP);
            let hostport = world.hostports[&any];
            world.hostports.insert(lost, hostport);
            for endpoint in world.endpoints.values_mut() {
                endpoint.flags &= !EndpointFlags::PUBLISHED;
            }
        })?;
        bench.interface = OTHER_INTERFACE;
        for family in FAMILIES {
            let (friend, pod) = (example::friend()[family], example::pod()[family]);
            for (to, port) in [(friend, HOSTPORT), (friend, 443), (pod, HOSTPORT)] {
                bench.passes(FromPod, &from_client(family, to, syn(40_000, port)))?;
            }
            let node = example::node()[family];
            bench.passes(FromPod, &from_client(family, node, syn(40_000, 22)))?;
            bench.passes(
                FromPod,
                &from_client(family, node, Body::echo_request(&node, 1)),
            )?;
        }
        assert!(bench.flows()?.is_empty());
        Ok(())
    })
}

/// A port unreachable error that quotes `packet`.
fn unreachable(packet: &Frame) -> Body {
    let (kind, code) = if packet.source.is_v4() {
        (3, 3)
    } else {
        (1, 4)
    };
    Body::Icmp(kind, code, [0; 4], packet.packet())
}

#[test]
fn a_port_unreachable_error_quotes_the_dialled_hostport() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (node, client) = (example::node()[family], example::other_pod()[family]);
            let dialled = (node, HOSTPORT);
            exchange(bench, family, dialled, (40_000, POD_PORT), udp)?;
            let forwarded = Frame::new(client, example::pod()[family], udp(40_000, POD_PORT));
            let request = forwarded.becoming(client, node, udp(40_000, HOSTPORT));
            let error = from_server(family, client, unreachable(&forwarded));
            let translated = to_client(error.becoming(node, client, unreachable(&request)));
            bench.delivers(&error, &translated, OTHER_INTERFACE)?;
            // The other direction: the client's socket was closed before the reply.
            let answer = Frame::new(node, client, udp(HOSTPORT, 40_000));
            let sent_answer =
                answer.becoming(example::pod()[family], client, udp(POD_PORT, 40_000));
            let error = from_client(family, node, unreachable(&answer));
            let pod = example::pod()[family];
            let translated = to_server(error.becoming(client, pod, unreachable(&sent_answer)));
            bench.interface = OTHER_INTERFACE;
            bench.delivers(&error, &translated, INTERFACE)?;
        }
        Ok(())
    })
}

#[test]
fn later_fragments_reach_the_hostports_pod_like_the_first() -> Result<()> {
    on_bench(|bench| {
        bench.interface = OTHER_INTERFACE;
        for family in FAMILIES {
            let (client, pod) = (example::other_pod()[family], example::pod()[family]);
            let long = |source, destination| Body::Udp(source, destination, vec![7; 64]);
            let request = from_client(family, example::node()[family], long(40_000, HOSTPORT));
            let forwarded = to_server(request.becoming(client, pod, long(40_000, POD_PORT)));
            for (piece, expected) in request
                .fragments(9, 32)
                .iter()
                .zip(forwarded.fragments(9, 32))
            {
                let (verdict, packet) = bench.run(FromPod, piece)?;
                assert_eq!(verdict, verdict::Verdict::RedirectPeer(INTERFACE));
                assert_eq!(packet, expected);
            }
            // A fragment ahead of its first waits for it.
            let [_, early] = request.fragments(10, 32);
            assert_eq!(bench.run(FromPod, &early)?.0, verdict::Verdict::Consume);
        }
        Ok(())
    })
}

#[test]
fn the_next_owner_of_a_hostport_gets_the_next_packet() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let node = (example::node()[family], HOSTPORT);
            exchange(bench, family, node, (40_000, POD_PORT), udp)?;
        }
        bench.change(|world| world.pods[example::POD as usize].generation += 1)?;
        bench.interface = OTHER_INTERFACE;
        for family in FAMILIES {
            let request = from_client(family, example::node()[family], udp(40_000, HOSTPORT));
            bench.drops(FromPod, &request, DropReason::StaleGeneration)?;
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
            let request = from_client(family, example::node()[family], udp(40_000, HOSTPORT));
            let forwarded = to_client(request.becoming(gateway, pod, udp(40_000, POD_PORT)));
            bench.delivers(&request, &forwarded, OTHER_INTERFACE)?;
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
            let answer = from_server(family, client, udp(POD_PORT, 40_000));
            bench.passes(FromPod, &answer)?;
        }
        assert!(bench.flows()?.is_empty());
        Ok(())
    })
}

#[test]
fn a_pod_without_spoof_check_reaches_hostports_only_as_itself() -> Result<()> {
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
