//! What routers and hosts on the way say about a packet reaches whoever sent it, in words that it understands.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use e2e::{
    Config, Far, GATEWAYS, Machine, Mapping, NODE, Pod, Raw, Sandbox, Sends, Stream, WORLD,
    udp_socket, until,
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

/// Waits until the pod's own route to `to` knows the path's MTU.
fn knows_mtu(pod: &Pod, to: IpAddr) -> Result<()> {
    until(&format!("the pod knows the MTU on the way to {to}"), || {
        let route = pod.machine.call(&format!("ip route get {to}"))?;
        Ok(route.contains("mtu 1300").then_some(()))
    })
}

#[test]
fn a_path_that_becomes_narrow_under_a_transfer_is_noticed_and_the_transfer_goes_on() -> Result<()> {
    const BYTES: u64 = 192 << 20;
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = published(&sandbox)?;
    let far = Far::beyond(&sandbox, 1500)?;
    for (node, away) in NODE.into_iter().zip(far.addresses) {
        far.resize(1500)?;
        let upload = Stream::start(
            (&pod.machine, SocketAddr::new(away, 7000)),
            (&far.machine, 7000),
            Sends::Client,
            BYTES,
        )?;
        upload.goes_on(1 << 20)?;
        far.resize(1300)?;
        knows_mtu(&pod, away).context("as a client")?;
        upload.end()?;

        // What the pod sends from a published port is complained of under the node's address and port.
        pod.machine.call("ip route flush cache")?;
        pod.machine.call("ip -6 route flush cache")?;
        far.resize(1500)?;
        let download = Stream::start(
            (&far.machine, SocketAddr::new(node, 8080)),
            (&pod.machine, 80),
            Sends::Server,
            BYTES,
        )?;
        download.goes_on(1 << 20)?;
        far.resize(1300)?;
        knows_mtu(&pod, away).context("as a server")?;
        download.end()?;
    }
    Ok(())
}

/// A UDP socket on `machine` that hears of errors, connected to `to`.
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

/// Who complains of a datagram that lives for `hops` hops.
fn hop(socket: &UdpSocket, hops: u8) -> Result<IpAddr> {
    if socket.peer_addr()?.is_ipv4() {
        setsockopt(socket, sockopt::Ipv4Ttl, &i32::from(hops))?;
    } else {
        setsockopt(socket, sockopt::Ipv6Ttl, &i32::from(hops))?;
    }
    until(&format!("hop {hops}"), || {
        // An error that has not been read yet is told by the next send; the queue is what is read here.
        let _ = socket.send(b"probe");
        let _ = socket.recv(&mut [0; 16]);
        complainer(socket)
    })
}

/// Whose the oldest complaint is, if there is one; later ones about the same hop are thrown away.
fn complainer(socket: &UdpSocket) -> Result<Option<IpAddr>> {
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
fn a_pod_sees_each_hop_on_its_way() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = published(&sandbox)?;
    let far = Far::beyond(&sandbox, 1500)?;
    for index in [0, 1] {
        let hops = [GATEWAYS[index], WORLD[index], far.addresses[index]];
        for (number, expected) in (1_u8..).zip(hops) {
            let socket = prober(&pod.machine, SocketAddr::new(far.addresses[index], 33_434))?;
            assert_eq!(hop(&socket, number)?, expected, "hop {number} by UDP");
            // ping tells of errors and then fails, for want of an answer.
            let line = format!("ping -n -c 1 -W 2 -t {number} {}", far.addresses[index]);
            let words = line.split(' ').collect::<Vec<_>>();
            // A router tells one sender of errors about once a second: the probe before may have used that up.
            until(
                &format!("an answer of hop {number}, {expected}, to ping"),
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

/// Waits until the kernel tells `socket` that nobody is there.
fn is_refused(socket: &UdpSocket) -> Result<()> {
    until("a refusal", || {
        let refused = socket.send(b"?").and_then(|_| socket.recv(&mut [0; 16]));
        match refused {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(Some(())),
            Err(_) => Ok(None),
            Ok(_) => bail!("somebody answered"),
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
fn a_refusal_names_the_address_and_port_that_was_asked() -> Result<()> {
    const UNREACHABLE: [u8; 2] = [3, 1];
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = published(&sandbox)?;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let six = world.is_ipv6();
        let icmp = if six { 58 } else { 1 };
        let kind = UNREACHABLE[usize::from(six)];

        let in_pod = Raw::listener(&pod.machine, world, icmp)?;
        let any = SocketAddr::new(pod.address(world)?, 0);
        let socket = pod.machine.run(|| UdpSocket::bind(any))?;
        socket.connect(SocketAddr::new(world, 7777))?;
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        is_refused(&socket).context("out of the pod")?;
        let error = in_pod.hear("the world's refusal", |heard| heard.payload[0] == kind)?;
        assert_eq!(error.from, world);
        let asked = (any.ip(), world, 7777);
        assert_eq!(quoted(&error.payload, six), Some(asked));

        let in_world = Raw::listener(&sandbox.world, world, icmp)?;
        let socket = prober(&sandbox.world, SocketAddr::new(node, 5353))?;
        is_refused(&socket).context("into the pod")?;
        let error = in_world.hear("the pod's refusal", |heard| heard.payload[0] == kind)?;
        assert_eq!(error.from, node);
        let asked = (world, node, 5353);
        assert_eq!(quoted(&error.payload, six), Some(asked));
    }
    Ok(())
}
