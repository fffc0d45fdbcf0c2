//! Who reaches whom, how fast, and as whom.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use e2e::{GATEWAYS, Machine, NODE, WORLD, ping, ping_source, tcp_source, udp_source};

use crate::cast::{Cast, ECHO};
use crate::screen::Screen;

pub(crate) fn show(screen: &mut Screen, cast: &Cast) {
    screen.section("Round trips");
    let (client, server) = (cast.caller(), cast.callee());
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
    screen.section("Who is seen by whom");
    for family in 0..2 {
        among_pods(screen, cast, family);
        outward(screen, cast, family);
        inward(screen, cast, family);
    }
}

fn round_trip(from: &Machine, to: IpAddr) -> Result<String> {
    let rtt = ping(from, to, 50)?;
    Ok(format!("{:.0?} mean, {:.0?} best of 50", rtt.mean, rtt.min))
}

fn among_pods(screen: &mut Screen, cast: &Cast, family: usize) {
    let (client, server) = (cast.caller(), cast.callee());
    let own = client.addresses[family];
    let echo = SocketAddr::new(server.addresses[family], ECHO);
    let seen = tcp_source(&client.machine, 0, echo);
    screen.line(
        "pod-a → pod-b, TCP",
        seen.and_then(|(seen, _)| is_seen("pod-a itself", seen.ip(), own)),
    );
}

/// What leaves the node carries the node's address.
fn outward(screen: &mut Screen, cast: &Cast, family: usize) {
    let (caller, world, node) = (&cast.caller().machine, WORLD[family], NODE[family]);
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
        ("ping", ping_source(caller, &cast.sandbox.world, world)),
    ];
    for (how, seen) in seen {
        let line = seen.and_then(|seen| is_seen("the node", seen, node));
        screen.line(format!("pod-a → world, {how}"), line);
    }
}

/// What comes in by a published port keeps the caller's address.
fn inward(screen: &mut Screen, cast: &Cast, family: usize) {
    let (world, node, client) = (&cast.sandbox.world, NODE[family], WORLD[family]);
    let (web, dns) = (SocketAddr::new(node, 8080), SocketAddr::new(node, 5353));
    let by_tcp = tcp_source(world, 0, web).map(|(seen, _)| seen.ip());
    let by_udp = udp_source(world, 0, dns).map(|(seen, _)| seen.ip());
    for (server, how, seen) in [(web, "TCP", by_tcp), (dns, "UDP", by_udp)] {
        let line = seen.and_then(|seen| is_seen("the caller", seen, client));
        screen.line(format!("world → {server} → pod-c, {how}"), line);
    }
}

fn is_seen(who: &str, seen: IpAddr, expected: IpAddr) -> Result<String> {
    ensure!(seen == expected, "seen is {seen}, not {expected}");
    Ok(format!("seen is {who}, {seen}"))
}
