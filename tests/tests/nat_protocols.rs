//! Masquerade of every protocol: the packets that arrive are, byte for byte, those that the node
//! itself would send.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use abi::Address;
use anyhow::{Context as _, Result, ensure};
use e2e::{
    Config, Connection, Echo, Machine, Mapping, NODE, Pod, RawSocket, Sandbox, Sends, Stream,
    WORLD, patient, skipped,
};
use nix::sys::socket::{setsockopt, sockopt};
use verdict::simulator::frame::{Body, Frame, flag};

const GRE: u8 = 47;
/// A protocol number for experiments (RFC 3692).
const EXPERIMENT: u8 = 253;

const HOSTPORT: Mapping = Mapping::tcp(5201, 5202);

fn pod(sandbox: &Sandbox, name: &str) -> Result<Pod> {
    let mut pod = sandbox.pod(name)?;
    pod.add_with(Config::new("1.1.0").publish(&[HOSTPORT]))?;
    Ok(pod)
}

fn abi(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    }
}

fn frame(source: IpAddr, destination: IpAddr, body: &Body) -> Frame {
    let mut frame = Frame::new(abi(source), abi(destination), body.clone());
    frame.ethernet = None;
    frame
}

/// Returns the bytes after the IP header, with the checksums that the sender would write.
fn payload(source: IpAddr, destination: IpAddr, body: &Body) -> Vec<u8> {
    let header = if source.is_ipv4() { 20 } else { 40 };
    frame(source, destination, body).packet().split_off(header)
}

/// Returns pairs of a request and its reply. A kernel that receives either unexpectedly sends
/// nothing that would disturb the test.
fn exchanges(to: IpAddr) -> Vec<(Body, Body)> {
    let (v4, to) = (to.is_ipv4(), abi(to));
    vec![
        (
            Body::Tcp(41_000, 9, flag::SYN, Vec::new()),
            Body::Tcp(9, 41_000, flag::SYN | flag::ACK, Vec::new()),
        ),
        (
            Body::Udp(41_000, 9, b"discard".to_vec()),
            Body::Udp(9, 41_000, b"an answer of odd len".to_vec()),
        ),
        (
            Body::UdpUnchecked(41_001, 9, b"not checksummed.".to_vec()),
            Body::UdpUnchecked(9, 41_001, b"nor this".to_vec()),
        ),
        (
            Body::echo_request(&to, 41_000),
            Body::echo_reply(&to, 41_000),
        ),
        (
            Body::Icmp(if v4 { 13 } else { 128 }, 0, [7, 7, 0, 1], vec![3; 12]),
            Body::Icmp(if v4 { 14 } else { 129 }, 0, [7, 7, 0, 1], vec![4; 12]),
        ),
        (
            Body::Sctp(41_000, 9, vec![1, 0, 0, 8, 5, 6, 7, 8]),
            Body::Sctp(9, 41_000, vec![2, 0, 0, 8, 9, 9, 9, 9]),
        ),
        (
            Body::Other(GRE, vec![0, 0, 8, 0, 1, 2, 3, 4]),
            Body::Other(GRE, vec![0, 0, 8, 0, 4, 3, 2, 1]),
        ),
        (
            Body::Other(EXPERIMENT, b"never seen before".to_vec()),
            Body::Other(EXPERIMENT, b"but answered".to_vec()),
        ),
    ]
}

#[test]
fn every_protocol_is_masqueraded_and_its_reply_reaches_the_pod() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = pod(&sandbox, "pod")?;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let own = pod.address(world)?;
        let (from_pod, from_world) = (
            RawSocket::sender(&pod.machine, world)?,
            RawSocket::sender(&sandbox.world, world)?,
        );
        for (request, answer) in exchanges(world) {
            let number = request.protocol(&abi(world));
            let in_world = RawSocket::listener(&sandbox.world, world, number)?;
            let in_pod = RawSocket::listener(&pod.machine, world, number)?;

            from_pod.send(&frame(own, world, &request).packet(), world)?;
            let expected = payload(node, world, &request);
            in_world.receive(&format!("{request:?} from {node}"), |heard| {
                heard.from == node && heard.payload == expected
            })?;
            from_world.send(&frame(world, node, &answer).packet(), node)?;
            let expected = payload(world, own, &answer);
            in_pod.receive(&format!("{answer:?} from {world}"), |heard| {
                heard.from == world && heard.payload == expected
            })?;
        }
    }
    Ok(())
}

