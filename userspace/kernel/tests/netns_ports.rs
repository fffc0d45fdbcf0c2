//! Ports of the node, held by real sockets against real processes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use kernel::{Host, Kernel};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket,
    sockopt,
};
use planner::{Claim, Held, Holding, Scope, Step};
use support::*;

fn claim(text: &str) -> Claim {
    let (address, protocol) = text.split_once('/').unwrap();
    let address: SocketAddr = address.parse().unwrap();
    Claim {
        address: address.ip(),
        port: address.port(),
        protocol: protocol.parse().unwrap(),
    }
}

fn hold(host: &mut Host, text: &str) -> Result<(), String> {
    let (claim, generation) = (claim(text), 1);
    let held = host.execute(&Step::HoldPort { claim, generation });
    held.map_err(|error| match error.port_in_use() {
        Some(in_use) => in_use.to_string(),
        None => chain(&error),
    })
}

fn release(host: &mut Host, text: &str) {
    let (claim, generation) = (claim(text), 1);
    host.execute(&Step::ReleasePort { claim, generation })
        .unwrap();
}

/// Another process's attempt to serve a port, with everything that sockets may share by.
fn foreign(text: &str, shares: &[Share]) -> Result<std::os::fd::OwnedFd, Errno> {
    use std::os::fd::AsRawFd as _;
    let Claim { protocol, .. } = claim(text);
    let address = claim(text).socket();
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
fn a_held_port_is_nobody_elses_however_they_ask() {
    on_a_node(|node| {
        let mut host = node.host();
        for text in [
            "0.0.0.0:8080/tcp",
            "[::]:8080/tcp",
            "0.0.0.0:53/udp",
            "[::]:53/udp",
        ] {
            hold(&mut host, text).unwrap();
            hold(&mut host, text).unwrap();
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

/// DATAPATH §4: they may belong to two pods.
#[test]
fn a_wildcard_and_an_address_are_held_side_by_side_in_either_order() {
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
                    hold(&mut host, text).unwrap();
                }
                assert_refused(wildcard);
                release(&mut host, order[0]);
                assert_refused(wildcard);
                release(&mut host, order[1]);
            }
        }
    });
}

/// A hostIP may come to the node later.
#[test]
fn an_address_that_comes_later_is_claimed_from_the_start() {
    on_a_node(|node| {
        let mut host = node.host();
        hold(&mut host, "192.0.2.7:80/tcp").unwrap();
        hold(&mut host, "[2001:db8::7]:80/tcp").unwrap();
        run("ip address add 192.0.2.7/24 dev lo");
        run("ip -6 address add 2001:db8::7/64 dev lo nodad");
        assert_refused("192.0.2.7:80/tcp");
        assert_refused("[2001:db8::7]:80/tcp");
        foreign("127.0.0.1:80/tcp", &[]).unwrap();
    });
}

#[test]
fn a_port_that_a_process_has_is_refused_with_its_name() {
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
        let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        let command = command.trim_end();
        let told =
            |port, socket| format!("host port {port} is in use by {command} (pid {pid}, {socket})");
        for (text, port, socket) in [
            ("0.0.0.0:8080/tcp", "8080/tcp", "127.0.0.1:8080"),
            ("127.0.0.1:8080/tcp", "127.0.0.1:8080/tcp", "127.0.0.1:8080"),
            ("0.0.0.0:53/udp", "53/udp", "[::]:53"),
            ("[::]:53/udp", "53/udp", "[::]:53"),
        ] {
            assert_eq!(hold(&mut host, text), Err(told(port, socket)));
        }
        hold(&mut host, "[::]:8080/tcp").unwrap();
        let held = host.observe(&Scope::Ports).unwrap().held;
        let (generation, by) = (1, Holding::Socket);
        let expected = [(claim("[::]:8080/tcp"), Held { generation, by })];
        assert_eq!(held, expected.into(), "what failed is not held");
        server.end();
        hold(&mut host, "0.0.0.0:8080/tcp").unwrap();
    });
}

/// Whoever has served a port leaves connections behind that have ended.
#[test]
fn connections_that_have_ended_are_not_in_the_way() {
    on_a_node(|node| {
        let mut host = node.host();
        let server = std::net::TcpListener::bind("127.0.0.1:8080").unwrap();
        let client = std::net::TcpStream::connect("127.0.0.1:8080").unwrap();
        drop(server.accept().unwrap());
        drop((server, client));
        let list = run("ss -Hant state time-wait");
        assert!(list.contains(":8080"), "{list}");
        hold(&mut host, "0.0.0.0:8080/tcp").unwrap();
        assert_refused("0.0.0.0:8080/tcp");
    });
}

#[test]
fn a_port_is_released_only_in_the_name_that_it_is_held_for() {
    on_a_node(|node| {
        let mut host = node.host();
        let claim = claim("0.0.0.0:8080/tcp");
        let mut execute = |step| host.execute(&step).unwrap();
        for generation in [1, 2] {
            execute(Step::HoldPort { claim, generation });
        }
        execute(Step::ReleasePort {
            claim,
            generation: 1,
        });
        assert_refused("0.0.0.0:8080/tcp");
        execute(Step::ReleasePort {
            claim,
            generation: 2,
        });
        foreign("0.0.0.0:8080/tcp", &[]).unwrap();
    });
}

#[test]
fn ten_thousand_ports_are_held() {
    on_a_node(|node| {
        let mut host = node.host();
        let started = std::time::Instant::now();
        for port in 10_000..15_000 {
            hold(&mut host, &format!("0.0.0.0:{port}/tcp")).unwrap();
            hold(&mut host, &format!("[::]:{port}/tcp")).unwrap();
        }
        println!("10,000 sockets in {:?}", started.elapsed());
        assert_refused("0.0.0.0:14999/tcp");
    });
}

/// SCTP is not made to be there.
#[test]
fn a_port_of_a_protocol_that_the_kernel_lacks_is_held_by_the_table() {
    on_a_node(|node| {
        let mut host = node.host();
        let has_sctp = std::path::Path::new("/proc/net/sctp").exists();
        hold(&mut host, "0.0.0.0:8080/sctp").unwrap();
        let held = host.observe(&Scope::Ports).unwrap().held;
        let by = if has_sctp {
            Holding::Socket
        } else {
            Holding::Table
        };
        assert_eq!(held[&claim("0.0.0.0:8080/sctp")].by, by);
        assert_eq!(std::path::Path::new("/proc/net/sctp").exists(), has_sctp);
    });
}

/// A program of someone else's; ends with the test.
struct Server(Child);

impl Server {
    #[expect(clippy::disallowed_methods, reason = "a process of someone else's")]
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
        // Ended already, where the test came so far.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
