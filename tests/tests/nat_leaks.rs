//! No packet reaches the world with a pod's own address, whatever a pod sends (docs/masquerade.md).

use std::collections::BTreeSet;
use std::net::IpAddr;

use abi::Address;
use anyhow::{Result, ensure};
use e2e::{Agent, Capture, NODE, Pod, RawSocket, Sandbox, WORLD, ping};
use verdict::simulator::frame::{Body, Frame, flag};

const ICMP: [u8; 2] = [1, 58];

fn abi(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    }
}

fn frame(from: IpAddr, to: IpAddr, body: Body) -> Frame {
    let mut frame = Frame::new(abi(from), abi(to), body);
    frame.ethernet = None;
    frame
}

/// Returns the source address of a packet, and its IPv4 protocol or IPv6 next header.
fn source_and_protocol(packet: &[u8]) -> (IpAddr, u8) {
    let array = |at: usize| <[u8; 4]>::try_from(&packet[at..at + 4]).unwrap_or_default();
    if packet[0] >> 4 == 4 {
        (array(12).into(), packet[9])
    } else {
        let long = <[u8; 16]>::try_from(&packet[8..24]).unwrap_or_default();
        (long.into(), packet[6])
    }
}

/// A pod, and a capture of its packets in the world.
struct Scene {
    sandbox: Sandbox,
    agent: Agent,
    pod: Pod,
    capture: Capture,
}

impl Scene {
    fn new() -> Result<Self> {
        let (sandbox, agent) = Sandbox::with_agent()?;
        let mut pod = sandbox.pod("pod")?;
        pod.add()?;
        for world in WORLD {
            ping(&pod.machine, world, 1)?;
        }
        Ok(Self {
            capture: Capture::start(&sandbox.world)?,
            sandbox,
            agent,
            pod,
        })
    }

    /// Sends packets from the pod, and returns source and protocol of those that arrive in the
    /// world.
    fn send(&self, world: IpAddr, packets: &[Vec<u8>]) -> Result<BTreeSet<(IpAddr, u8)>> {
        let raw = RawSocket::sender(&self.pod.machine, world)?;
        for packet in packets {
            // The pod's own kernel refuses to send some of these.
            let _ = raw.send(packet, world);
        }
        let own = self.pod.address(world)?;
        let marker = Body::Udp(60_999, 60_999, b"over".to_vec());
        raw.send(&frame(own, world, marker).packet(), world)?;
        let packets = self
            .capture
            .until("the end marker", |packet| packet.ends_with(b"over"))?;
        let heard = packets.iter().map(|packet| source_and_protocol(packet));
        // Neighbour discovery with link-local addresses is traffic of the node itself.
        let link_local =
            |source: &IpAddr| matches!(source, IpAddr::V6(v6) if v6.is_unicast_link_local());
        Ok(heard.filter(|(source, _)| !link_local(source)).collect())
    }

    fn drops(&self, reason: &str) -> Result<u64> {
        let counters = self.agent.get("/v1/counters")?;
        Ok(counters["drops"][reason].as_u64().unwrap_or(0))
    }
}

/// Returns whether the protocol is an IPv6 extension header or ICMP; those have their own tests.
fn is_apart(number: u8, world: IpAddr) -> bool {
    let extensions = [0, 43, 44, 51, 60, 135, 139, 140];
    number == ICMP[usize::from(world.is_ipv6())]
        || (world.is_ipv6() && extensions.contains(&number))
}

#[test]
fn packets_of_every_protocol_number_leave_as_the_nodes_or_not_at_all() -> Result<()> {
    let scene = Scene::new()?;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let own = scene.pod.address(world)?;
        let numbers: Vec<u8> = (0..=u8::MAX)
            .filter(|number| !is_apart(*number, world))
            .collect();
        let body = |number: u8| match number {
            6 => Body::Tcp(41_000, 9, flag::SYN, Vec::new()),
            17 => Body::Udp(41_000, 9, Vec::new()),
            132 => Body::Sctp(41_000, 9, vec![1, 0, 0, 8, 5, 6, 7, 8]),
            _ => Body::Other(number, vec![0; 32]),
        };
        let packets = numbers
            .iter()
            .map(|number| frame(own, world, body(*number)).packet());
        let heard = scene.send(world, &packets.collect::<Vec<_>>())?;
        let strange = heard.iter().find(|(source, _)| *source != node);
        ensure!(strange.is_none(), "from another than {node}: {strange:?}");
        for number in [2, 6, 17, 47, 50, 89, 112, 132, 253] {
            ensure!(
                heard.contains(&(node, number)),
                "{number} is missing: {heard:?}"
            );
        }
    }
    Ok(())
}

