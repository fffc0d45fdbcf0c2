//! Source ports: kept where possible, moved where two flows would collide, never shared.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Barrier;
use std::thread;

use abi::Address;
use anyhow::{Context as _, Result, ensure};
use e2e::{
    Config, Echo, Machine, Mapping, NODE, Pod, RawSocket, Sandbox, WORLD, ping, tcp_echo,
    tcp_source, udp_seen_as, udp_source, until,
};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use verdict::simulator::frame::{Body, Frame};

const HOSTPORTS: [Mapping; 2] = Mapping::both(8080, 80);

fn pods<const COUNT: usize>(sandbox: &Sandbox) -> Result<[Pod; COUNT]> {
    let pods = (0..COUNT)
        .map(|number| {
            let mut pod = sandbox.pod(&format!("pod-{number}"))?;
            pod.add()?;
            Ok(pod)
        })
        .collect::<Result<Vec<_>>>()?;
    pods.try_into().ok().context("another number of pods")
}

#[test]
fn two_pods_keep_the_same_source_port_to_different_servers() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let [one, other] = pods(&sandbox)?;
    let _echoes = [
        Echo::start(&sandbox.world, 7000)?,
        Echo::start(&sandbox.world, 7001)?,
    ];
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let expected = SocketAddr::new(node, 45_000);
        let mut open = Vec::new();
        for (pod, port) in [(&one, 7000), (&other, 7001)] {
            let server = SocketAddr::new(world, port);
            let (seen, stream) = tcp_source(&pod.machine, 45_000, server)?;
            assert_eq!(seen, expected, "TCP to {server}");
            let (seen, socket) = udp_source(&pod.machine, 45_000, server)?;
            assert_eq!(seen, expected, "UDP to {server}");
            open.push((stream, socket));
        }
        for (stream, socket) in &open {
            tcp_echo(stream)?;
            assert_eq!(udp_seen_as(socket)?, expected);
        }
    }
    Ok(())
}

#[test]
fn a_published_port_is_never_given_to_a_masqueraded_flow() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let [client] = pods(&sandbox)?;
    let mut server = sandbox.pod("server")?;
    server.add_with(Config::new("1.1.0").publish(&HOSTPORTS))?;
    let _in_pod = Echo::start(&server.machine, 80)?;
    let _in_world = Echo::start(&sandbox.world, 7000)?;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let (outside, published) = (SocketAddr::new(world, 7000), SocketAddr::new(node, 8080));
        let (seen, stream) = tcp_source(&client.machine, 8080, outside)?;
        assert_ne!(seen, published, "TCP");
        let (seen, socket) = udp_source(&client.machine, 8080, outside)?;
        assert_ne!(seen, published, "UDP");
        // A client with the port of the pod's server must still reach the published server.
        let mut caller = SocketAddr::new(world, 7001);
        assert_eq!(tcp_source(&sandbox.world, 7001, published)?.0, caller);
        caller.set_port(7002);
        assert_eq!(udp_source(&sandbox.world, 7002, published)?.0, caller);
        tcp_echo(&stream)?;
        assert_eq!(udp_seen_as(&socket)?, seen);
    }
    Ok(())
}

/// Sends an echo request with this identifier, and returns the identifier that the world sees.
fn seen_identifier(
    (client, own): (&Machine, IpAddr),
    sandbox: &Sandbox,
    world: IpAddr,
    identifier: u16,
) -> Result<u16> {
    let abi = |address: IpAddr| match address {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    };
    let (icmp, kinds) = if world.is_ipv4() {
        (1, [8, 0])
    } else {
        (58, [128, 129])
    };
    let body = Body::echo_request(&abi(world), identifier);
    let mut frame = Frame::new(abi(own), abi(world), body);
    frame.ethernet = None;
    let in_world = RawSocket::listener(&sandbox.world, world, icmp)?;
    let back = RawSocket::listener(client, world, icmp)?;
    RawSocket::sender(client, world)?.send(&frame.packet(), world)?;
    let request = in_world.receive("the request", |heard| heard.payload[0] == kinds[0])?;
    let answer = back.receive("the answer", |heard| heard.payload[0] == kinds[1])?;
    let identifier_of = |payload: &[u8]| u16::from_be_bytes([payload[4], payload[5]]);
    ensure!(identifier_of(&answer.payload) == identifier, "{answer:?}");
    Ok(identifier_of(&request.payload))
}

#[test]
fn two_pods_and_the_node_can_ping_with_the_same_identifier() -> Result<()> {
    const SAME: u16 = 4242;
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let [one, other] = pods(&sandbox)?;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let mut seen = Vec::new();
        for (client, own) in [
            (&one.machine, one.address(world)?),
            (&other.machine, other.address(world)?),
            (&sandbox.node, node),
            (&one.machine, one.address(world)?),
        ] {
            seen.push(seen_identifier((client, own), &sandbox, world, SAME)?);
        }
        assert_eq!(seen[0], SAME);
        assert_eq!(seen[3], SAME);
        assert!(
            seen[1] != SAME && seen[2] != SAME && seen[1] != seen[2],
            "{seen:?}"
        );
    }
    Ok(())
}

#[test]
fn a_client_that_reuses_its_source_port_keeps_it() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let [pod] = pods(&sandbox)?;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        for round in 0..20 {
            // A program that another test starts meanwhile inherits the last connection's
            // descriptor until it execs.
            let (seen, stream) = until("the pod's port is free again", || {
                match tcp_source(&pod.machine, 46_000, SocketAddr::new(world, 7000)) {
                    Err(error) if error.downcast_ref() == Some(&Errno::EADDRNOTAVAIL) => Ok(None),
                    connected => connected.map(Some),
                }
            })?;
            assert_eq!(seen, SocketAddr::new(node, 46_000), "round {round}");
            tcp_echo(&stream)?;
            // A reset instead of a FIN: otherwise the port stays in TIME_WAIT for a minute.
            let at_once = nix::libc::linger {
                l_onoff: 1,
                l_linger: 0,
            };
            setsockopt(&stream, sockopt::Linger, &at_once)?;
        }
    }
    Ok(())
}

#[test]
fn first_packets_that_race_on_all_processors_make_one_flow() -> Result<()> {
    const FLOWS: u16 = 300;
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let [pod] = pods(&sandbox)?;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        // Resolve the neighbour first: only a few packets can wait for that.
        ping(&pod.machine, world, 1)?;
        let listener = RawSocket::listener(&sandbox.world, world, 17)?;
        let socket = pod
            .machine
            .run(|| UdpSocket::bind(SocketAddr::new(pod.address(world)?, 0)).context("bind"))?;
        let barrier = Barrier::new(2);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for port in 20_000..20_000 + FLOWS {
                        barrier.wait();
                        // An ICMP error that arrived meanwhile fails the next send, which then has
                        // to be repeated.
                        while socket.send_to(b"race", (world, port)).is_err() {}
                    }
                });
            }
        });
        socket.send_to(b"over", (world, 9))?;
        let heard = listener.receive_until("the last", |heard| heard.payload.ends_with(b"over"))?;
        let mut sources = BTreeMap::<u16, Vec<u16>>::new();
        for one in heard {
            assert_eq!(one.from, node);
            let port = |at: usize| u16::from_be_bytes([one.payload[at], one.payload[at + 1]]);
            sources.entry(port(2)).or_default().push(port(0));
        }
        assert_eq!(sources.len(), usize::from(FLOWS) + 1);
        let torn = sources
            .iter()
            .find(|(_, from)| from.iter().any(|port| *port != from[0]));
        assert_eq!(torn, None, "one flow, two source ports");
    }
    Ok(())
}
