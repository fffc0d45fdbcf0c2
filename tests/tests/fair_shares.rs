//! Fair shares under pressure: what some pods, or clients with forged addresses, do to the flow
//! table costs others nothing.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use abi::{Address, DropReason};
use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Config, Connection, DropListener, Echo, ExpectedDrop, Mapping, NODE, POD_CIDRS, Pod,
    RawSocket, Sandbox, SynFlood, WORLD, are_all_provoked, is_slow, ping, until,
};
use verdict::simulator::frame::{Body, Frame};

/// Port of the server in the world, and of servers in pods.
const SERVER: u16 = 7000;
/// The published port.
const PUBLISHED: u16 = 8080;

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
    Ok(datagram_from(pod.address(WORLD[0])?, port))
}

fn datagram_from(source: IpAddr, port: u16) -> Vec<u8> {
    let body = Body::Udp(port, SERVER, b"who am I?".to_vec());
    let mut frame = Frame::new(abi_address(source), abi_address(WORLD[0]), body);
    frame.ethernet = None;
    frame.packet()
}

/// A flow with replies that is as old lasts.
const LASTING: Duration = Duration::from_secs(3);

/// Datagrams of a pod, each of another flow, and the socket that sends them.
type Flows = (RawSocket, Vec<Vec<u8>>);

/// Prepares `flows` flows of each pod to the server in the world.
fn prepare(pods: &[Pod], flows: u16) -> Result<Vec<Flows>> {
    pods.iter()
        .map(|pod| {
            // The pods have no sockets, and must not send errors about the replies.
            pod.machine.call("nft add table inet quiet")?;
            let chain = "add chain inet quiet input { type filter hook input priority 0; }";
            pod.machine.call_words(&["nft", chain])?;
            let rule = format!("nft add rule inet quiet input udp sport {SERVER} drop");
            pod.machine.call(&rule)?;
            let packets = (20_000..20_000 + flows)
                .map(|port| datagram(pod, port))
                .collect::<Result<Vec<_>>>()?;
            Ok((RawSocket::sender(&pod.machine, WORLD[0])?, packets))
        })
        .collect()
}

fn send(senders: &[Flows]) -> Result<()> {
    senders
        .iter()
        .try_for_each(|(raw, packets)| packets.iter().try_for_each(|it| raw.send(it, WORLD[0])))
}

/// Fills the table with answered flows that last, of `pods` in equal parts.
/// Returns the packets that keep these flows alive.
fn fill(agent: &Agent, pods: &[Pod], flows: u16) -> Result<Vec<Flows>> {
    let senders = prepare(pods, flows)?;
    let start = Instant::now();
    until("the flow table is full of flows that last", || {
        send(&senders)?;
        let table = agent.get("/v1/flows?limit=0")?["room"].take();
        let is_full = table["used_entries"].as_u64() >= table["entries"].as_u64();
        Ok((is_full && start.elapsed() > LASTING).then_some(()))
    })?;
    Ok(senders)
}

fn four_pods_fill_the_table(bypass: &str) -> Result<()> {
    let sandbox = Sandbox::new()?;
    let size = format!("--flow-table-size={SMALL_TABLE}");
    let bypass = format!("--bypass-netfilter={bypass}");
    let agent = Agent::start(&sandbox.node, &[&size, &bypass])?;
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

/// Requires that a new flow of the pod is refused, as an event and as the explanation of it.
/// `senders` keep the flows alive that leave no place: otherwise they end on a busy machine, and
/// other flows of the pod take their places until its quota is used up. It tries no more new flows
/// than would fit into its quota.
fn is_refused(
    agent: &Agent,
    listener: &DropListener,
    senders: &[Flows],
    (reason, pod): (DropReason, &Pod),
) -> Result<&'static str> {
    const FIRST: u16 = 40_000;
    const NEW: u16 = 150;
    let own = pod.address(WORLD[0])?;
    let expected = ExpectedDrop {
        reason,
        hook: "uplink_out",
        pod: Some(pod.id().to_owned()),
        ends: Some([own.to_string(), format!("{}:{SERVER}", WORLD[0])]),
    };
    let raw = RawSocket::sender(&pod.machine, WORLD[0])?;
    let probes = Cell::new(0);
    expected.check(agent, listener, || {
        send(senders)?;
        let number = probes.get();
        probes.set((number + 1) % NEW);
        raw.send(&datagram(pod, FIRST + number)?, WORLD[0])
    })?;
    Ok(reason.name())
}

