//! Routes to peers: both kernels do the same, and no other routes are touched.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use kernel::Kernel;
use kernel::fake::Fake;
use nix::errno::Errno;
use steps::{LinkKind, NextHop, NodeQuery, PEER_ROUTE_PROTOCOL, RouteChange, Step};
use support::*;

fn hop(gateway: &str) -> NextHop {
    NextHop {
        gateway: parse(gateway),
        link: link("d0"),
    }
}

fn change(prefix: &str, from: Option<&str>, to: Option<&str>) -> RouteChange {
    RouteChange {
        prefix: parse(prefix),
        from: from.map(hop),
        to: to.map(hop),
    }
}

/// Executes the changes, and returns the error and the routes of our protocol number.
fn outcome(kernel: &mut impl Kernel, changes: &[RouteChange]) -> (Option<Errno>, Vec<String>) {
    let error = errno(kernel.execute(&Step::ChangeRoutes(changes.to_vec())));
    let observed = kernel.observe(&NodeQuery::default()).unwrap();
    let ours = observed
        .routes
        .iter()
        .filter(|one| one.protocol == PEER_ROUTE_PROTOCOL);
    let mut routes: Vec<String> = ours
        .map(|one| format!("{} via {}", one.destination, one.gateway.unwrap()))
        .collect();
    routes.sort();
    (error, routes)
}

#[test]
fn routes_to_peers_are_added_replaced_and_removed_as_the_fake_kernel_does() {
    on_a_node(|node| {
        run("ip link add d0 type veth peer name d1");
        run("ip link set d1 up");
        run("ip address add 192.0.2.1/24 dev d0");
        run("ip address add 2001:db8::1/64 dev d0 nodad");
        run("ip link set d0 up");
        run("ip route add 10.7.0.0/24 via 192.0.2.7");
        let mut host = node.host();
        let mut fake = Fake::bare();
        fake.add_link("d0", LinkKind::Dummy);
        let added = [
            change("10.2.0.0/24", None, Some("192.0.2.2")),
            change("10.7.0.0/24", None, Some("192.0.2.8")),
            change("fd02::/64", None, Some("2001:db8::2")),
        ];
        let elsewhere = RouteChange {
            to: Some(NextHop {
                link: link("none"),
                ..hop("192.0.2.2")
            }),
            ..change("10.3.0.0/24", None, None)
        };
        let script = [
            added.to_vec(),
            // Again: nothing changes.
            added.to_vec(),
            // A route that is not known to be there is not replaced.
            vec![change("10.2.0.0/24", None, Some("192.0.2.3"))],
            vec![
                change("10.2.0.0/24", Some("192.0.2.2"), Some("192.0.2.3")),
                change("fd02::/64", Some("2001:db8::2"), Some("2001:db8::3")),
            ],
            // A failure stops none of the others.
            vec![elsewhere, change("10.4.0.0/24", None, Some("192.0.2.4"))],
            vec![
                change("10.7.0.0/24", Some("192.0.2.8"), None),
                // Of another next hop, and of no route.
                change("10.2.0.0/24", Some("192.0.2.9"), None),
                change("10.9.0.0/24", Some("192.0.2.9"), None),
            ],
        ];
        let mut errors = Vec::new();
        for changes in &script {
            let real = outcome(&mut host, changes);
            assert_eq!(real, outcome(&mut fake, changes), "{changes:?}");
            errors.push(real.0);
        }
        let expected = [
            None,
            None,
            Some(Errno::EEXIST),
            None,
            Some(Errno::ENODEV),
            None,
        ];
        assert_eq!(errors, expected);
        let left = run("ip route show 10.7.0.0/24");
        assert_eq!(left.trim(), "10.7.0.0/24 via 192.0.2.7 dev d0");
        let ours = run("ip route show 10.2.0.0/24");
        assert!(
            ours.contains("192.0.2.3") && ours.contains("proto 118 metric 2048"),
            "{ours}"
        );
    });
}

#[test]
fn thousands_of_routes_are_changed_by_one_step() {
    on_a_node(|node| {
        run("ip link add d0 type veth peer name d1");
        run("ip link set d1 up");
        run("ip address add 192.0.2.1/24 dev d0");
        run("ip link set d0 up");
        let mut host = node.host();
        let route = |number: u32| {
            let network = std::net::Ipv4Addr::from_bits(0x0a00_0000 | number << 8);
            change(&format!("{network}/24"), None, Some("192.0.2.2"))
        };
        let added: Vec<RouteChange> = (0..10_000).map(route).collect();
        assert_eq!(outcome(&mut host, &added).1.len(), 10_000);
        let step = Step::ChangeRoutes(added);
        host.execute(&step.undo().unwrap()).unwrap();
        assert_eq!(outcome(&mut host, &[]).1.len(), 0);
    });
}
