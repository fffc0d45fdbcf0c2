//! ICMP errors of routers and hosts reach the sender, translated to its own addresses and ports.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use e2e::{
    Config, DistantHost, GATEWAYS, Machine, Mapping, NODE, Pod, RawSocket, Sandbox, Sends, Stream,
    WORLD, udp_socket, until,
};
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrIn, SockaddrIn6, recvmsg, setsockopt, sockopt,
};

const HOSTPORTS: [Mapping; 2] = [Mapping::tcp(8080, 80), Mapping::udp(5353, 53)];

fn published(sandbox: &Sandbox) -> Result<Pod> {
    let mut pod = sandbox.pod("pod")?;
    pod.add_with(Config::new("1.1.0").publish(&HOSTPORTS))?;
    Ok(pod)
}

/// Waits until the pod's route to `to` has the path MTU of 1300 bytes.
fn await_path_mtu(pod: &Pod, to: IpAddr) -> Result<()> {
    until(&format!("the pod has the path MTU to {to}"), || {
        let route = pod.machine.call(&format!("ip route get {to}"))?;
        Ok(route.contains("mtu 1300").then_some(()))
    })
}

#[test]
fn a_transfer_continues_when_the_path_mtu_shrinks() -> Result<()> {
    const BYTES: u64 = 192 << 20;
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = published(&sandbox)?;
    let far = DistantHost::new(&sandbox, 1500)?;
    for (node, away) in NODE.into_iter().zip(far.addresses) {
        far.resize(1500)?;
        let upload = Stream::start(
            (&pod.machine, SocketAddr::new(away, 7000)),
            (&far.machine, 7000),
            Sends::Client,
            BYTES,
        )?;
        upload.await_progress(1 << 20)?;
        far.resize(1300)?;
        await_path_mtu(&pod, away).context("as a client")?;
        upload.end()?;

        // The ICMP error about the pod's packets from a published port quotes the node's address
        // and port.
        pod.machine.call("ip route flush cache")?;
        pod.machine.call("ip -6 route flush cache")?;
        far.resize(1500)?;
        let download = Stream::start(
            (&far.machine, SocketAddr::new(node, 8080)),
            (&pod.machine, 80),
            Sends::Server,
            BYTES,
        )?;
        download.await_progress(1 << 20)?;
        far.resize(1300)?;
        await_path_mtu(&pod, away).context("as a server")?;
        download.end()?;
    }
    Ok(())
}

/// Returns a UDP socket on `machine` that queues ICMP errors, connected to `to`.
fn prober(machine: &Machine, to: SocketAddr) -> Result<UdpSocket> {
    let socket = machine.run(|| udp_socket(0, to))?;
    if to.is_ipv4() {
        setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?;
    } else {
        setsockopt(&socket, sockopt::Ipv6RecvErr, &true)?;
    }
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    Ok(socket)
}

/// Returns the sender of the ICMP error about a datagram with a TTL of `hops`.
fn hop(socket: &UdpSocket, hops: u8) -> Result<IpAddr> {
    if socket.peer_addr()?.is_ipv4() {
        setsockopt(socket, sockopt::Ipv4Ttl, &i32::from(hops))?;
    } else {
        setsockopt(socket, sockopt::Ipv6Ttl, &i32::from(hops))?;
    }
    until(&format!("hop {hops}"), || {
        // The next send fails with an error that has not been read yet; this reads the error queue
        // instead.
        let _ = socket.send(b"probe");
        let _ = socket.recv(&mut [0; 16]);
        error_sender(socket)
    })
}

/// Returns the sender of the oldest queued ICMP error, if any; later ones about the same hop are
/// discarded.
fn error_sender(socket: &UdpSocket) -> Result<Option<IpAddr>> {
    let mut first = None;
    loop {
        let mut space = nix::cmsg_space!([u8; 256]);
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let mut iov = [];
        let read = recvmsg::<()>(socket.as_raw_fd(), &mut iov, Some(&mut space), flags);
        let Ok(message) = read else {
            return Ok(first);
        };
        for note in message.cmsgs()? {
            let whose = if let ControlMessageOwned::Ipv4RecvErr(_, Some(from)) = note {
                Some(IpAddr::V4(SockaddrIn::from(from).ip()))
            } else if let ControlMessageOwned::Ipv6RecvErr(_, Some(from)) = note {
                Some(IpAddr::V6(SockaddrIn6::from(from).ip()))
            } else {
                None
            };
            first = first.or(whose);
        }
    }
}

