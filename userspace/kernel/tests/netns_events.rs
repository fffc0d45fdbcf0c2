//! Changes of the node are noticed, however many at once, and only changes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::time::Duration;

use kernel::{Change, Changes};
use support::*;
use tokio::runtime::Builder;
use tokio::time::timeout;

/// Long enough for the kernel to say everything that it has to say.
const QUIET: Duration = Duration::from_millis(300);

fn on_a_runtime(test: impl AsyncFnOnce(&mut Changes) + Send + 'static) {
    on_a_node(|_| {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut changes = Changes::open().unwrap();
            settle(&mut changes).await;
            test(&mut changes).await;
        });
    });
}

/// Reads until nothing more comes.
async fn settle(changes: &mut Changes) {
    while let Ok(heard) = timeout(QUIET, changes.next()).await {
        heard.unwrap();
    }
}

async fn is_noticed(changes: &mut Changes, line: &str) -> bool {
    run(line);
    let heard = timeout(QUIET, changes.next()).await;
    settle(changes).await;
    matches!(heard, Ok(Ok(_)))
}

#[test]
fn a_change_of_the_nodes_addresses_is_told_from_others() {
    on_a_runtime(async |changes| {
        let mut told = Vec::new();
        for line in [
            "ip link add cbr0 type bridge",
            "ip addr add 10.88.0.1/24 dev cbr0",
            "ip addr add fe80::88/64 dev cbr0 nodad",
            "ip addr add fd88::1/64 dev cbr0 nodad",
            "ip addr del 10.88.0.1/24 dev cbr0",
        ] {
            run(line);
            told.push(timeout(QUIET, changes.next()).await.unwrap().unwrap());
            settle(changes).await;
        }
        let (address, other) = (Change::Address, Change::Other);
        assert_eq!(told, [other, address, other, address, address]);
    });
}

/// A link that has just got its first route is what pods' packets leave by from this moment on.
#[test]
fn the_first_route_by_a_link_is_told_from_others() {
    on_a_runtime(async |changes| {
        let mut told = Vec::new();
        for line in [
            "ip link add wan0 type bridge",
            "ip link set wan0 up",
            "ip route add 192.0.2.0/24 dev wan0",
            "ip -6 route add 2001:db8::/32 dev wan0",
            "ip link set wan0 down",
            "ip link set wan0 up",
            "ip -6 route replace default dev wan0",
            "ip route add 198.51.100.0/24 dev wan0",
        ] {
            run(line);
            let heard = timeout(QUIET, changes.next()).await.unwrap().unwrap();
            told.push((heard == Change::WayOut).then_some(line));
            settle(changes).await;
        }
        let firsts: Vec<&str> = told.into_iter().flatten().collect();
        assert_eq!(
            firsts,
            [
                "ip route add 192.0.2.0/24 dev wan0",
                "ip -6 route replace default dev wan0"
            ]
        );
    });
}

#[test]
fn changes_of_links_addresses_routes_and_rules_are_noticed() {
    on_a_runtime(async |changes| {
        for line in [
            "ip link add cbr0 type bridge",
            "ip link set cbr0 up",
            "ip addr add 10.88.0.1/24 dev cbr0",
            "ip addr add fd88::1/64 dev cbr0 nodad",
            "ip route add 192.0.2.0/24 via 10.88.0.9",
            "ip -6 route add 2001:db8::/32 via fd88::9",
            "ip rule add from 10.88.0.0/24 table 1000",
            "ip -6 rule add from fd88::/64 table 1000",
            "ip link del cbr0",
        ] {
            assert!(is_noticed(changes, line).await, "{line}");
        }
        let quiet = "ip neigh add 10.88.0.7 lladdr 02:00:00:00:00:07 dev lo";
        assert!(!is_noticed(changes, quiet).await);
    });
}

#[test]
fn more_changes_than_fit_the_socket_are_a_change() {
    on_a_runtime(async |changes| {
        run("ip link add cbr0 type bridge");
        run("ip link set cbr0 up");
        let line = |number: u32| {
            let (high, low) = (number >> 8, number & 255);
            format!("route add 10.{high}.{low}.0/24 dev cbr0")
        };
        let lines = (0..4000).map(line).collect::<Vec<_>>().join("\n");
        let directory = tempfile::tempdir().unwrap();
        let batch = directory.path().join("batch");
        std::fs::write(&batch, lines).unwrap();
        run(&format!("ip -batch {}", batch.display()));
        changes.next().await.unwrap();
        settle(changes).await;
        assert!(is_noticed(changes, "ip link del cbr0").await);
    });
}
