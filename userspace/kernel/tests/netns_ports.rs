//! Port reservations: real sockets against other processes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use kernel::{Host, Kernel, Observe as _};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket,
    sockopt,
};
use steps::{PortQuery, PortReservation, ReservationOwner, ReservedBy, Step};
use support::*;

fn reservation(text: &str) -> PortReservation {
    let (address, protocol) = text.split_once('/').unwrap();
    let address: SocketAddr = address.parse().unwrap();
    PortReservation {
        address: address.ip(),
        port: address.port(),
        protocol: protocol.parse().unwrap(),
    }
}

fn reserve(host: &mut Host, text: &str) -> Result<(), String> {
    let (reservation, generation) = (reservation(text), 1);
    let held = host.execute(&Step::ReservePort {
        reservation,
        generation,
    });
    held.map_err(|error| match error.port_in_use() {
        Some(in_use) => in_use.to_string(),
        None => chain(&error),
    })
}

fn release(host: &mut Host, text: &str) {
    let (reservation, generation) = (reservation(text), 1);
    host.execute(&Step::ReleasePort {
        reservation,
        generation,
    })
    .unwrap();
}

/// Binds a port as another process would, with these socket options.
fn foreign(text: &str, shares: &[Share]) -> Result<std::os::fd::OwnedFd, Errno> {
    use std::os::fd::AsRawFd as _;
    let PortReservation { protocol, .. } = reservation(text);
    let address = reservation(text).socket();
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let is_tcp = protocol == model::Protocol::Tcp;
    let sort = if is_tcp {
        SockType::Stream
    } else {
        SockType::Datagram
    };
    let socket = socket(family, sort, SockFlag::SOCK_CLOEXEC, None)?;
    for share in shares {
        match share {
            Share::Address => setsockopt(&socket, sockopt::ReuseAddr, &true)?,
            Share::Port => setsockopt(&socket, sockopt::ReusePort, &true)?,
        }
    }
    let storage = SockaddrStorage::from(address);
    bind(socket.as_raw_fd(), &storage)?;
    if is_tcp {
        listen(&socket, Backlog::new(1).unwrap())?;
    }
    Ok(socket)
}

#[derive(Clone, Copy, Debug)]
enum Share {
    Address,
    Port,
}

const SHARES: [&[Share]; 4] = [
    &[],
    &[Share::Address],
    &[Share::Port],
    &[Share::Address, Share::Port],
];

fn assert_refused(text: &str) {
    for shares in SHARES {
        let refused = foreign(text, shares).map(drop);
        assert_eq!(refused, Err(Errno::EADDRINUSE), "{text} {shares:?}");
    }
}

#[test]
fn a_reserved_port_is_refused_with_any_reuse_option() {
    on_a_node(|node| {
        let mut host = node.host();
        for text in [
            "0.0.0.0:8080/tcp",
            "[::]:8080/tcp",
            "0.0.0.0:53/udp",
            "[::]:53/udp",
        ] {
            reserve(&mut host, text).unwrap();
            reserve(&mut host, text).unwrap();
            assert_refused(text);
        }
        assert_refused("127.0.0.1:8080/tcp");
        assert_refused("[::1]:53/udp");
        let list = run("ss -Hlntu");
        assert_eq!(
            list.matches("*:8080").count()
                + list.matches("0.0.0.0:8080").count()
                + list.matches("[::]:8080").count(),
            2,
            "{list}"
        );

        release(&mut host, "0.0.0.0:8080/tcp");
        foreign("0.0.0.0:8080/tcp", &[]).unwrap();
        assert_refused("[::]:8080/tcp");
        drop(host);
        for text in ["[::]:8080/tcp", "0.0.0.0:53/udp", "[::]:53/udp"] {
            foreign(text, &[]).unwrap();
        }
    });
}

/// The wildcard and the address may belong to two pods.
#[test]
fn a_wildcard_and_an_address_are_reserved_together_in_either_order() {
    on_a_node(|node| {
        let mut host = node.host();
        for (wildcard, own) in [
            ("0.0.0.0:80/tcp", "192.0.2.7:80/tcp"),
            ("0.0.0.0:80/udp", "192.0.2.7:80/udp"),
            ("[::]:80/tcp", "[2001:db8::7]:80/tcp"),
            ("[::]:80/udp", "[2001:db8::7]:80/udp"),
        ] {
            for order in [[wildcard, own], [own, wildcard]] {
                for text in order {
                    reserve(&mut host, text).unwrap();
                }
                assert_refused(wildcard);
                release(&mut host, order[0]);
                assert_refused(wildcard);
                release(&mut host, order[1]);
            }
        }
    });
}

