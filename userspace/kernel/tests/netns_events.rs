//! Changes of the node are notified, however many at once, and nothing else is.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::time::Duration;

use kernel::{Change, Changes};
use support::skip::patient;
use support::*;
use tokio::runtime::Builder;
use tokio::time::timeout;

/// Time after which an idle kernel has sent all notifications.
const QUIET: Duration = Duration::from_millis(300);

fn on_a_runtime(test: impl AsyncFnOnce(&mut Changes) + Send + 'static) {
    on_a_node(|_| {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut changes = Changes::open().unwrap();
            drain(&mut changes, QUIET).await;
            test(&mut changes).await;
        });
    });
}

/// Reads until there has been no notification for the time `quiet`.
async fn drain(changes: &mut Changes, quiet: Duration) {
    while let Ok(received) = timeout(quiet, changes.next()).await {
        received.unwrap();
    }
}

async fn is_notified(changes: &mut Changes, line: &str) -> bool {
    run(line);
    let received = timeout(patient(QUIET), changes.next()).await;
    drain(changes, QUIET).await;
    matches!(received, Ok(Ok(_)))
}

#[test]
fn an_address_change_of_the_node_has_its_own_kind() {
    on_a_runtime(async |changes| {
        let mut kinds = Vec::new();
        for line in [
            "ip link add cbr0 type bridge",
            "ip addr add 10.88.0.1/24 dev cbr0",
            "ip addr add fe80::88/64 dev cbr0 nodad",
            "ip addr add fd88::1/64 dev cbr0 nodad",
            "ip addr del 10.88.0.1/24 dev cbr0",
        ] {
            run(line);
            kinds.push(
                timeout(patient(QUIET), changes.next())
                    .await
                    .unwrap()
                    .unwrap(),
            );
            drain(changes, QUIET).await;
        }
        let (address, other) = (Change::Address, Change::Other);
        assert_eq!(kinds, [other, address, other, address, address]);
    });
}

/// Pods' packets can leave through a link as soon as it has its first route.
#[test]
fn the_first_route_through_a_link_has_its_own_kind() {
    on_a_runtime(async |changes| {
        let mut kinds = Vec::new();
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
            let received = timeout(patient(QUIET), changes.next())
                .await
                .unwrap()
                .unwrap();
            kinds.push((received == Change::EgressRoute).then_some(line));
            drain(changes, QUIET).await;
        }
        let firsts: Vec<&str> = kinds.into_iter().flatten().collect();
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
fn changes_of_links_addresses_routes_and_rules_are_notified() {
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
            assert!(is_notified(changes, line).await, "{line}");
        }
        // On a busy machine, threads of the kernel may send their notifications late.
        drain(changes, patient(QUIET)).await;
        let quiet = "ip neigh add 10.88.0.7 lladdr 02:00:00:00:00:07 dev lo";
        assert!(!is_notified(changes, quiet).await);
    });
}

#[test]
fn lost_notifications_count_as_a_change() {
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
        drain(changes, QUIET).await;
        assert!(is_notified(changes, "ip link del cbr0").await);
    });
}
