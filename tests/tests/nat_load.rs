//! Many flows at once, and what one pod's many flows mean to the others.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use abi::Address;
use anyhow::{Context as _, Result, ensure};
use e2e::{
    Config, Conversation, Echo, Load, Machine, Mapping, NODE, Pod, Raw, Sandbox, Sends, Stream,
    WORLD, is_slow, ping, tcp_source, until,
};
use verdict::simulator::frame::{Body, Frame, flag};

/// Many, and in sum: fewer than the flow table holds, more than a single sweep of 4096 would.
const PODS: u16 = 8;
const FLOWS_OF_EACH: u16 = 6_250;

fn attached(sandbox: &Sandbox, name: &str) -> Result<Pod> {
    let mut pod = sandbox.pod(name)?;
    pod.add()?;
    // What comes next shall not have to wait for neighbours, where only few packets may.
    for world in WORLD {
        ping(&pod.machine, world, 1)?;
    }
    Ok(pod)
}

/// How many flows pods have opened so far.
fn opened(agent: &e2e::Agent) -> Result<u64> {
    let counters = agent.get("/v1/counters")?;
    counters["new_flows"].as_u64().context("no new_flows")
}

/// Entries of the flow table, as bpftool counts them in the pinned map.
fn entries(sandbox: &Sandbox) -> Result<usize> {
    let path = format!(
        "/sys/fs/bpf/viaduct/v{}/maps/{}",
        abi::ABI_VERSION,
        abi::maps::FLOWS
    );
    let dump = sandbox
        .node
        .call(&format!("bpftool -j map dump pinned {path}"))?;
    Ok(dump.matches("\"key\"").count())
}

