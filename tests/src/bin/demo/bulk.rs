//! Bulk TCP throughput.

use std::net::IpAddr;

use anyhow::Result;
use e2e::{Iperf, Machine, NODE, Throughput, WORLD};

use crate::scenario::Scenario;
use crate::screen::Screen;

const SECONDS: u32 = 2;

pub(crate) fn show(screen: &mut Screen, scenario: &Scenario) -> Result<()> {
    screen.section("Bulk TCP throughput, one connection, two seconds each");
    let (client, server) = (scenario.client_pod(), scenario.server_pod());
    let world = &scenario.sandbox.world;
    let in_pod = Iperf::serve(&server.machine, 5201)?;
    let in_world = Iperf::serve(world, 5201)?;
    let published = Iperf::serve(&scenario.hostport_pod().machine, 5201)?;
    let node = &scenario.sandbox.node;
    run(
        screen,
        "node → world, for comparison",
        &in_world,
        node,
        WORLD[0],
    );
    for (family, version) in ["IPv4", "IPv6"].into_iter().enumerate() {
        let pod = server.addresses[family];
        run(
            screen,
            &format!("pod-a → pod-b, {version}"),
            &in_pod,
            &client.machine,
            pod,
        );
        run(
            screen,
            &format!("pod-a → world, {version}"),
            &in_world,
            &client.machine,
            WORLD[family],
        );
        run(
            screen,
            &format!("world → hostport → pod-c, {version}"),
            &published,
            world,
            NODE[family],
        );
    }
    Ok(())
}

fn run(screen: &mut Screen, label: &str, server: &Iperf, from: &Machine, to: IpAddr) {
    let shown = server.send(from, to, SECONDS).map(|throughput| {
        let Throughput {
            bits_per_second,
            retransmits,
            ..
        } = throughput;
        format!(
            "{:5.2} Gbit/s, {retransmits} retransmits",
            bits_per_second / 1e9
        )
    });
    screen.line(label, shown);
}
