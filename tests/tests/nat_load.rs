//! Many flows at once: quotas, exhaustion of ports and of the flow table, and isolation between
//! pods.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use abi::Address;
use anyhow::{Context as _, Result, ensure};
use e2e::{
    Config, Connection, ConnectionLoad, DropListener, Echo, ExpectedDrop, Machine, Mapping, NODE,
    Pod, RawSocket, Sandbox, Sends, Stream, WORLD, are_all_provoked, ping, tcp_source, until,
};
use verdict::simulator::frame::{Body, Frame, flag};

/// Flows in total: fewer than the capacity of the flow table, more than the 4096 of a single sweep.
const PODS: u16 = 8;
const FLOWS_OF_EACH: u16 = 6_250;

fn attached(sandbox: &Sandbox, name: &str) -> Result<Pod> {
    let mut pod = sandbox.pod(name)?;
    pod.add()?;
    // Resolve the neighbour first: only a few packets can wait for that.
    for world in WORLD {
        ping(&pod.machine, world, 1)?;
    }
    Ok(pod)
}

/// Returns how many flows pods have opened so far.
fn opened(agent: &e2e::Agent) -> Result<u64> {
    let counters = agent.get("/v1/counters")?;
    counters["new_flows"].as_u64().context("no new_flows")
}

/// Returns the number of entries in the pinned flow map, as bpftool dumps it.
fn entries(sandbox: &Sandbox) -> Result<usize> {
    let path = format!(
        "/sys/fs/bpf/viaduct/v{}/maps/{}",
        abi::ABI_VERSION,
        abi::maps::FLOWS.name
    );
    let dump = sandbox
        .node
        .call(&format!("bpftool -j map dump pinned {path}"))?;
    Ok(dump.matches("\"key\"").count())
}

/// Sends one datagram to each of many ports, each the first packet of a flow.
fn scatter(pod: &Machine, world: IpAddr) -> Result<()> {
    let socket = pod.run(|| UdpSocket::bind("0.0.0.0:0"))?;
    for port in 10_000..10_000 + FLOWS_OF_EACH {
        // An ICMP error that arrived meanwhile fails the next send, which then has to be repeated.
        while socket.send_to(b"first", (world, port)).is_err() {}
    }
    Ok(())
}

#[test]
fn fifty_thousand_flows_are_all_kept_and_go_with_their_pods() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let agent = e2e::Agent::start(&sandbox.node, &["--flow-table-size=262144"])?;
    let witness = attached(&sandbox, "witness")?;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    let open = Connection::udp(&witness.machine, SocketAddr::new(WORLD[0], 7000))?;
    let pods = (0..PODS)
        .map(|number| attached(&sandbox, &format!("pod-{number}")))
        .collect::<Result<Vec<_>>>()?;
    // The world sends no port unreachable errors.
    drop_input(&sandbox.world, "udp dport 10000-20000")?;

    let before = opened(&agent)?;
    thread::scope(|scope| -> Result<()> {
        let scattering = pods
            .chunks(usize::from(PODS / 2))
            .map(|half| {
                scope.spawn(|| {
                    half.iter()
                        .try_for_each(|pod| scatter(&pod.machine, WORLD[0]))
                })
            })
            .collect::<Vec<_>>();
        for half in scattering {
            half.join().ok().context("a thread panicked")??;
        }
        Ok(())
    })?;
    let made = opened(&agent)? - before;
    let counters = agent.get("/v1/counters")?;
    ensure!(
        made == u64::from(PODS * FLOWS_OF_EACH),
        "{made}; {counters}"
    );
    ensure!(counters["drops"] == serde_json::json!({}), "{counters}");
    open.exchange().context("beside many flows")?;

    for pod in &pods {
        pod.del()?;
    }
    until("only the witness's flow is left", || {
        open.exchange()?;
        Ok((entries(&sandbox)? <= 2 * 3).then_some(()))
    })
}

fn abi_address(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    }
}

/// A packet of a pod that opens a flow.
fn opening(pod: &Pod, to: IpAddr, body: Body) -> Result<Vec<u8>> {
    let own = pod.address(to)?;
    let mut frame = Frame::new(abi_address(own), abi_address(to), body);
    frame.ethernet = None;
    Ok(frame.packet())
}

