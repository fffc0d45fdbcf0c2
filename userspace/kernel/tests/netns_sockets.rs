//! Cgroup programs: hostports that processes of the node connect to, and binds that are refused.

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
use steps::{SocketHook, SocketHookState, Step};
use support::hostports::*;
use support::traffic::*;
use support::*;

/// Runs a test on a node with a hostport and its server; the node's processes are threads of this
/// one.
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

/// Address that a process of the node connects to, and the client address that the pod sees.
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
fn processes_of_the_node_reach_a_hostport_and_see_the_dialled_address() {
    on_a_served_node(|_, _, planned, _| {
        for (address, client) in DIALLED {
            let server = at(address, HOSTPORT);
            let expected = Seen {
                client: parse(client),
                server,
            };
            for request in [request_tcp, request_udp, request_connected_udp] {
                assert_eq!(request(server).unwrap(), expected, "{server}");
            }
        }
        let unspecified = request_tcp(at("0.0.0.0", HOSTPORT)).unwrap();
        assert_eq!(unspecified.server, at("127.0.0.1", HOSTPORT));
        let drops = planned.drops();
        assert!(drops.is_empty(), "{drops:?}");
    });
}

#[test]
fn connects_to_other_ports_and_addresses_are_not_translated() {
    on_a_served_node(|node, _, planned, server| {
        for address in ["127.0.0.1", "::1", NODE[0], NODE[1]] {
            let error = request_tcp(at(address, HOSTPORT + 1)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{address}");
        }
        // The same port number at another pod's address.
        let other = attachment(&node.add_netns("other"), 3);
        planned.add(&other);
        let _serving = Server::start(&other.netns, HOSTPORT);
        let to = SocketAddr::new(address_of(&other, 0), HOSTPORT);
        assert_eq!(request_tcp(to).unwrap().server, to);
        assert_ne!(address_of(server, 0), to.ip());
    });
}

#[test]
fn cgroup_programs_ignore_sockets_of_other_namespaces() {
    on_a_served_node(|node, _, planned, _| {
        let client = attachment(&node.add_netns("client"), 3);
        planned.add(&client);
        for to in [at("127.0.0.1", HOSTPORT), at("::1", HOSTPORT)] {
            let error = in_pod(&client.netns, || request_tcp(to)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            let bound = in_pod(&client.netns, || TcpListener::bind(to).map(drop));
            bound.unwrap();
        }
        // At the node's address the hostport is reached by packets, which the datapath translates.
        let seen = in_pod(&client.netns, || request_tcp(at(NODE[0], HOSTPORT))).unwrap();
        assert_eq!(seen.client, address_of(&client, 0));
    });
}

#[test]
fn a_hostport_of_one_address_wins_over_the_wildcard() {
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
            // The other pod has no server.
            let result = request_tcp(at(address, HOSTPORT));
            assert_eq!(result.is_err(), refused, "{address}");
        }
    });
}

#[test]
fn an_unconnected_udp_socket_reaches_the_next_hostport_owner() {
    on_a_served_node(|node, _, planned, server| {
        let to = at("127.0.0.1", HOSTPORT);
        let socket = Datagrams::new(to).unwrap();
        socket.request(to, 5).unwrap();
        let mut gone = server.clone();
        gone.generation = 7;
        planned.write(&gone);
        let mut next = attachment(&node.add_netns("next"), 5);
        next.port_mappings = vec![mapping(HOSTPORT, Protocol::Udp, None)];
        planned.add(&next);
        let _serving = Server::start(&next.netns, POD_PORT);
        assert_eq!(socket.request(to, 5).unwrap().server, to);
    });
}

