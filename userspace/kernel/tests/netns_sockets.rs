//! Hostports that processes of the node dial, and ports that they cannot have, by programs on a cgroup.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd as _;

use aya::programs::links::{FdLink, PinnedLink};
use kernel::Kernel as _;
use model::{Attachment, Protocol};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt,
};
use planner::{SocketHook, SocketLink, Step};
use support::hostports::*;
use support::traffic::*;
use support::*;

/// A node with a served hostport, whose processes are this one's threads.
fn on_a_served_node(
    test: impl FnOnce(&Node, &InCgroup, &mut Planned, &Attachment) + Send + 'static,
) {
    on_a_node(|node| {
        let cgroup = InCgroup::enter();
        let mut planned = Planned::new(node, Some(cgroup.path()));
        assert!(planned.host.unavailable().is_empty());
        let server = server(&node.add_netns("server"));
        planned.add(&server);
        let _serving = Server::start(&server.netns, POD_PORT);
        test(node, &cgroup, &mut planned, &server);
    });
}

/// By whom the node dials, and whom a pod of the first network sees then.
const DIALLED: [(&str, &str); 7] = [
    ("127.0.0.1", GATEWAY[0]),
    ("127.1.2.3", GATEWAY[0]),
    ("::1", GATEWAY[1]),
    (NODE[0], GATEWAY[0]),
    (NODE[1], GATEWAY[1]),
    (GATEWAY[0], GATEWAY[0]),
    ("::ffff:127.0.0.1", GATEWAY[0]),
];

#[test]
fn processes_of_the_node_reach_a_hostport_and_see_what_they_dialled() {
    on_a_served_node(|_, _, planned, _| {
        for (address, client) in DIALLED {
            let server = at(address, HOSTPORT);
            let expected = Seen {
                client: parse(client),
                server,
            };
            for ask in [ask_tcp, ask_udp, ask_connected_udp] {
                assert_eq!(ask(server).unwrap(), expected, "{server}");
            }
        }
        let unspecified = ask_tcp(at("0.0.0.0", HOSTPORT)).unwrap();
        assert_eq!(unspecified.server, at("127.0.0.1", HOSTPORT));
        let drops = planned.host.measure().unwrap().drops;
        assert!(drops.is_empty(), "{drops:?}");
    });
}

