//! What the node's conditions are decided from: routes of sample packets, IPsec policies, cgroups;
//! and sockets that refuse connections which the datapath does not see.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use kernel::fake::Fake;
use kernel::{Changes, Host, HostOptions, Kernel, NodeCgroup};
use model::Protocol;
use steps::{
    CheckFacts, CheckQuery, IpsecDirection, LinkKind, PortReservation, RouteAnswer, RouteQuery,
    Step,
};
use support::skip::patient;
use support::*;
use tokio::runtime::Builder;
use tokio::time::timeout;

const POD: &str = "10.88.0.5";
const WORLD: &str = "203.0.113.1";

fn facts(kernel: &mut impl Kernel, query: &CheckQuery) -> CheckFacts {
    kernel.observe(query).unwrap()
}

fn sent(to: &str) -> RouteQuery {
    let to = parse(to);
    RouteQuery { to, received: None }
}

fn received(from: &str, by: &str, to: &str) -> RouteQuery {
    RouteQuery {
        received: Some((parse(from), parse(by))),
        ..sent(to)
    }
}

/// The sample packets: to a pod, of a pod, answers by either link, to the node.
fn queries() -> BTreeSet<RouteQuery> {
    [
        sent(POD),
        sent("10.88.0.200"),
        sent(WORLD),
        sent("192.0.2.10"),
        received(POD, "cbr0", WORLD),
        received(WORLD, "up0", POD),
        received(WORLD, "up1", POD),
        received(WORLD, "up0", "192.0.2.10"),
        received(WORLD, "up1", "192.0.2.10"),
    ]
    .into()
}

/// Returns the answers with names of links.
fn named(kernel: &mut impl Kernel) -> BTreeMap<RouteQuery, String> {
    let links = observe(kernel).links;
    let name = |answer: &RouteAnswer| match answer {
        RouteAnswer::Leaves(index) => {
            let found = links.iter().find(|(_, link)| link.index == *index);
            found.map_or("gone", |(name, _)| name.as_str()).to_owned()
        }
        RouteAnswer::Local => "local".to_owned(),
        RouteAnswer::Unreachable => "unreachable".to_owned(),
    };
    let query = CheckQuery {
        routes: queries(),
        ..CheckQuery::default()
    };
    let answers = facts(kernel, &query).routes;
    assert_eq!(answers.len(), queries().len());
    answers
        .iter()
        .map(|(query, answer)| (query.clone(), name(answer)))
        .collect()
}