#[test]
fn a_second_pod_is_refused_where_a_protocol_has_no_ports() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let mut pods = [sandbox.pod("first")?, sandbox.pod("second")?];
    for pod in &mut pods {
        pod.add()?;
    }
    let [first, second] = pods;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let gre = |text: &str| Body::Other(GRE, [&[0, 0, 8, 0], text.as_bytes()].concat());
        let in_world = RawSocket::listener(&sandbox.world, world, GRE)?;
        for (pod, text) in [(&first, "mine"), (&second, "also"), (&first, "last")] {
            let packet = frame(pod.address(world)?, world, &gre(text)).packet();
            RawSocket::sender(&pod.machine, world)?.send(&packet, world)?;
        }
        let is = |text: &'static str| move |payload: &[u8]| payload.ends_with(text.as_bytes());
        let heard =
            in_world.receive_until("the last of three", |heard| is("last")(&heard.payload))?;
        assert!(heard.iter().all(|one| one.from == node), "{heard:?}");
        assert!(
            !heard.iter().any(|one| is("also")(&one.payload)),
            "{heard:?}"
        );

        let in_pods = [&first, &second].map(|pod| RawSocket::listener(&pod.machine, world, GRE));
        let [in_first, in_second] = in_pods;
        in_world.send(&[0, 0, 8, 0, 7, 7, 7, 7], node)?;
        in_first?.receive("the answer", |heard| heard.from == world)?;
        // A packet of the node itself, which can reach its pods directly.
        let to_second = RawSocket::listener(&sandbox.node, world, GRE)?;
        to_second.send(&[0, 0, 8, 0, 8, 8, 8, 8], second.address(world)?)?;
        let heard =
            in_second?.receive_until("the node's", |heard| heard.payload.ends_with(&[8; 4]))?;
        assert_eq!(heard.len(), 1, "{heard:?}");
    }
    let counters = agent.get("/v1/counters")?;
    assert_eq!(counters["drops"]["nat-clash"], 2, "{counters}");
    Ok(())
}

/// Switches the offloads of the pod's and the world's interfaces; veths have no hardware, so the
/// kernel skips the work.
fn offloads(machines: [&Machine; 2], state: &str) -> Result<()> {
    for machine in machines {
        let switch = format!("ethtool -K eth0 tx {state} tso {state} gso {state} gro {state}");
        machine.call(&switch).context("offloads")?;
    }
    Ok(())
}

/// Transfers `bytes` bytes out of the pod and into it at the same time.
fn both_ways(
    sandbox: &Sandbox,
    pod: &Pod,
    (node, world): (IpAddr, IpAddr),
    bytes: u64,
) -> Result<()> {
    let outward = Stream::start(
        (&pod.machine, SocketAddr::new(world, 7001)),
        (&sandbox.world, 7001),
        Sends::Client,
        bytes,
    )?;
    let inward = Stream::start(
        (&sandbox.world, SocketAddr::new(node, HOSTPORT.host)),
        (&pod.machine, HOSTPORT.container),
        Sends::Client,
        bytes,
    )?;
    outward.end().context("out of the pod")?;
    inward.end().context("into the pod")
}

/// More than two gibibytes in total.
#[test]
fn gigabytes_have_the_same_sha256_on_both_sides() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = pod(&sandbox, "pod")?;
    for (state, bytes) in [("on", 400 << 20), ("off", 128 << 20)] {
        offloads([&pod.machine, &sandbox.world], state)?;
        for (node, world) in NODE.into_iter().zip(WORLD) {
            let (out, back) = (
                (&pod.machine, SocketAddr::new(world, 7001)),
                (&sandbox.world, SocketAddr::new(node, HOSTPORT.host)),
            );
            let outward = Stream::hashed(out, (&sandbox.world, 7001), Sends::Client, bytes)?;
            let in_pod = (&pod.machine, HOSTPORT.container);
            let inward = Stream::hashed(back, in_pod, Sends::Client, bytes)?;
            outward.end().context("out of the pod")?;
            inward.end().context("into the pod")?;
        }
    }
    Ok(())
}