/// Sends unanswered SYNs from new ports, until `stop` is set or `most` are sent.
fn flood(pod: &Pod, to: IpAddr, stop: &AtomicBool, most: u32) -> Result<u32> {
    let raw = RawSocket::sender(&pod.machine, to)?;
    let mut sent = 0;
    while sent < most && !stop.load(Ordering::Relaxed) {
        let port = u16::try_from(1_024 + sent % 60_000)?;
        let body = Body::Tcp(port, 81, flag::SYN, Vec::new());
        raw.send(&opening(pod, to, body)?, to)?;
        sent += 1;
    }
    Ok(sent)
}

/// Adds a rule that drops input, so that the machine sends no replies.
fn drop_input(machine: &Machine, rule: &str) -> Result<()> {
    machine.call("nft add table inet quiet")?;
    let chain = "add chain inet quiet input { type filter hook input priority 0; }";
    machine.call_words(&["nft", chain])?;
    machine
        .call(&format!("nft add rule inet quiet input {rule} drop"))
        .map(drop)
}

/// Returns how many packets were dropped for this reason.
fn drops(agent: &e2e::Agent, reason: &str) -> Result<u64> {
    let counters = agent.get("/v1/counters")?;
    Ok(counters["drops"][reason].as_u64().unwrap_or(0))
}

/// Prepares `count` datagrams of each pod to `server`, each from another port, whose replies the
/// pod drops. They are made before the first is sent, because the flows time out.
fn datagrams(
    pods: &[Pod],
    server: SocketAddr,
    count: u16,
) -> Result<Vec<(RawSocket, Vec<Vec<u8>>)>> {
    pods.iter()
        .map(|pod| {
            drop_input(&pod.machine, &format!("udp sport {}", server.port()))?;
            let packets = (20_000..20_000 + count)
                .map(|port| Body::Udp(port, server.port(), b"who am I?".to_vec()))
                .map(|body| opening(pod, server.ip(), body))
                .collect::<Result<Vec<_>>>()?;
            Ok((RawSocket::sender(&pod.machine, server.ip())?, packets))
        })
        .collect()
}

/// Sends all datagrams. `open` exchanges after each thousand: otherwise the server's socket would
/// overflow, and on a slow machine the flow of `open` would time out before the last one is sent.
fn send_all(datagrams: &[(RawSocket, Vec<Vec<u8>>)], to: IpAddr, open: &Connection) -> Result<()> {
    for (raw, packets) in datagrams {
        for thousand in packets.chunks(1_000) {
            thousand.iter().try_for_each(|it| raw.send(it, to))?;
            open.exchange()?;
        }
    }
    Ok(())
}

/// Deletes a pod with flows to `server`; a flow of `late`, which has none, gets one of the ports.
fn a_port_becomes_free(
    agent: &e2e::Agent,
    gone: &Pod,
    late: &Pod,
    server: SocketAddr,
) -> Result<()> {
    let newcomer = late.machine.run(|| UdpSocket::bind("0.0.0.0:0"))?;
    gone.del()?;
    newcomer.connect(server)?;
    until("a flow that ends leaves its port to others", || {
        Ok(e2e::udp_seen_as(&newcomer).ok())
    })?;
    let late_refusals = drops(agent, "no-port")?;
    Connection::udp(&late.machine, server)?.exchange()?;
    assert_eq!(drops(agent, "no-port")?, late_refusals);
    Ok(())
}

/// Requires that a new flow of the pod is refused, as an event and as the explanation of it.
fn is_refused_for_want_of_a_port(agent: &e2e::Agent, pod: &Pod, server: SocketAddr) -> Result<()> {
    let own = pod.address(server.ip())?;
    let raw = RawSocket::sender(&pod.machine, server.ip())?;
    let port = Cell::new(45_000);
    let send = || {
        port.set(port.get() + 1);
        let body = Body::Udp(port.get(), server.port(), b"who am I?".to_vec());
        raw.send(&opening(pod, server.ip(), body)?, server.ip())
    };
    let listener = DropListener::start(agent, &server.to_string(), send)?;
    let expected = ExpectedDrop {
        reason: abi::DropReason::NoPort,
        hook: "uplink_out",
        pod: Some(pod.id().to_owned()),
        ends: Some([own.to_string(), server.to_string()]),
    };
    expected.check(agent, &listener, send)?;
    are_all_provoked("nat_load", &[expected.reason.name()].into())
}

