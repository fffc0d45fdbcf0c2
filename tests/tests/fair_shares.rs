//! Fair shares under pressure: what some pods, or clients with forged addresses, do to the flow
//! table costs others nothing.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use abi::Address;
use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Config, Connection, Echo, Mapping, NODE, POD_CIDRS, Pod, RawSocket, Sandbox, SynFlood,
    WORLD, ping, until,
};
use verdict::simulator::frame::{Body, Frame};

/// Port of the server in the world, and of servers in pods.
const SERVER: u16 = 7000;
/// The published port.
const PUBLISHED: u16 = 8080;

/// Starts an agent with a flow table of that many entries.
fn agent(sandbox: &Sandbox, entries: u32, bypass: &str) -> Result<Agent> {
    let size = format!("--flow-table-size={entries}");
    let bypass = format!("--bypass-netfilter={bypass}");
    Agent::start(&sandbox.node, &[&size, &bypass])
}

fn attached(sandbox: &Sandbox, name: &str, config: Config) -> Result<Pod> {
    let mut pod = sandbox.pod(name)?;
    pod.add_with(config)?;
    // Resolve the neighbour first: only a few packets can wait for that.
    for world in WORLD {
        ping(&pod.machine, world, 1)?;
    }
    Ok(pod)
}

fn dropped(agent: &Agent, reason: &str) -> Result<u64> {
    let counters = agent.get("/v1/counters")?;
    Ok(counters["drops"][reason].as_u64().unwrap_or(0))
}

/// Returns how many packets of new flows were dropped for want of a place.
fn refused(agent: &Agent) -> Result<u64> {
    Ok(dropped(agent, "flow-table-full")? + dropped(agent, "flow-quota")?)
}

fn abi_address(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    }
}

/// Returns a datagram of a pod from that port to the server in the world, from the IP header on.
fn datagram(pod: &Pod, port: u16) -> Result<Vec<u8>> {
    let (own, to) = (pod.address(WORLD[0])?, WORLD[0]);
    let body = Body::Udp(port, SERVER, b"who am I?".to_vec());
    let mut frame = Frame::new(abi_address(own), abi_address(to), body);
    frame.ethernet = None;
    Ok(frame.packet())
}

/// Fills the table with answered flows that last, of `pods` in equal parts.
fn fill(agent: &Agent, pods: &[Pod], flows: u16) -> Result<()> {
    let mut senders = Vec::new();
    for pod in pods {
        // The pods have no sockets, and must not send errors about the replies.
        pod.machine.call("nft add table inet quiet")?;
        let chain = "add chain inet quiet input { type filter hook input priority 0; }";
        pod.machine.call_words(&["nft", chain])?;
        let rule = format!("nft add rule inet quiet input udp sport {SERVER} drop");
        pod.machine.call(&rule)?;
        let packets = (20_000..20_000 + flows)
            .map(|port| datagram(pod, port))
            .collect::<Result<Vec<_>>>()?;
        senders.push((RawSocket::sender(&pod.machine, WORLD[0])?, packets));
    }
    let start = Instant::now();
    until("the flow table is full of flows that last", || {
        for (raw, packets) in &senders {
            packets.iter().try_for_each(|it| raw.send(it, WORLD[0]))?;
        }
        let table = agent.get("/v1/flows?limit=0")?["room"].take();
        let is_full = table["used_entries"].as_u64() >= table["entries"].as_u64();
        Ok((is_full && start.elapsed() > Duration::from_secs(3)).then_some(()))
    })
}