#[test]
fn flows_that_are_refused_are_events_and_explained_with_the_same_reason() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let size = format!("--flow-table-size={SMALLEST_TABLE}");
    let agent = Agent::start(&sandbox.node, &[&size, "--drop-event-interval=1"])?;
    let mut pods = (0..5)
        .map(|number| attached(&sandbox, &format!("greedy-{number}"), Config::new("1.1.0")))
        .collect::<Result<Vec<_>>>()?;
    let _echo = Echo::start(&sandbox.world, SERVER)?;
    let forged = datagram_from("192.0.2.77".parse()?, 20_000);
    let raw = RawSocket::sender(&pods[0].machine, WORLD[0])?;
    let listener = DropListener::start(&agent, &format!("{}:{SERVER}", WORLD[0]), || {
        raw.send(&forged, WORLD[0])
    })?;
    // More than the 2,048 flows that the table has places for, and fewer than the quota of a pod.
    let senders = fill(&agent, &pods, 450)?;
    let mut provoked = BTreeSet::new();
    let full = (DropReason::FlowTableFull, &pods[0]);
    provoked.insert(is_refused(&agent, &listener, &senders, full)?);

    // Now alone, a pod gets as many as its quota. A few less must last first: beyond the quota,
    // flows that do not last yet take the places of each other.
    for pod in pods.drain(1..) {
        pod.del()?;
    }
    let senders = prepare(&pods, 1_000)?;
    let start = Instant::now();
    until("nearly as many flows as the quota last", || {
        send(&senders)?;
        let flows = agent.get("/v1/flows?limit=0")?["matching"].as_u64();
        let is_near = flows >= Some(1_000) && start.elapsed() > LASTING;
        Ok(is_near.then_some(()))
    })?;
    let quota = (DropReason::FlowQuota, &pods[0]);
    provoked.insert(is_refused(&agent, &listener, &senders, quota)?);
    are_all_provoked("fair_shares", &provoked)
}

/// Forged SYNs each second. A busy machine may send fewer: then the flood lasts until as many have
/// been sent in all, and the rate is measured without the time in which the sender waited for a
/// CPU. Interrupts for the work of others count as the sender's own time, so that rate may be lower
/// by a fifth.
const SYNS_PER_SECOND: u32 = 25_000;
/// A flow table with a budget of 2,048 flows, which the flood uses up in a fraction of a second.
const SMALL_TABLE: u32 = 8_192;
/// The smallest flow table, with a budget of 1,024 flows.
const SMALLEST_TABLE: u32 = 4_096;

/// Where a flood of SYNs goes.
#[derive(Clone, Copy, Debug)]
struct Flooded {
    bypass: &'static str,
    family: usize,
    /// The pod's own address instead of the hostport.
    direct: bool,
    /// Entries of the flow table; `None` for the default of this machine.
    entries: Option<u32>,
}

/// Connects beside a flood of SYNs to the same port, and keeps each connection open. Prints the
/// rate that the flood has reached.
#[expect(clippy::print_stdout, reason = "the rate is a result of the test")]
fn connect_beside_forged_syns(flooded: Flooded) -> Result<()> {
    const CONNECTIONS: u64 = 100;
    let Flooded { family, direct, .. } = flooded;
    let sandbox = Sandbox::new()?;
    let size = flooded
        .entries
        .map(|entries| format!("--flow-table-size={entries}"));
    let bypass = format!("--bypass-netfilter={}", flooded.bypass);
    let flags: Vec<&str> = size.iter().chain([&bypass]).map(String::as_str).collect();
    let agent = Agent::start(&sandbox.node, &flags)?;
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
    let budget = agent.get("/v1/flows?limit=0")?["room"]["quota"]
        .as_u64()
        .context("the status of the flow table has the quota")?;
    let flood = SynFlood::start(&sandbox.world, target, SYNS_PER_SECOND)?;
    flood.await_progress(budget + 5_000)?;
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
        // The connections are spread over four seconds.
        flood.await_progress(u64::from(SYNS_PER_SECOND) * 4 / CONNECTIONS)?;
    }
    ensure!(failed <= CONNECTIONS / 100, "{failed} connections failed");
    let (lost, sent) = (refused(&agent)? - before, flood.sent() - sent);
    ensure!(lost <= sent / 100, "{lost} of {sent} SYNs were dropped");
    open.iter()
        .try_for_each(Connection::exchange)
        .context("an established connection")?;
    let flood = flood.end()?;
    println!("{flood:?}");
    ensure!(flood.sent > budget + u64::from(SYNS_PER_SECOND) * 4);
    ensure!(
        is_slow() || flood.per_second > u64::from(SYNS_PER_SECOND) * 4 / 5,
        "the flood was too slow: {flood:?}"
    );
    Ok(())
}

#[test]
fn connections_to_a_hostport_succeed_beside_forged_syns_past_the_stack() -> Result<()> {
    connect_beside_forged_syns(Flooded {
        bypass: "auto",
        family: 0,
        direct: false,
        entries: None,
    })
}

#[test]
fn connections_to_a_hostport_succeed_beside_forged_syns_through_the_stack() -> Result<()> {
    connect_beside_forged_syns(Flooded {
        bypass: "never",
        family: 1,
        direct: false,
        entries: None,
    })
}

#[test]
fn connections_to_a_hostport_succeed_beside_forged_syns_on_a_small_node() -> Result<()> {
    for (bypass, family) in [("auto", 1), ("never", 0)] {
        connect_beside_forged_syns(Flooded {
            bypass,
            family,
            direct: false,
            entries: Some(SMALL_TABLE),
        })
        .with_context(|| bypass.to_owned())?;
    }
    Ok(())
}

#[test]
fn connections_to_a_pods_own_address_succeed_beside_forged_syns() -> Result<()> {
    for (bypass, family) in [("auto", 1), ("never", 0)] {
        connect_beside_forged_syns(Flooded {
            bypass,
            family,
            direct: true,
            entries: Some(SMALL_TABLE),
        })
        .with_context(|| bypass.to_owned())?;
    }
    Ok(())
}