/// A change of the node, as a command and on the in-memory kernel.
type Change = (&'static str, fn(&Fake));

const CHANGES: [Change; 9] = [
    ("sysctl -qw net.ipv4.conf.up1.rp_filter=1", |fake| {
        fake.set_sysctl("net/ipv4/conf/up1/rp_filter", "1");
    }),
    ("sysctl -qw net.ipv4.conf.up1.rp_filter=2", |fake| {
        fake.set_sysctl("net/ipv4/conf/up1/rp_filter", "2");
    }),
    ("sysctl -qw net.ipv4.conf.all.rp_filter=1", |fake| {
        fake.set_sysctl("net/ipv4/conf/all/rp_filter", "1");
    }),
    ("sysctl -qw net.ipv4.conf.up1.rp_filter=0", |fake| {
        fake.set_sysctl("net/ipv4/conf/up1/rp_filter", "0");
    }),
    ("ip route add 10.88.0.192/26 dev up1", |fake| {
        fake.add_route("10.88.0.192/26", None, "up1");
    }),
    ("ip route add 10.88.0.4/30 dev up1", |fake| {
        fake.add_route("10.88.0.4/30", None, "up1");
    }),
    ("sysctl -qw net.ipv4.conf.cbr0.forwarding=0", |fake| {
        fake.set_sysctl("net/ipv4/conf/cbr0/forwarding", "0");
    }),
    ("sysctl -qw net.ipv4.conf.up0.forwarding=0", |fake| {
        fake.set_sysctl("net/ipv4/conf/up0/forwarding", "0");
    }),
    ("sysctl -qw net.ipv4.ip_forward=0", |fake| {
        fake.set_sysctl("net/ipv4/ip_forward", "0");
    }),
];

fn connect_node() -> Fake {
    let fake = Fake::bare();
    for (name, kind, address) in [
        ("up0", LinkKind::Ethernet, "192.0.2.10/24"),
        ("up1", LinkKind::Ethernet, "198.51.100.10/24"),
        ("cbr0", LinkKind::Bridge, "10.88.0.1/24"),
    ] {
        if kind == LinkKind::Bridge {
            run(&format!("ip link add {name} type bridge"));
        } else {
            run(&format!(
                "ip link add {name} type veth peer name peer-{name}"
            ));
            run(&format!("ip link set peer-{name} up"));
        }
        run(&format!("ip addr add {address} dev {name}"));
        run(&format!("ip link set {name} up"));
        run(&format!("sysctl -qw net.ipv4.conf.{name}.rp_filter=0"));
        fake.add_link(name, kind);
        fake.add_address(name, address);
    }
    run("ip route add default via 192.0.2.1");
    fake.add_route("0.0.0.0/0", Some("192.0.2.1"), "up0");
    run("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.ip_forward=1");
    fake.set_sysctl("net/ipv4/ip_forward", "1");
    fake
}

/// Reverse path filters, narrower routes and links that do not forward, one after the other.
#[test]
fn routes_of_sample_packets_agree_with_the_in_memory_kernel() {
    on_a_node(|node| {
        let mut host = node.host();
        let mut fake = connect_node();
        assert_eq!(named(&mut host), named(&mut fake));
        for (line, change) in CHANGES {
            run(line);
            change(&fake);
            assert_eq!(named(&mut host), named(&mut fake), "after {line}");
        }
    });
}

#[test]
fn packets_that_a_filter_or_a_route_drops_are_unreachable() {
    on_a_node(|node| {
        let mut host = node.host();
        connect_node();
        run("sysctl -qw net.ipv4.conf.up1.rp_filter=1");
        run("ip route add blackhole 10.88.0.16/28");
        run("ip route add unreachable 10.88.0.32/28");
        run("ip route add prohibit 10.88.0.48/28");
        run("ip -6 addr add fd88::1/64 dev cbr0 nodad");
        let six = "fd88::7";
        let dropping = ["10.88.0.17", "10.88.0.33", "10.88.0.49", "fd99::1"];
        let query = CheckQuery {
            routes: dropping
                .into_iter()
                .map(sent)
                .chain([
                    sent(six),
                    received(WORLD, "up1", POD),
                    received(WORLD, "none", POD),
                ])
                .collect(),
            ..CheckQuery::default()
        };
        let answers = facts(&mut host, &query).routes;
        for to in dropping {
            assert_eq!(answers[&sent(to)], RouteAnswer::Unreachable, "{to}");
        }
        let cbr0 = observe(&mut host).links[&link("cbr0")].index;
        assert_eq!(answers[&sent(six)], RouteAnswer::Leaves(cbr0));
        assert_eq!(
            answers[&received(WORLD, "up1", POD)],
            RouteAnswer::Unreachable
        );
        assert!(!answers.contains_key(&received(WORLD, "none", POD)));
    });
}

#[test]
fn ipsec_policies_and_defaults_are_listed() {
    on_a_node(|node| {
        let mut host = node.host();
        let ipsec = |host: &mut Host| facts(host, &CheckQuery::default()).ipsec;
        assert!(ipsec(&mut host).policies.is_empty());
        let add = "ip xfrm policy add src 10.88.0.0/24 dst 0.0.0.0/0 dir fwd priority 7";
        if !succeeds(&format!("{add} action block")) {
            skip::lacks("this kernel has no IPsec");
            return;
        }
        run(
            "ip xfrm policy add src fd88::/64 dst ::/0 proto udp dir out tmpl src fd88::1 dst fd99::1 proto esp mode tunnel",
        );
        let found = ipsec(&mut host).policies;
        assert_eq!(found.len(), 2, "{found:?}");
        let block = found.iter().find(|one| one.blocks).unwrap();
        assert_eq!(block.direction, IpsecDirection::Forward);
        assert_eq!(block.source.to_string(), "10.88.0.0/24");
        assert_eq!(block.destination.to_string(), "0.0.0.0/0");
        assert_eq!(
            (block.priority, block.transforms, block.is_narrowed),
            (7, false, false)
        );
        let tunnel = found.iter().find(|one| !one.blocks).unwrap();
        assert_eq!(tunnel.direction, IpsecDirection::Out);
        assert_eq!(tunnel.source.to_string(), "fd88::/64");
        assert!(tunnel.transforms && tunnel.is_narrowed);
        if succeeds("ip xfrm policy setdefault in accept fwd block out accept") {
            assert_eq!(ipsec(&mut host).blocked, [IpsecDirection::Forward]);
        }
    });
}

#[test]
fn a_directory_that_is_no_cgroup_is_an_error_at_the_start() {
    on_a_node(|node| {
        let options = HostOptions {
            cgroup: Some(NodeCgroup {
                path: node.path().to_owned(),
                is_configured: true,
            }),
            ..node.options()
        };
        let error = chain(&Host::open(&options).err().unwrap());
        assert!(
            error.contains("no directory of a cgroup2 file system"),
            "{error}"
        );
        assert!(error.contains(node.path().to_str().unwrap()), "{error}");
    });
}

#[test]
fn processes_of_the_node_outside_of_the_cgroup_are_named() {
    on_a_node(|node| {
        let Some(root) = kernel::cgroup_root().unwrap() else {
            skip::lacks("no cgroup2 is mounted");
            return;
        };
        let coverage = |host: &mut Host| facts(host, &CheckQuery::default()).cgroup.unwrap();
        let is_real_root = !root.join("cgroup.type").exists();
        let whole = coverage(&mut node.host_below(Some(&root)));
        assert_eq!(whole.is_root, is_real_root);
        let part = root.join(format!("viaduct-checks-{}", std::process::id()));
        std::fs::create_dir(&part).unwrap();
        let mut host = node.host_below(Some(&part));
        assert!(!coverage(&mut host).is_root);
        assert!(
            coverage(&mut host).outside.is_empty(),
            "there is no other process"
        );
        let mut process = start("sleep 1000");
        let deadline = Instant::now() + patient(Duration::from_secs(20));
        while coverage(&mut host).outside.is_empty() {
            assert!(Instant::now() < deadline, "the process is not found");
            std::thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(coverage(&mut host).outside, ["sleep".to_owned()].into());
        std::fs::write(part.join("cgroup.procs"), process.id().to_string()).unwrap();
        assert!(coverage(&mut host).outside.is_empty(), "it is inside");
        process.kill().unwrap();
        process.wait().unwrap();
        drop(host);
        std::fs::remove_dir(&part).unwrap();
    });
}

/// Without the cgroup programs, as for a process in another cgroup.
#[test]
fn a_reserved_port_refuses_connections_and_datagrams() {
    on_a_node(|node| {
        let mut host = node.host();
        let reserve = |address: &str, protocol| PortReservation {
            address: parse(address),
            port: 8080,
            protocol,
        };
        for address in ["0.0.0.0", "::"] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let reservation = reserve(address, protocol);
                execute(
                    &mut host,
                    &[Step::ReservePort {
                        reservation,
                        generation: 1,
                    }],
                );
            }
        }
        for address in ["127.0.0.1", "::1"] {
            let address: IpAddr = parse(address);
            let refused = TcpStream::connect((address, 8080)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{address}");
            let client = UdpSocket::bind((address, 0)).unwrap();
            client.connect((address, 8080)).unwrap();
            client
                .set_read_timeout(Some(patient(Duration::from_secs(5))))
                .unwrap();
            client.send(b"request").unwrap();
            let refused = client.recv(&mut [0; 16]).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{address}");
            let bound = std::net::TcpListener::bind((address, 8080)).unwrap_err();
            assert_eq!(bound.kind(), ErrorKind::AddrInUse, "{address}");
        }
    });
}

#[test]
fn a_changed_reverse_path_filter_is_notified() {
    on_a_node(|_| {
        run("ip link add up0 type veth peer name peer-up0");
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut changes = Changes::open().unwrap();
            let quiet = Duration::from_millis(300);
            while timeout(quiet, changes.next()).await.is_ok() {}
            for value in [1, 0] {
                run(&format!("sysctl -qw net.ipv4.conf.up0.rp_filter={value}"));
                timeout(patient(quiet), changes.next())
                    .await
                    .unwrap()
                    .unwrap();
            }
            run("sysctl -qw net.ipv4.conf.up0.forwarding=1");
            timeout(patient(quiet), changes.next())
                .await
                .unwrap()
                .unwrap();
        });
    });
}
