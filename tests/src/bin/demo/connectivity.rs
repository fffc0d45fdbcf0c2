//! Round-trip times, and the source address that each receiver sees.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use e2e::{GATEWAYS, Machine, NODE, WORLD, ping, ping_source, tcp_source, udp_source};

use crate::scenario::{ECHO, Scenario};
use crate::screen::Screen;

pub(crate) fn show(screen: &mut Screen, scenario: &Scenario) {
    screen.section("Round trips");
    let (client, server) = (scenario.client_pod(), scenario.server_pod());
    for family in 0..2 {
        let destinations = [
            ("pod-b", server.addresses[family]),
            ("its gateway", GATEWAYS[family]),
            ("world", WORLD[family]),
        ];
        for (name, address) in destinations {
            screen.line(
                format!("pod-a ⇄ {name} {address}"),
                round_trip(&client.machine, address),
            );
        }
    }
    screen.section("Source addresses");
    for family in 0..2 {
        among_pods(screen, scenario, family);
        outward(screen, scenario, family);
        inward(screen, scenario, family);
    }
}

fn round_trip(from: &Machine, to: IpAddr) -> Result<String> {
    let rtt = ping(from, to, 50)?;
    Ok(format!("{:.0?} mean, {:.0?} best of 50", rtt.mean, rtt.min))
}

fn among_pods(screen: &mut Screen, scenario: &Scenario, family: usize) {
    let (client, server) = (scenario.client_pod(), scenario.server_pod());
    let own = client.addresses[family];
    let echo = SocketAddr::new(server.addresses[family], ECHO);
    let seen = tcp_source(&client.machine, 0, echo);
    screen.line(
        "pod-a → pod-b, TCP",
        seen.and_then(|(seen, _)| is_seen("pod-a's", seen.ip(), own)),
    );
}

/// Shows that packets to the world have the node's address.
fn outward(screen: &mut Screen, scenario: &Scenario, family: usize) {
    let (caller, world, node) = (&scenario.client_pod().machine, WORLD[family], NODE[family]);
    let server = SocketAddr::new(world, ECHO);
    let seen = [
        (
            "TCP",
            tcp_source(caller, 0, server).map(|(seen, _)| seen.ip()),
        ),
        (
            "UDP",
            udp_source(caller, 0, server).map(|(seen, _)| seen.ip()),
        ),
        ("ping", ping_source(caller, &scenario.sandbox.world, world)),
    ];
    for (how, seen) in seen {
        let line = seen.and_then(|seen| is_seen("the node's", seen, node));
        screen.line(format!("pod-a → world, {how}"), line);
    }
}

/// Shows that packets to a hostport keep the client's address.
fn inward(screen: &mut Screen, scenario: &Scenario, family: usize) {
    let (world, node, client) = (&scenario.sandbox.world, NODE[family], WORLD[family]);
    let (web, dns) = (SocketAddr::new(node, 8080), SocketAddr::new(node, 5353));
    let by_tcp = tcp_source(world, 0, web).map(|(seen, _)| seen.ip());
    let by_udp = udp_source(world, 0, dns).map(|(seen, _)| seen.ip());
    for (server, how, seen) in [(web, "TCP", by_tcp), (dns, "UDP", by_udp)] {
        let line = seen.and_then(|seen| is_seen("the client's", seen, client));
        screen.line(format!("world → {server} → pod-c, {how}"), line);
    }
}

fn is_seen(whose: &str, seen: IpAddr, expected: IpAddr) -> Result<String> {
    ensure!(seen == expected, "source {seen}, expected {expected}");
    Ok(format!("source is {whose}, {seen}"))
}