fn four_pods_fill_the_table(bypass: &str) -> Result<()> {
    let sandbox = Sandbox::new()?;
    let agent = agent(&sandbox, 8_192, bypass)?;
    let late = attached(&sandbox, "late", Config::new("1.1.0"))?;
    let ports = Mapping::both(PUBLISHED, SERVER);
    let publisher = attached(&sandbox, "served", Config::new("1.1.0").publish(&ports))?;
    let greedy = (0..4)
        .map(|number| attached(&sandbox, &format!("greedy-{number}"), Config::new("1.1.0")))
        .collect::<Result<Vec<_>>>()?;
    let _echoes = [
        Echo::start(&sandbox.world, SERVER)?,
        Echo::start(&publisher.machine, SERVER)?,
    ];
    // Each has a quarter of the 4,096 flows, less than a few flows of the first pings.
    fill(&agent, &greedy, 1_024)?;

    let before = refused(&agent)?;
    let mut open = Vec::new();
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let (server, hostport) = (
            SocketAddr::new(world, SERVER),
            SocketAddr::new(node, PUBLISHED),
        );
        for _ in 0..50 {
            open.push(Connection::tcp(&late.machine, server)?);
            open.push(Connection::udp(&late.machine, server)?);
            open.push(Connection::tcp(&sandbox.world, hostport)?);
            open.push(Connection::udp(&sandbox.world, hostport)?);
            open.push(Connection::tcp(&late.machine, hostport)?);
        }
    }
    open.iter().try_for_each(Connection::exchange)?;
    let after = refused(&agent)?;
    assert_eq!(after, before, "packets of new flows were dropped");
    let table = agent.get("/v1/flows?limit=0")?["room"].take();
    let evicted = |name: &str| {
        let pods = table["pods"].as_array().into_iter().flatten();
        pods.filter(|pod| pod["containerID"].as_str() == Some(name))
            .filter_map(|pod| pod["evicted_flows"].as_u64())
            .sum::<u64>()
    };
    ensure!(evicted("late") + evicted("served") == 0, "{table}");
    let taken: u64 = (0..4)
        .map(|number| evicted(&format!("greedy-{number}")))
        .sum();
    ensure!(taken >= 400, "{taken} flows were evicted: {table}");
    Ok(())
}

#[test]
fn four_pods_fill_the_flow_table_and_others_open_flows_past_the_stack() -> Result<()> {
    four_pods_fill_the_table("auto")
}

#[test]
fn four_pods_fill_the_flow_table_and_others_open_flows_through_the_stack() -> Result<()> {
    four_pods_fill_the_table("never")
}

/// Connects beside a flood of SYNs to the same port, and keeps each connection open.
fn connect_beside_forged_syns(bypass: &str, family: usize, direct: bool) -> Result<()> {
    const CONNECTIONS: usize = 100;
    let sandbox = Sandbox::new()?;
    // A budget of 1,024 flows, which the flood uses up in a fraction of a second.
    let agent = agent(&sandbox, 8_192, bypass)?;
    let ports = Mapping::both(PUBLISHED, SERVER);
    let pod = attached(&sandbox, "served", Config::new("1.1.0").publish(&ports))?;
    let _echoes = [
        Echo::start(&pod.machine, SERVER)?,
        Echo::start(&sandbox.world, SERVER)?,
    ];
    let node = NODE[family];
    let target = if direct {
        let cidr = POD_CIDRS[family];
        sandbox
            .world
            .call(&format!("ip route add {cidr} via {node}"))?;
        SocketAddr::new(pod.address(node)?, SERVER)
    } else {
        SocketAddr::new(node, PUBLISHED)
    };
    let flood = SynFlood::start(&sandbox.world, target)?;
    flood.await_progress(5_000)?;
    let (before, sent) = (refused(&agent)?, flood.sent());
    let mut open = Vec::new();
    let mut failed = 0;
    for _ in 0..CONNECTIONS {
        match Connection::tcp(&sandbox.world, target) {
            Ok(connection) => open.push(connection),
            Err(_) => failed += 1,
        }
        // Beside flows of its own, which have a quota of their own.
        let out = SocketAddr::new(WORLD[family], SERVER);
        open.push(Connection::tcp(&pod.machine, out)?);
        flood.await_progress(100)?;
    }
    ensure!(failed <= CONNECTIONS / 100, "{failed} connections failed");
    let (lost, sent) = (refused(&agent)? - before, flood.sent() - sent);
    ensure!(lost <= sent / 100, "{lost} of {sent} SYNs were dropped");
    open.iter()
        .try_for_each(Connection::exchange)
        .context("an established connection")?;
    ensure!(flood.end()? > 10_000, "the flood was too small");
    Ok(())
}

#[test]
fn connections_to_a_hostport_succeed_beside_forged_syns_past_the_stack() -> Result<()> {
    connect_beside_forged_syns("auto", 0, false)
}

#[test]
fn connections_to_a_hostport_succeed_beside_forged_syns_through_the_stack() -> Result<()> {
    connect_beside_forged_syns("never", 1, false)
}

#[test]
fn connections_to_a_pods_own_address_succeed_beside_forged_syns() -> Result<()> {
    connect_beside_forged_syns("auto", 1, true)?;
    connect_beside_forged_syns("never", 0, true)
}