/// The address of a hostIP may be added to the node later.
#[test]
fn a_port_of_a_future_address_is_reserved_from_the_start() {
    on_a_node(|node| {
        let mut host = node.host();
        reserve(&mut host, "192.0.2.7:80/tcp").unwrap();
        reserve(&mut host, "[2001:db8::7]:80/tcp").unwrap();
        run("ip address add 192.0.2.7/24 dev lo");
        run("ip -6 address add 2001:db8::7/64 dev lo nodad");
        assert_refused("192.0.2.7:80/tcp");
        assert_refused("[2001:db8::7]:80/tcp");
        foreign("127.0.0.1:80/tcp", &[]).unwrap();
    });
}

#[test]
fn a_port_in_use_is_refused_with_the_name_of_the_process() {
    on_a_node(|node| {
        let mut host = node.host();
        let script = "import socket, time\n\
             t = socket.create_server(('127.0.0.1', 8080))\n\
             u = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)\n\
             u.bind(('::', 53))\n\
             print('ready', flush=True)\n\
             time.sleep(60)";
        let mut server = Server::start(script);
        let pid = server.0.id();
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        let command = comm.trim_end();
        let message =
            |port, socket| format!("host port {port} is in use by {command} (pid {pid}, {socket})");
        for (text, port, socket) in [
            ("0.0.0.0:8080/tcp", "8080/tcp", "127.0.0.1:8080"),
            ("127.0.0.1:8080/tcp", "127.0.0.1:8080/tcp", "127.0.0.1:8080"),
            ("0.0.0.0:53/udp", "53/udp", "[::]:53"),
            ("[::]:53/udp", "53/udp", "[::]:53"),
        ] {
            assert_eq!(reserve(&mut host, text), Err(message(port, socket)));
        }
        reserve(&mut host, "[::]:8080/tcp").unwrap();
        let held = host.observe(&PortQuery).unwrap();
        let (generation, by) = (1, ReservedBy::Socket);
        let expected = [(
            reservation("[::]:8080/tcp"),
            ReservationOwner { generation, by },
        )];
        assert_eq!(held, expected.into(), "a failed reservation is not listed");
        server.end();
        reserve(&mut host, "0.0.0.0:8080/tcp").unwrap();
    });
}

/// The process that served a port before leaves connections in `TIME_WAIT`.
#[test]
fn connections_in_time_wait_do_not_block_a_reservation() {
    on_a_node(|node| {
        let mut host = node.host();
        let server = std::net::TcpListener::bind("127.0.0.1:8080").unwrap();
        let client = std::net::TcpStream::connect("127.0.0.1:8080").unwrap();
        drop(server.accept().unwrap());
        drop((server, client));
        let list = run("ss -Hant state time-wait");
        assert!(list.contains(":8080"), "{list}");
        reserve(&mut host, "0.0.0.0:8080/tcp").unwrap();
        assert_refused("0.0.0.0:8080/tcp");
    });
}

#[test]
fn a_port_is_released_only_for_its_own_generation() {
    on_a_node(|node| {
        let mut host = node.host();
        let reservation = reservation("0.0.0.0:8080/tcp");
        let mut execute = |step| host.execute(&step).unwrap();
        for generation in [1, 2] {
            execute(Step::ReservePort {
                reservation,
                generation,
            });
        }
        execute(Step::ReleasePort {
            reservation,
            generation: 1,
        });
        assert_refused("0.0.0.0:8080/tcp");
        execute(Step::ReleasePort {
            reservation,
            generation: 2,
        });
        foreign("0.0.0.0:8080/tcp", &[]).unwrap();
    });
}

#[test]
fn ten_thousand_ports_are_reserved() {
    on_a_node(|node| {
        let mut host = node.host();
        let started = std::time::Instant::now();
        for port in 10_000..15_000 {
            reserve(&mut host, &format!("0.0.0.0:{port}/tcp")).unwrap();
            reserve(&mut host, &format!("[::]:{port}/tcp")).unwrap();
        }
        println!("10,000 sockets in {:?}", started.elapsed());
        assert_refused("0.0.0.0:14999/tcp");
    });
}

/// The SCTP module must not be loaded by a reservation.
#[test]
fn a_port_of_a_missing_protocol_is_reserved_in_the_table_only() {
    on_a_node(|node| {
        let mut host = node.host();
        let has_sctp = std::path::Path::new("/proc/net/sctp").exists();
        reserve(&mut host, "0.0.0.0:8080/sctp").unwrap();
        let held = host.observe(&PortQuery).unwrap();
        let by = if has_sctp {
            ReservedBy::Socket
        } else {
            ReservedBy::Table
        };
        assert_eq!(held[&reservation("0.0.0.0:8080/sctp")].by, by);
        assert_eq!(std::path::Path::new("/proc/net/sctp").exists(), has_sctp);
    });
}

/// Another process, which ends with the test.
struct Server(Child);

impl Server {
    #[expect(clippy::disallowed_methods, reason = "the test needs another process")]
    fn start(script: &str) -> Self {
        let mut child = Command::new("python3")
            .args(["-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = child.stdout.as_mut().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process has ended already where the test called `end`.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