#[test]
fn without_offloads_each_segment_passes_the_receivers_checksum() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = pod(&sandbox, "pod")?;
    offloads([&pod.machine, &sandbox.world], "off")?;
    for pair in NODE.into_iter().zip(WORLD) {
        both_ways(&sandbox, &pod, pair, 32 << 20)?;
    }
    let errors =
        |machine: &Machine| machine.run(|| std::fs::read_to_string("/proc/thread-self/net/snmp"));
    for machine in [&pod.machine, &sandbox.world] {
        let shown = errors(machine)?;
        let bad = bad_segments(&shown).context("no InCsumErrors")?;
        assert_eq!(bad, 0, "{} got bad checksums: {shown}", machine.name());
    }
    Ok(())
}

/// Returns `InCsumErrors` of TCP from `/proc/net/snmp`, which counts both families.
fn bad_segments(snmp: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut pairs = names.split(' ').zip(values.split(' '));
    pairs
        .find(|(name, _)| *name == "InCsumErrors")?
        .1
        .parse()
        .ok()
}

/// Returns a UDP socket that is bound to `from` and connected to `to`.
fn udp(machine: &Machine, from: SocketAddr, to: SocketAddr) -> Result<UdpSocket> {
    machine.run(|| {
        let socket = UdpSocket::bind(from)?;
        socket.connect(to)?;
        socket.set_read_timeout(Some(patient(Duration::from_secs(4))))?;
        Ok(socket)
    })
}

#[test]
fn all_segments_of_a_udp_gso_packet_are_translated() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = pod(&sandbox, "pod")?;
    for state in ["on", "off"] {
        offloads([&pod.machine, &sandbox.world], state)?;
        for (node, world) in NODE.into_iter().zip(WORLD) {
            let server = SocketAddr::new(world, 7002);
            let in_world = sandbox.world.run(|| UdpSocket::bind(server))?;
            in_world.set_read_timeout(Some(patient(Duration::from_secs(4))))?;
            let client = udp(
                &pod.machine,
                SocketAddr::new(pod.address(world)?, 0),
                server,
            )?;
            setsockopt(&client, sockopt::UdpGsoSegment, &1000)?;
            let sent = (0..20_500_u32)
                .map(|n| n.to_le_bytes()[0])
                .collect::<Vec<_>>();
            match client.send(&sent) {
                Err(error) if state == "off" && error.raw_os_error() == Some(nix::libc::EIO) => {
                    // Kernels before 6.11.
                    skipped(
                        "this kernel segments datagrams only for interfaces with checksum offload",
                    );
                    return Ok(());
                }
                sent => sent?,
            };
            let mut got = Vec::<u8>::new();
            let mut buffer = [0; 2000];
            while got.len() < sent.len() {
                let (length, from) = in_world.recv_from(&mut buffer)?;
                ensure!(from.ip() == node, "from {from}");
                ensure!(length == 1000 || length == 500, "a datagram of {length}");
                got.extend_from_slice(&buffer[..length]);
            }
            assert_eq!(got, sent, "offloads {state}");
        }
    }
    Ok(())
}

#[test]
fn switching_offloads_breaks_no_running_transfer() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = pod(&sandbox, "pod")?;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    let servers = WORLD.map(|world| SocketAddr::new(world, 7000));
    let mut open = Vec::new();
    for server in servers {
        open.push(Connection::tcp(&pod.machine, server)?);
        open.push(Connection::udp(&pod.machine, server)?);
    }
    for state in ["off", "on", "off"] {
        offloads([&pod.machine, &sandbox.world], state)?;
        open.iter().try_for_each(Connection::exchange)?;
    }
    Ok(())
}
