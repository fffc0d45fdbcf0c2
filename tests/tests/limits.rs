//! Limits beyond the bucket: what a network allows, what passes now, and packets that wait where a link lets them.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::{Agent, Config, Pod, Sandbox, UPLINK, WORLD, deadline, make_roomy, skipped, until};
use serde_json::{Value, json};

const PORT: u16 = 7000;
/// Payload of a datagram: with the headers of IPv4 and UDP 1,400 bytes.
const PAYLOAD: [u8; 1_372] = [7; 1_372];

/// A pod that may send so many bits per second.
fn limited(sandbox: &Sandbox, name: &str, egress: u64) -> Result<Pod> {
    let bandwidth = json!({ "egressRate": egress, "egressBurst": 1 });
    let mut pod = sandbox.pod(name)?;
    pod.add_with(Config::new("1.0.0").with("runtimeConfig", json!({ "bandwidth": bandwidth })))?;
    Ok(pod)
}

/// What the API shows of a pod's limit for what it sends.
fn shown(agent: &Agent, pod: &Pod) -> Result<Value> {
    Ok(agent.limits(pod)?["egress"].clone())
}

/// A socket of the pod whose datagrams the other one, of the world, hears.
fn wire(sandbox: &Sandbox, pod: &Pod) -> Result<(UdpSocket, UdpSocket)> {
    let at = SocketAddr::new(WORLD[0], PORT);
    let inbox = sandbox.world.run(|| UdpSocket::bind(at))?;
    inbox.set_read_timeout(Some(deadline()))?;
    make_roomy(&inbox)?;
    let outbox = pod.machine.run(|| UdpSocket::bind("0.0.0.0:0"))?;
    outbox.connect(at)?;
    Ok((outbox, inbox))
}

#[test]
fn a_network_limits_who_asks_for_nothing_and_who_asks_for_too_much() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let flags = ["--egress-default", "10M", "--egress-ceiling", "50M"];
    let agent = Agent::start(&sandbox.node, &flags)?;
    let mut modest = sandbox.pod("modest")?;
    modest.add()?;
    let greedy = limited(&sandbox, "greedy", 100_000_000)?;
    ensure!(shown(&agent, &modest)?["rate"] == 10_000_000);
    ensure!(shown(&agent, &greedy)?["rate"] == 50_000_000);
    greedy.check()?.success()?;

    let path = format!("/v1/attachments/{}/bandwidth", greedy.id());
    for body in [r#"{"egress": "51M"}"#, r#"{"egress": "none"}"#] {
        let refused = agent.put(&path, body).err().context("it is too much")?;
        ensure!(format!("{refused:#}").contains("no more than 50000000"));
    }
    ensure!(shown(&agent, &greedy)?["rate"] == 50_000_000);
    agent.put(&path, r#"{"egress": "20M"}"#)?;
    ensure!(shown(&agent, &greedy)?["rate"] == 20_000_000);
    Ok(())
}

/// What is paced is otherwise sent in packets of a millisecond's worth.
#[test]
fn tcp_of_a_limited_pod_may_send_large_packets_far_away_where_nobody_has_decided_that() -> Result<()>
{
    const KEY: &str = "sysctl -n net.ipv4.tcp_tso_rtt_log";
    let sandbox = Sandbox::new()?;
    let _agent = Agent::start(&sandbox.node, &[])?;
    let slow = limited(&sandbox, "slow", 10_000_000)?;
    ensure!(slow.machine.call(KEY)?.trim() == "20");
    let mut free = sandbox.pod("free")?;
    free.add()?;
    ensure!(free.machine.call(KEY)?.trim() == "9");

    let mut decided = sandbox.pod("decided")?;
    decided.machine.sysctl("ipv4/tcp_tso_rtt_log", "12")?;
    let bandwidth = json!({ "bandwidth": { "egressRate": 10_000_000, "egressBurst": 1 } });
    decided.add_with(Config::new("1.0.0").with("runtimeConfig", bandwidth))?;
    ensure!(decided.machine.call(KEY)?.trim() == "12");
    Ok(())
}

#[test]
fn how_much_passes_now_is_shown_against_the_limit() -> Result<()> {
    const RATE: u64 = 4_000_000;
    let (sandbox, agent) = Sandbox::with_agent()?;
    let pod = limited(&sandbox, "pod", RATE)?;
    let now = || -> Result<u64> {
        let limit = shown(&agent, &pod)?;
        limit["current_rate"].as_u64().context("no rate is shown")
    };
    let quiet = || Ok((now()? == 0).then_some(()));
    until(
        "nothing passes yet but what a new link says of itself",
        quiet,
    )?;
    let (outbox, _inbox) = wire(&sandbox, &pod)?;
    let stop = AtomicBool::new(false);
    let seen = thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // Two or three times the rate: the bucket refuses the rest.
                let _ = outbox.send(&PAYLOAD);
                thread::sleep(Duration::from_millis(1));
            }
        });
        // More than the rate passes only as long as the burst lasts.
        let at_limit = || {
            Ok((RATE * 8 / 10..=RATE * 11 / 10)
                .contains(&now()?)
                .then_some(()))
        };
        let seen = until("the rate is what the limit lets through", at_limit);
        stop.store(true, Ordering::Relaxed);
        seen
    });
    seen?;
    until("nothing passes any more", quiet)
}

/// Datagrams of one burst: none is refused, and at the rate they take half a second.
const BURST: usize = 46;

/// Where a queue heeds departure times, what goes beyond the rate waits there instead of going at once.
#[test]
fn where_an_uplink_has_fq_packets_of_a_pod_wait_for_their_time() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let fq = format!("tc qdisc replace dev {UPLINK} root fq");
    if sandbox.node.call(&fq).is_err() {
        skipped("sch_fq");
        return Ok(());
    }
    for bypass in ["never", "always"] {
        let agent = Agent::start(&sandbox.node, &["--bypass-netfilter", bypass])?;
        let shaper = agent.get("/v1/status")?["shaper"].clone();
        ensure!(shaper["chosen"] == "edt", "{shaper}");
        let pod = limited(&sandbox, bypass, 1_000_000)?;
        let (outbox, inbox) = wire(&sandbox, &pod)?;
        for _ in 0..BURST {
            outbox.send(&PAYLOAD)?;
        }
        let sent = Instant::now();
        let mut buffer = [0; 2_048];
        for _ in 0..BURST {
            inbox.recv(&mut buffer).context("nothing is refused")?;
        }
        let waited = sent.elapsed();
        ensure!(waited > Duration::from_millis(250), "{waited:?}");
        let limit = shown(&agent, &pod)?;
        ensure!(limit["delayed_packets"].as_u64() > Some(30), "{limit}");
        ensure!(limit["dropped_packets"] == 0, "{limit}");
        pod.del()?;
    }
    Ok(())
}