/// Flows beyond the number of masquerade ports. A slow machine takes longer for all of them than
/// the idle timeout of a flow, so there are only a few more flows than ports. Each of several pods
/// stays below half of its quota, from where on unreplied flows are evicted.
#[test]
fn flows_beyond_the_masquerade_ports_are_refused_until_a_port_is_free() -> Result<()> {
    const PORTS: u64 = 64_512;
    const PODS: usize = 3;
    const EACH: u16 = 24_000;
    let sandbox = Sandbox::new()?;
    let flags = ["--flow-table-size=393216", "--drop-event-interval=1"];
    let agent = e2e::Agent::start(&sandbox.node, &flags)?;
    let late = attached(&sandbox, "late")?;
    let flooding = (0..PODS)
        .map(|number| attached(&sandbox, &format!("greedy-{number}")))
        .collect::<Result<Vec<_>>>()?;
    let server = SocketAddr::new(WORLD[0], 7000);
    let other = SocketAddr::new(WORLD[0], 7001);
    let _echoes = [
        Echo::start(&sandbox.world, server.port())?,
        Echo::start(&sandbox.world, other.port())?,
    ];
    let datagrams = datagrams(&flooding, server, EACH)?;
    let open = Connection::udp(&late.machine, server)?;
    let send = || send_all(&datagrams, server.ip(), &open);
    let before = opened(&agent)?;
    let begun = Instant::now();
    send()?;
    let made = opened(&agent)? - before;
    let refused = drops(&agent, "no-port")?;
    ensure!(made > 60_000, "{made} flows, {refused} refused");
    ensure!(
        made + refused == PODS as u64 * u64::from(EACH),
        "{made} flows, {refused} refused"
    );
    // On a slow or busy machine some flows have timed out by now, and others have their ports.
    let timed_out = begun.elapsed().as_secs() >= abi::Timeouts::default().udp_single.into();
    // A pod with few flows may have taken ports of a greedier one.
    let room = agent.get("/v1/flows?limit=0")?["room"].take();
    let held = room["used_entries"].as_u64().context("a number")? / 2;
    ensure!(held <= PORTS + 16, "{held} of {made} flows");
    ensure!(timed_out || refused > 1_000, "{refused} refused");
    until("no port is left", || {
        let refused = drops(&agent, "no-port")?;
        if refused <= 1_000 {
            send()?;
        }
        Ok((refused > 1_000).then_some(()))
    })?;

    is_refused_for_want_of_a_port(&agent, &flooding[0], server)?;

    // Established flows continue, and other servers are not affected.
    open.exchange()?;
    Connection::tcp(&late.machine, server)?.exchange()?;
    Connection::udp(&late.machine, other)?.exchange()?;
    let room = agent.get("/v1/flows?limit=0")?["room"].take();
    assert_eq!(room["entries"], 393_216, "{room}");
    assert_eq!(room["quota"], 98_304, "{room}");
    ensure!(room["used_entries"].as_u64() >= Some(2 * 60_000), "{room}");

    a_port_becomes_free(&agent, &flooding[0], &late, server)
}

/// behaviour E3: half-open flows fill a small table, and are evicted for flows of other pods.
#[test]
fn a_full_flow_table_evicts_half_open_flows_of_the_largest_pods_only() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let agent = e2e::Agent::start(&sandbox.node, &["--flow-table-size=4096"])?;
    let good = attached(&sandbox, "good")?;
    let flooding = [attached(&sandbox, "one")?, attached(&sandbox, "two")?];
    let _echo = Echo::start(&sandbox.world, 7000)?;
    drop_input(&sandbox.world, "tcp dport 81")?;
    let mut open = Vec::new();
    for world in WORLD {
        open.push(Connection::tcp(
            &good.machine,
            SocketAddr::new(world, 7000),
        )?);
        open.push(Connection::udp(
            &good.machine,
            SocketAddr::new(world, 7000),
        )?);
    }
    let never = AtomicBool::new(false);
    for pod in &flooding {
        flood(pod, WORLD[0], &never, 3_000)?;
    }
    // Each pod has opened more flows than its quota, in the places of its own unanswered ones.
    ensure!(
        drops(&agent, "flow-quota")? < 100,
        "flows at the quota were refused"
    );
    for world in WORLD {
        for _ in 0..50 {
            let late = Connection::tcp(&good.machine, SocketAddr::new(world, 7000))?;
            late.exchange()?;
            open.push(late);
        }
    }
    open.iter().try_for_each(Connection::exchange)?;
    let room = agent.get("/v1/flows?limit=0")?["room"].take();
    let of = |name: &str| {
        let pods = room["pods"].as_array().into_iter().flatten();
        let mut own = pods.filter(|pod| pod["containerID"] == name);
        own.next().cloned().unwrap_or_default()
    };
    let count = |name, key| of(name)[key].as_u64().unwrap_or(0);
    // Those of others have made room for them, below the quota. On a slow machine some of those
    // have expired.
    let left = count("one", "flows") + count("two", "flows");
    ensure!(left < 2 * 1_024, "no flow made room: {room}");
    for name in ["one", "two"] {
        ensure!(count(name, "evicted_flows") > 0, "{name}: {room}");
    }
    ensure!(count("good", "evicted_flows") == 0, "{room}");
    ensure!(of("good")["flows"].as_u64() >= Some(104), "{room}");
    ensure!(
        of("one")["flows"].as_u64() <= room["quota"].as_u64(),
        "{room}"
    );
    let shown = agent.ctl("flows --usage")?;
    ensure!(shown.contains("of 4096 entries used"), "{shown}");
    ensure!(
        shown
            .lines()
            .any(|line| line.starts_with("one ") && line.contains("1024")),
        "{shown}"
    );
    Ok(())
}