#[test]
fn mid_stream_packets_of_unknown_connections_leave_with_the_nodes_address() -> Result<()> {
    let scene = Scene::new()?;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let own = scene.pod.address(world)?;
        let flags = [
            flag::RST,
            flag::RST | flag::ACK,
            flag::ACK,
            flag::FIN | flag::ACK,
            flag::SYN | flag::ACK,
            0,
            0xff,
        ];
        let packets = (42_000..).zip(flags).map(|(port, flags)| {
            let body = Body::Tcp(port, 443, flags, b"middle".to_vec());
            frame(own, world, body).packet()
        });
        let heard = scene.send(world, &packets.collect::<Vec<_>>())?;
        assert_eq!(heard, BTreeSet::from([(node, 6)]));
    }
    Ok(())
}

/// netfilter treats these as invalid, and they leave with the pod's own address.
#[test]
fn replies_and_icmp_errors_without_a_flow_are_dropped_and_counted() -> Result<()> {
    let scene = Scene::new()?;
    let mut dropped = 0;
    for world in WORLD {
        let own = scene.pod.address(world)?;
        let (unreachable, other) = if world.is_ipv4() {
            // A redirect or advertisement of a pod would be dropped at its veth, as a router's.
            ((3, 3), (10, 0))
        } else {
            ((1, 4), (139, 0))
        };
        let quoted = frame(world, own, Body::Udp(7_777, 8_888, b"asked".to_vec())).packet();
        let bodies = [
            Body::echo_reply(&abi(world), 4_343),
            Body::Icmp(unreachable.0, unreachable.1, [0; 4], quoted.clone()),
            Body::Icmp(other.0, other.1, [192, 0, 2, 9], quoted),
        ];
        let packets = bodies.map(|body| frame(own, world, body).packet());
        assert_eq!(scene.send(world, &packets)?, BTreeSet::new(), "{world}");
        dropped += packets.len() as u64;
        assert_eq!(scene.drops("no-flow")?, dropped);
    }
    Ok(())
}

#[test]
fn fragments_leave_as_the_nodes_or_not_at_all() -> Result<()> {
    let scene = Scene::new()?;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let own = scene.pod.address(world)?;
        let pieces = |body: Body, identification: u32| -> [Vec<u8>; 2] {
            frame(own, world, body).fragments(identification, 1_000)
        };
        let long = || vec![7; 1_600];
        let bodies = [
            Body::Udp(43_000, 9, long()),
            Body::Tcp(43_000, 9, flag::ACK, long()),
            Body::Icmp(8 + 120 * u8::from(world.is_ipv6()), 0, [1, 2, 0, 1], long()),
            Body::Icmp(129 * u8::from(world.is_ipv6()), 0, [1, 2, 0, 1], long()),
        ];
        for (number, body) in (0x6100..).zip(bodies) {
            let [_, second] = pieces(body, number);
            assert_eq!(scene.send(world, &[second])?, BTreeSet::new());
        }
        let whole = pieces(Body::Udp(43_001, 9, long()), 0x6200);
        let number = if world.is_ipv4() { 17 } else { 44 };
        assert_eq!(scene.send(world, &whole)?, BTreeSet::from([(node, number)]));
    }
    Ok(())
}

/// Multicast and broadcast of a pod stay on its bridge.
#[test]
fn multicast_and_broadcast_do_not_leave_the_node() -> Result<()> {
    let scene = Scene::new()?;
    let groups = [
        ["224.0.0.251", "239.1.2.3", "255.255.255.255"],
        ["ff02::fb", "ff05::2", "ff0e::1234"],
    ];
    for (world, groups) in WORLD.into_iter().zip(groups) {
        let own = scene.pod.address(world)?;
        let packets = groups.map(|group| {
            let group = group.parse::<IpAddr>();
            let body = Body::Udp(5_353, 5_353, b"everybody".to_vec());
            group.map(|group| (group, frame(own, group, body).packet()))
        });
        let raw = RawSocket::sender(&scene.pod.machine, world)?;
        for packet in packets {
            let (group, packet) = packet?;
            let _ = raw.send(&packet, group);
        }
        assert_eq!(scene.send(world, &[])?, BTreeSet::new());
    }
    drop(scene.sandbox);
    Ok(())
}