#[test]
fn traceroute_from_a_pod_shows_each_hop() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = published(&sandbox)?;
    let far = DistantHost::new(&sandbox, 1500)?;
    for index in [0, 1] {
        let hops = [GATEWAYS[index], WORLD[index], far.addresses[index]];
        for (number, expected) in (1_u8..).zip(hops) {
            let socket = prober(&pod.machine, SocketAddr::new(far.addresses[index], 33_434))?;
            assert_eq!(hop(&socket, number)?, expected, "hop {number} by UDP");
            // ping prints the errors and then fails, because there is no reply.
            let line = format!("ping -n -c 1 -W 2 -t {number} {}", far.addresses[index]);
            let words = line.split(' ').collect::<Vec<_>>();
            // A router sends about one error per second to each host; the previous probe may have
            // used that up.
            until(
                &format!("an error of hop {number}, {expected}, for ping"),
                || {
                    let printed = pod.machine.output(&words)?.stdout;
                    let printed = String::from_utf8_lossy(&printed).to_lowercase();
                    Ok(printed.contains(&format!("from {expected}")).then_some(()))
                },
            )?;
        }
    }
    Ok(())
}

/// Waits until the kernel returns a port unreachable error on `socket`.
fn await_refusal(socket: &UdpSocket) -> Result<()> {
    until("a port unreachable error", || {
        let refused = socket.send(b"?").and_then(|_| socket.recv(&mut [0; 16]));
        match refused {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(Some(())),
            Err(_) => Ok(None),
            Ok(_) => bail!("a server replied"),
        }
    })
}

/// The quoted packet in an ICMP error: its source, its destination and destination port.
fn quoted(error: &[u8], six: bool) -> Option<(IpAddr, IpAddr, u16)> {
    let packet = error.get(8..)?;
    let (source, destination, ports) = if six {
        let address = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<16>()?));
        (address(8)?, address(24)?, 40)
    } else {
        let address = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<4>()?));
        let header = usize::from(packet.first()? & 0xf) * 4;
        (address(12)?, address(16)?, header)
    };
    let port = packet.get(ports + 2..)?.first_chunk::<2>()?;
    Some((source, destination, u16::from_be_bytes(*port)))
}

#[test]
fn a_port_unreachable_error_quotes_the_dialled_address_and_port() -> Result<()> {
    const UNREACHABLE: [u8; 2] = [3, 1];
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = published(&sandbox)?;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let six = world.is_ipv6();
        let icmp = if six { 58 } else { 1 };
        let kind = UNREACHABLE[usize::from(six)];

        let in_pod = RawSocket::listener(&pod.machine, world, icmp)?;
        let any = SocketAddr::new(pod.address(world)?, 0);
        let socket = pod.machine.run(|| UdpSocket::bind(any))?;
        socket.connect(SocketAddr::new(world, 7777))?;
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        await_refusal(&socket).context("out of the pod")?;
        let error = in_pod.receive("the world's error", |heard| heard.payload[0] == kind)?;
        assert_eq!(error.from, world);
        let asked = (any.ip(), world, 7777);
        assert_eq!(quoted(&error.payload, six), Some(asked));

        let in_world = RawSocket::listener(&sandbox.world, world, icmp)?;
        let socket = prober(&sandbox.world, SocketAddr::new(node, 5353))?;
        await_refusal(&socket).context("into the pod")?;
        let error = in_world.receive("the pod's error", |heard| heard.payload[0] == kind)?;
        assert_eq!(error.from, node);
        let asked = (world, node, 5353);
        assert_eq!(quoted(&error.payload, six), Some(asked));
    }
    Ok(())
}
