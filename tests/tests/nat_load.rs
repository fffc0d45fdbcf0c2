//! Many flows at once, and what one pod's many flows mean to the others.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use abi::Address;
use anyhow::{Context as _, Result, ensure};
use e2e::{
    Conversation, Echo, Load, Machine, Pod, Raw, Sandbox, Sends, Stream, WORLD, ping, until,
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
    let (sandbox, agent) = Sandbox::with_agent()?;
    let witness = attached(&sandbox, "witness")?;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    let open = Conversation::udp(&witness.machine, SocketAddr::new(WORLD[0], 7000))?;
    let pods = (0..PODS)
        .map(|number| attached(&sandbox, &format!("pod-{number}")))
        .collect::<Result<Vec<_>>>()?;
    // The world refuses none of these: refusals are not what is measured.
    sandbox.world.call("nft add table inet quiet")?;
    let chain = "add chain inet quiet input { type filter hook input priority 0; }";
    sandbox.world.call_words(&["nft", chain])?;
    sandbox
        .world
        .call("nft add rule inet quiet input udp dport 10000-20000 drop")?;

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

/// SYNs from ever new ports, none of which will ever be answered, until told to stop or it is enough.
fn flood(pod: &Pod, to: IpAddr, stop: &AtomicBool, most: u32) -> Result<u32> {
    let abi = |address: IpAddr| match address {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    };
    let raw = Raw::sender(&pod.machine, to)?;
    let own = pod.address(to)?;
    let mut sent = 0;
    while sent < most && !stop.load(Ordering::Relaxed) {
        let port = u16::try_from(1_024 + sent % 60_000)?;
        let body = Body::Tcp(port, 81, flag::SYN, Vec::new());
        let mut frame = Frame::new(abi(own), abi(to), body);
        frame.ethernet = None;
        raw.send(&frame.packet(), to)?;
        sent += 1;
    }
    Ok(sent)
}

#[test]
fn one_pods_flood_of_syns_hinders_no_other_pod() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let [bad, good] = [attached(&sandbox, "bad")?, attached(&sandbox, "good")?];
    let _echo = Echo::start(&sandbox.world, 7000)?;
    sandbox.world.call("nft add table inet quiet")?;
    let chain = "add chain inet quiet input { type filter hook input priority 0; }";
    sandbox.world.call_words(&["nft", chain])?;
    sandbox
        .world
        .call("nft add rule inet quiet input tcp dport 81 drop")?;

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