/// One datagram to each of many ports, as the first packet of as many flows.
fn scatter(pod: &Machine, world: IpAddr) -> Result<()> {
    let socket = pod.run(|| UdpSocket::bind("0.0.0.0:0"))?;
    for port in 10_000..10_000 + FLOWS_OF_EACH {
        // A refusal that came in meanwhile is told by the next send, which then has to be repeated.
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
    let open = Conversation::udp(&witness.machine, SocketAddr::new(WORLD[0], 7000))?;
    let pods = (0..PODS)
        .map(|number| attached(&sandbox, &format!("pod-{number}")))
        .collect::<Result<Vec<_>>>()?;
    // The world refuses none of these: refusals are not what is measured.
    deaf(&sandbox.world, "udp dport 10000-20000")?;

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
    open.go_on().context("beside many flows")?;

    for pod in &pods {
        pod.del()?;
    }
    until("only the witness's flow is left", || {
        open.go_on()?;
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

/// SYNs from ever new ports, none of which will ever be answered, until told to stop or it is enough.
fn flood(pod: &Pod, to: IpAddr, stop: &AtomicBool, most: u32) -> Result<u32> {
    let raw = Raw::sender(&pod.machine, to)?;
    let mut sent = 0;
    while sent < most && !stop.load(Ordering::Relaxed) {
        let port = u16::try_from(1_024 + sent % 60_000)?;
        let body = Body::Tcp(port, 81, flag::SYN, Vec::new());
        raw.send(&opening(pod, to, body)?, to)?;
        sent += 1;
    }
    Ok(sent)
}

/// A machine that hears nothing from this port, and so refuses nothing from there.
fn deaf(machine: &Machine, rule: &str) -> Result<()> {
    machine.call("nft add table inet quiet")?;
    let chain = "add chain inet quiet input { type filter hook input priority 0; }";
    machine.call_words(&["nft", chain])?;
    machine
        .call(&format!("nft add rule inet quiet input {rule} drop"))
        .map(drop)
}

/// How often packets were dropped for this reason.
fn drops(agent: &e2e::Agent, reason: &str) -> Result<u64> {
    let counters = agent.get("/v1/counters")?;
    Ok(counters["drops"][reason].as_u64().unwrap_or(0))
}

/// There are so many ports to leave with; the quota of one pod is a quarter of the table, so it takes several. A slow
/// machine takes longer for all of these than a flow lives without packets, so they are few more than there are ports, and for
/// no pod more than half of its quota: from there on what nobody answers makes room.
#[test]
fn more_flows_to_one_address_and_port_than_there_are_ports_fail_by_name_and_recover() -> Result<()>
{
    const PORTS: u64 = 64_512;
    const PODS: usize = 3;
    const EACH: u16 = 24_000;
    let sandbox = Sandbox::new()?;
    let agent = e2e::Agent::start(&sandbox.node, &["--flow-table-size=393216"])?;
    let late = attached(&sandbox, "late")?;
    let greedy = (0..PODS)
        .map(|number| attached(&sandbox, &format!("greedy-{number}")))
        .collect::<Result<Vec<_>>>()?;
    let server = SocketAddr::new(WORLD[0], 7000);
    let other = SocketAddr::new(WORLD[0], 7001);
    let _echoes = [
        Echo::start(&sandbox.world, server.port())?,
        Echo::start(&sandbox.world, other.port())?,
    ];
    let open = Conversation::udp(&late.machine, server)?;
    let before = opened(&agent)?;
    for pod in &greedy {
        deaf(&pod.machine, "udp sport 7000")?;
        let raw = Raw::sender(&pod.machine, server.ip())?;
        for port in 20_000..20_000 + EACH {
            let body = Body::Udp(port, server.port(), b"who am I?".to_vec());
            raw.send(&opening(pod, server.ip(), body)?, server.ip())?;
            if port % 1_000 == 0 {
                // On a slow machine it would be forgotten before the last one has its flow.
                open.go_on()?;
            }
        }
    }
    let made = opened(&agent)? - before;
    let refused = drops(&agent, "no-port")?;
    ensure!(made > 60_000, "{made} flows, {refused} refused");
    ensure!(
        made + refused == PODS as u64 * u64::from(EACH),
        "{made} flows, {refused} refused"
    );
    // On a slow machine some have ended by now, and others have their ports.
    ensure!(is_slow() || made <= PORTS, "{made} flows");
    ensure!(refused > 1_000, "{refused} refused");

    // Who has a flow keeps it, and other servers are not concerned.
    open.go_on()?;
    Conversation::tcp(&late.machine, server)?.go_on()?;
    Conversation::udp(&late.machine, other)?.go_on()?;
    let newcomer = late.machine.run(|| UdpSocket::bind("0.0.0.0:0"))?;
    let room = agent.get("/v1/flows?limit=0")?["room"].take();
    assert_eq!(room["entries"], 393_216, "{room}");
    assert_eq!(room["quota"], 49_152, "{room}");
    let alive = if is_slow() { 60_000 } else { made };
    ensure!(room["used_entries"].as_u64() >= Some(2 * alive), "{room}");

    greedy[0].del()?;
    newcomer.connect(server)?;
    until("a flow that ends leaves its port to others", || {
        Ok(e2e::udp_ask(&newcomer).ok())
    })?;
    let late_refusals = drops(&agent, "no-port")?;
    Conversation::udp(&late.machine, server)?.go_on()?;
    assert_eq!(drops(&agent, "no-port")?, late_refusals);
    Ok(())
}

/// behaviour E3, DATAPATH §15, 23: half-open flows fill a small table, and make room for those of others.
#[test]
fn a_full_table_takes_half_open_flows_of_the_greediest_and_no_live_ones() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let agent = e2e::Agent::start(&sandbox.node, &["--flow-table-size=4096"])?;
    let good = attached(&sandbox, "good")?;
    let greedy = [attached(&sandbox, "one")?, attached(&sandbox, "two")?];
    let _echo = Echo::start(&sandbox.world, 7000)?;
    deaf(&sandbox.world, "tcp dport 81")?;
    let mut open = Vec::new();
    for world in WORLD {
        open.push(Conversation::tcp(
            &good.machine,
            SocketAddr::new(world, 7000),
        )?);
        open.push(Conversation::udp(
            &good.machine,
            SocketAddr::new(world, 7000),
        )?);
    }
    let never = AtomicBool::new(false);
    for pod in &greedy {
        flood(pod, WORLD[0], &never, 3_000)?;
    }
    // A pod's quota is less than what it has tried.
    ensure!(
        drops(&agent, "flow-quota")? > 1_000,
        "the quota was not reached"
    );
    for world in WORLD {
        for _ in 0..50 {
            let late = Conversation::tcp(&good.machine, SocketAddr::new(world, 7000))?;
            late.go_on()?;
            open.push(late);
        }
    }
    open.iter().try_for_each(Conversation::go_on)?;
    let room = agent.get("/v1/flows?limit=0")?["room"].take();
    let of = |name: &str| {
        let pods = room["pods"].as_array().into_iter().flatten();
        let mut own = pods.filter(|pod| pod["containerID"] == name);
        own.next().cloned().unwrap_or_default()
    };
    let lost = |name| of(name)["evicted_flows"].as_u64().unwrap_or(0);
    ensure!(
        lost("one") + lost("two") > 0,
        "nothing had to make room: {room}"
    );
    ensure!(lost("good") == 0, "{room}");
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

/// Connects, is greeted, and closes, so often.
fn call(from: &Machine, server: SocketAddr, times: u32) -> Result<()> {
    (0..times).try_for_each(|time| {
        tcp_source(from, 0, server)
            .map(drop)
            .with_context(|| format!("connection {time} to {server}"))
    })
}

#[test]
fn a_pod_opens_and_serves_more_connections_than_it_may_have_at_once() -> Result<()> {
    const TIMES: u32 = 2_000;
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
        open.push(Conversation::tcp(&sandbox.world, published)?);
        open.push(Conversation::tcp(&pod.machine, server)?);
        call(&sandbox.world, published, TIMES)?;
        call(&pod.machine, server, TIMES)?;
    }
    open.iter().try_for_each(Conversation::go_on)?;
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
fn one_pods_flood_of_syns_hinders_no_other_pod() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let [bad, good] = [attached(&sandbox, "bad")?, attached(&sandbox, "good")?];
    let _echo = Echo::start(&sandbox.world, 7000)?;
    deaf(&sandbox.world, "tcp dport 81")?;

    let mut open = Vec::new();
    for world in WORLD {
        let server = SocketAddr::new(world, 7000);
        open.push(Conversation::tcp(&good.machine, server)?);
        open.push(Conversation::udp(&good.machine, server)?);
    }
    let load = Load::start(open);
    let stop = AtomicBool::new(false);
    let sent = thread::scope(|scope| -> Result<u32> {
        let flood = scope.spawn(|| flood(&bad, WORLD[0], &stop, 60_000));
        for world in WORLD {
            for _ in 0..10 {
                Conversation::tcp(&good.machine, SocketAddr::new(world, 7000))?.go_on()?;
            }
            let transfer = Stream::start(
                (&good.machine, SocketAddr::new(world, 7001)),
                (&sandbox.world, 7001),
                Sends::Server,
                64 << 20,
            )?;
            transfer.end()?;
        }
        load.another_round()?;
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