#[test]
fn other_ports_and_other_addresses_are_left_alone() {
    on_a_served_node(|node, _, planned, server| {
        for address in ["127.0.0.1", "::1", NODE[0], NODE[1]] {
            let error = ask_tcp(at(address, HOSTPORT + 1)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{address}");
        }
        // A port of the same number, of somebody else.
        let other = attachment(&node.add_netns("other"), 3);
        planned.add(&other);
        let _serving = Server::start(&other.netns, HOSTPORT);
        let to = SocketAddr::new(address_of(&other, 0), HOSTPORT);
        assert_eq!(ask_tcp(to).unwrap().server, to);
        assert_ne!(address_of(server, 0), to.ip());
    });
}

#[test]
fn sockets_of_other_namespaces_are_left_alone() {
    on_a_served_node(|node, _, planned, _| {
        let client = attachment(&node.add_netns("client"), 3);
        planned.add(&client);
        for to in [at("127.0.0.1", HOSTPORT), at("::1", HOSTPORT)] {
            let error = in_pod(&client.netns, || ask_tcp(to)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            let bound = in_pod(&client.netns, || TcpListener::bind(to).map(drop));
            bound.unwrap();
        }
        // By the node's address it comes to the pod, but as a packet.
        let seen = in_pod(&client.netns, || ask_tcp(at(NODE[0], HOSTPORT))).unwrap();
        assert_eq!(seen.client, address_of(&client, 0));
    });
}

#[test]
fn an_address_of_its_own_wins_over_that_of_all() {
    on_a_served_node(|node, _, planned, _| {
        let mut other = attachment(&node.add_netns("other"), 3);
        let own = |address| mapping(HOSTPORT, Protocol::Tcp, Some(address));
        other.port_mappings = vec![own("127.0.0.1"), own(NODE[1])];
        planned.add(&other);
        for (address, refused) in [
            ("127.0.0.1", true),
            (NODE[1], true),
            ("127.0.0.2", false),
            ("::1", false),
            (NODE[0], false),
        ] {
            // The other pod serves nothing.
            let asked = ask_tcp(at(address, HOSTPORT));
            assert_eq!(asked.is_err(), refused, "{address}");
        }
    });
}

#[test]
fn a_socket_that_is_not_connected_reaches_the_next_owner() {
    on_a_served_node(|node, _, planned, server| {
        let to = at("127.0.0.1", HOSTPORT);
        let socket = Datagrams::new(to).unwrap();
        socket.ask(to, 5).unwrap();
        let mut gone = server.clone();
        gone.generation = 7;
        planned.write(&gone);
        let mut next = attachment(&node.add_netns("next"), 5);
        next.port_mappings = vec![mapping(HOSTPORT, Protocol::Udp, None)];
        planned.add(&next);
        let _serving = Server::start(&next.netns, POD_PORT);
        assert_eq!(socket.ask(to, 5).unwrap().server, to);
    });
}

#[test]
fn a_hostport_whose_pod_is_gone_leads_nowhere() {
    on_a_served_node(|_, _, planned, server| {
        let mut next = server.clone();
        next.generation = 7;
        next.port_mappings.clear();
        planned.write(&next);
        let error = ask_tcp(at("127.0.0.1", HOSTPORT)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}

fn bind_tcp(address: &str, port: u16) -> io::Result<()> {
    TcpListener::bind(at(address, port)).map(drop)
}

fn bind_udp(address: &str, port: u16) -> io::Result<()> {
    UdpSocket::bind(at(address, port)).map(drop)
}

/// behaviours K31, F33.
#[test]
fn nobody_binds_to_a_hostport_but_its_holder() {
    on_a_served_node(|_, _, planned, server| {
        for address in ["0.0.0.0", "::", "127.0.0.1", "::1", NODE[0], NODE[1]] {
            for bind in [bind_tcp, bind_udp] {
                let error = bind(address, HOSTPORT).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::AddrInUse, "{address}");
                bind(address, 0).unwrap();
                bind(address, HOSTPORT + 1).unwrap();
            }
        }
        let holder = socket(
            AddressFamily::Inet,
            SockType::Stream,
            SockFlag::SOCK_CLOEXEC,
            None,
        )
        .unwrap();
        setsockopt(&holder.as_fd(), sockopt::Mark, &abi::HOLDER_MARK).unwrap();
        let address = SockaddrIn::new(0, 0, 0, 0, HOSTPORT);
        bind(std::os::fd::AsRawFd::as_raw_fd(&holder), &address).unwrap();
        drop(holder);
        let mut gone = server.clone();
        gone.generation = 7;
        planned.write(&gone);
        planned.write(&{
            let mut free = gone.clone();
            free.port_mappings.clear();
            free.generation = 8;
            free
        });
        bind_tcp("0.0.0.0", HOSTPORT).unwrap();
    });
}

#[test]
fn a_port_of_one_address_is_claimed_there_only() {
    on_a_served_node(|node, _, planned, _| {
        let mut other = attachment(&node.add_netns("other"), 3);
        other.port_mappings = vec![mapping(9090, Protocol::Tcp, Some(NODE[0]))];
        planned.add(&other);
        for (address, free) in [
            (NODE[0], false),
            ("0.0.0.0", false),
            ("::", false),
            ("127.0.0.1", true),
            ("::1", true),
            (NODE[1], true),
        ] {
            assert_eq!(bind_tcp(address, 9090).is_ok(), free, "{address}");
            bind_udp(address, 9090).unwrap();
        }
    });
}

/// Of each pinned link of the cgroup: its id, and its program's.
fn links(node: &Node) -> Vec<(u32, u32)> {
    let pin = |hook: SocketHook| node.bpffs().join(format!("v1/links/cgroup-{hook}"));
    let pinned = SocketHook::ALL
        .map(pin)
        .into_iter()
        .filter_map(|pin| PinnedLink::from_pin(pin).ok());
    pinned
        .map(|pinned| FdLink::from(pinned).info().unwrap())
        .map(|info| (info.id(), info.program_id()))
        .collect()
}

#[test]
fn the_next_agent_puts_its_programs_into_the_same_links() {
    on_a_node(|node| {
        let cgroup = InCgroup::enter();
        let all = BTreeSet::from(SocketHook::ALL);
        let mut planned = Planned::new(node, Some(cgroup.path()));
        assert_eq!(links(node), [], "nobody has a port or a limit");
        planned.ask_sockets(&all);
        let first = links(node);
        assert_eq!(first.len(), all.len());
        drop(planned);
        assert_eq!(links(node), first, "they outlive the agent");
        let mut planned = Planned::before_its_first_look(node, Some(cgroup.path()));
        assert_eq!(
            seen(&mut planned),
            [SocketLink::Outdated; SocketHook::ALL.len()]
        );
        planned.ask_sockets(&all);
        assert_eq!(
            seen(&mut planned),
            [SocketLink::Attached; SocketHook::ALL.len()]
        );
        for ((link, program), (same, new)) in first.into_iter().zip(links(node)) {
            assert!(link == same && program != new);
        }
        let detach = Step::DetachSockets { hooks: all };
        execute(&mut planned.host, &[detach.clone(), detach]);
        assert_eq!(links(node), []);
        assert_eq!(
            seen(&mut planned),
            [SocketLink::Absent; SocketHook::ALL.len()]
        );
    });
}

#[test]
fn the_next_agent_takes_away_what_nobody_needs() {
    on_a_node(|node| {
        let cgroup = InCgroup::enter();
        let mut planned = Planned::new(node, Some(cgroup.path()));
        planned.add(&server(&node.add_netns("server")));
        let without_limits = SocketHook::ALL.len() - 1;
        assert_eq!(links(node).len(), without_limits);
        planned.settle();
        assert_eq!(links(node).len(), without_limits, "its own stay");
        drop(planned);
        drop(Planned::again(node, Some(cgroup.path())));
        assert_eq!(links(node), []);
    });
}

fn seen(planned: &mut Planned) -> Vec<SocketLink> {
    let links = observe(&mut planned.host).socket_hooks;
    links.into_values().collect()
}