/// Connects, receives the server's line, and closes, `times` times.
fn call(from: &Machine, server: SocketAddr, times: u32) -> Result<()> {
    (0..times).try_for_each(|time| {
        tcp_source(from, 0, server)
            .map(drop)
            .with_context(|| format!("connection {time} to {server}"))
    })
}

#[test]
fn a_pod_opens_and_serves_more_connections_than_its_flow_quota() -> Result<()> {
    const TIMES: u32 = 3_000;
    let sandbox = Sandbox::new()?;
    let agent = e2e::Agent::start(&sandbox.node, &["--flow-table-size=8192"])?;
    let mut pod = sandbox.pod("busy")?;
    pod.add_with(Config::new("1.1.0").publish(&Mapping::both(8080, 7000)))?;
    let _echoes = [
        Echo::start(&pod.machine, 7000)?,
        Echo::start(&sandbox.world, 7000)?,
    ];
    let mut open = Vec::new();
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let (published, server) = (SocketAddr::new(node, 8080), SocketAddr::new(world, 7000));
        open.push(Connection::tcp(&sandbox.world, published)?);
        open.push(Connection::tcp(&pod.machine, server)?);
        call(&sandbox.world, published, TIMES)?;
        call(&pod.machine, server, TIMES)?;
    }
    open.iter().try_for_each(Connection::exchange)?;
    let room = agent.get("/v1/flows?limit=0")?["room"].take();
    ensure!(
        room["quota"].as_u64() < Some(u64::from(TIMES)),
        "the quota was not reached: {room}"
    );
    let counters = agent.get("/v1/counters")?;
    ensure!(counters["drops"] == serde_json::json!({}), "{counters}");
    Ok(())
}

#[test]
fn a_syn_flood_of_one_pod_blocks_no_other_pod() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let [bad, good] = [attached(&sandbox, "bad")?, attached(&sandbox, "good")?];
    let _echo = Echo::start(&sandbox.world, 7000)?;
    drop_input(&sandbox.world, "tcp dport 81")?;

    let mut open = Vec::new();
    for world in WORLD {
        let server = SocketAddr::new(world, 7000);
        open.push(Connection::tcp(&good.machine, server)?);
        open.push(Connection::udp(&good.machine, server)?);
    }
    let load = ConnectionLoad::start(open);
    let stop = AtomicBool::new(false);
    let sent = thread::scope(|scope| -> Result<u32> {
        let flood = scope.spawn(|| flood(&bad, WORLD[0], &stop, 60_000));
        for world in WORLD {
            for _ in 0..10 {
                Connection::tcp(&good.machine, SocketAddr::new(world, 7000))?.exchange()?;
            }
            let transfer = Stream::start(
                (&good.machine, SocketAddr::new(world, 7001)),
                (&sandbox.world, 7001),
                Sends::Server,
                64 << 20,
            )?;
            transfer.end()?;
        }
        load.await_round()?;
        stop.store(true, Ordering::Relaxed);
        flood.join().ok().context("the flood panicked")?
    })?;
    assert!(load.end()? > 0);
    let counters = agent.get("/v1/counters")?;
    ensure!(sent > 1_000, "only {sent} SYNs");
    ensure!(counters["drops"]["no-port"].is_null(), "{counters}");
    ensure!(entries(&sandbox)? <= abi::maps::FLOWS_CAPACITY as usize);
    Ok(())
}