#[test]
fn a_hostport_whose_pod_is_gone_is_refused() {
    on_a_served_node(|_, _, planned, server| {
        let mut next = server.clone();
        next.generation = 7;
        next.port_mappings.clear();
        planned.write(&next);
        let error = request_tcp(at("127.0.0.1", HOSTPORT)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}

fn bind_tcp(address: &str, port: u16) -> io::Result<()> {
    TcpListener::bind(at(address, port)).map(drop)
}

fn bind_udp(address: &str, port: u16) -> io::Result<()> {
    UdpSocket::bind(at(address, port)).map(drop)
}

/// Kind of the error of `bind` to a hostport.
fn refusal() -> ErrorKind {
    if kernel::helper_constants().contains(&("HAS_SET_RETVAL", 1)) {
        ErrorKind::AddrInUse
    } else {
        ErrorKind::PermissionDenied
    }
}

/// behaviours K31, F33.
#[test]
fn bind_to_a_hostport_is_refused_without_the_holder_mark() {
    on_a_served_node(|_, _, planned, server| {
        for address in ["0.0.0.0", "::", "127.0.0.1", "::1", NODE[0], NODE[1]] {
            for bind in [bind_tcp, bind_udp] {
                let error = bind(address, HOSTPORT).unwrap_err();
                assert_eq!(error.kind(), refusal(), "{address}");
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

/// behaviours K31, F33.
#[test]
fn bind_to_a_hostport_is_allowed_to_the_process_that_it_was_left_to() {
    on_a_served_node(|_, _, planned, server| {
        let leave = |planned: &mut Planned, process| {
            let reservations = planner::attachment_reservations(server);
            for step in planner::plan_leave_ports(server, reservations, process).steps() {
                planned.host.execute(step).unwrap();
            }
        };
        leave(planned, std::process::id() + 1);
        for address in ["0.0.0.0", "::", "127.0.0.1", NODE[1]] {
            let error = bind_tcp(address, HOSTPORT).unwrap_err();
            assert_eq!(error.kind(), refusal(), "{address}");
        }
        leave(planned, std::process::id());
        for address in ["0.0.0.0", "::", "127.0.0.1", "::1", NODE[0], NODE[1]] {
            for bind in [bind_tcp, bind_udp] {
                bind(address, HOSTPORT).unwrap();
            }
        }
        // Without a socket of the process, the agent takes the port again.
        let generation = server.generation;
        for reservation in planner::attachment_reservations(server) {
            let reserve = Step::ReservePort {
                reservation,
                generation,
            };
            planned.host.execute(&reserve).unwrap();
        }
        bind_tcp("0.0.0.0", HOSTPORT).unwrap_err();
    });
}

#[test]
fn a_hostport_of_one_address_is_reserved_at_that_address_only() {
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

/// Returns the id and the program's id of each pinned link of the cgroup.
fn links(node: &Node) -> Vec<(u32, u32)> {
    let pin = |hook: SocketHook| {
        node.bpffs()
            .join(format!("v{}/links/cgroup-{hook}", abi::ABI_VERSION))
    };
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
fn the_next_agent_replaces_the_programs_of_the_cgroup_links() {
    on_a_node(|node| {
        let cgroup = InCgroup::enter();
        let all = BTreeSet::from(SocketHook::ALL);
        let mut planned = Planned::new(node, Some(cgroup.path()));
        assert_eq!(links(node), [], "no pod has a hostport or a limit");
        planned.attach_socket_hooks(&all);
        let first = links(node);
        assert_eq!(first.len(), all.len());
        drop(planned);
        assert_eq!(links(node), first, "the links survive the agent");
        let mut planned = Planned::opened(node, Some(cgroup.path()));
        assert_eq!(
            seen(&mut planned),
            [SocketHookState::Outdated; SocketHook::ALL.len()]
        );
        planned.attach_socket_hooks(&all);
        assert_eq!(
            seen(&mut planned),
            [SocketHookState::Attached; SocketHook::ALL.len()]
        );
        for ((link, program), (same, new)) in first.into_iter().zip(links(node)) {
            assert!(link == same && program != new);
        }
        let detach = Step::DetachSocketHooks { hooks: all };
        execute(&mut planned.host, &[detach.clone(), detach]);
        assert_eq!(links(node), []);
        assert_eq!(
            seen(&mut planned),
            [SocketHookState::Absent; SocketHook::ALL.len()]
        );
    });
}

#[test]
fn the_next_agent_detaches_cgroup_programs_that_no_pod_needs() {
    on_a_node(|node| {
        let cgroup = InCgroup::enter();
        let mut planned = Planned::new(node, Some(cgroup.path()));
        planned.add(&server(&node.add_netns("server")));
        let without_limits = SocketHook::ALL.len() - 1;
        assert_eq!(links(node).len(), without_limits);
        planned.converge();
        assert_eq!(
            links(node).len(),
            without_limits,
            "an agent keeps the programs that it attached"
        );
        drop(planned);
        drop(Planned::reopened(node, Some(cgroup.path())));
        assert_eq!(links(node), []);
    });
}

fn seen(planned: &mut Planned) -> Vec<SocketHookState> {
    let links = observe(&mut planned.host).socket_hooks;
    links.into_values().collect()
}
