//! Bandwidth limits beyond the token bucket: defaults and ceilings of a network, the current rate,
//! and departure times where the uplink has an fq qdisc.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Config, Pod, Sandbox, UPLINK, WORLD, deadline, enlarge_receive_buffer,
    keeps_departure_times, skipped, until,
};
use serde_json::{Value, json};

const PORT: u16 = 7000;
/// Payload of a datagram: 1,400 bytes with the headers of IPv4 and UDP.
const PAYLOAD: [u8; 1_372] = [7; 1_372];

/// Creates a pod with an egress limit in bits per second.
fn limited(sandbox: &Sandbox, name: &str, egress: u64) -> Result<Pod> {
    let bandwidth = json!({ "egressRate": egress, "egressBurst": 1 });
    let mut pod = sandbox.pod(name)?;
    pod.add_with(Config::new("1.0.0").with("runtimeConfig", json!({ "bandwidth": bandwidth })))?;
    Ok(pod)
}

/// Returns the API's view of a pod's egress limit.
fn shown(agent: &Agent, pod: &Pod) -> Result<Value> {
    Ok(agent.limits(pod)?["egress"].clone())
}

/// Returns a connected socket of the pod, and the socket of the world that receives from it.
fn wire(sandbox: &Sandbox, pod: &Pod) -> Result<(UdpSocket, UdpSocket)> {
    let at = SocketAddr::new(WORLD[0], PORT);
    let inbox = sandbox.world.run(|| UdpSocket::bind(at))?;
    inbox.set_read_timeout(Some(deadline()))?;
    enlarge_receive_buffer(&inbox)?;
    let outbox = pod.machine.run(|| UdpSocket::bind("0.0.0.0:0"))?;
    outbox.connect(at)?;
    Ok((outbox, inbox))
}

#[test]
fn default_and_ceiling_limits_of_a_network_apply_to_pods() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let flags = ["--egress-default", "10M", "--egress-ceiling", "50M"];
    let agent = Agent::start(&sandbox.node, &flags)?;
    let mut without_limit = sandbox.pod("modest")?;
    without_limit.add()?;
    let above_ceiling = limited(&sandbox, "greedy", 100_000_000)?;
    ensure!(shown(&agent, &without_limit)?["rate"] == 10_000_000);
    ensure!(shown(&agent, &above_ceiling)?["rate"] == 50_000_000);
    above_ceiling.check()?.success()?;

    let path = format!("/v1/attachments/{}/bandwidth", above_ceiling.id());
    for body in [r#"{"egress": "51M"}"#, r#"{"egress": "none"}"#] {
        let refused = agent
            .put(&path, body)
            .err()
            .context("a rate above the ceiling was accepted")?;
        ensure!(format!("{refused:#}").contains("ceiling of its network: 50000000"));
    }
    ensure!(shown(&agent, &above_ceiling)?["rate"] == 50_000_000);
    agent.put(&path, r#"{"egress": "20M"}"#)?;
    ensure!(shown(&agent, &above_ceiling)?["rate"] == 20_000_000);
    Ok(())
}

/// Paced TCP otherwise sends packets of a millisecond's worth of data.
#[test]
fn a_limited_pod_gets_a_larger_tcp_tso_rtt_log_unless_it_was_set() -> Result<()> {
    const KEY: &str = "sysctl -n net.ipv4.tcp_tso_rtt_log";
    let sandbox = Sandbox::new()?;
    let _agent = Agent::start(&sandbox.node, &[])?;
    let slow = limited(&sandbox, "slow", 10_000_000)?;
    ensure!(slow.machine.call(KEY)?.trim() == "20");
    let mut free = sandbox.pod("free")?;
    free.add()?;
    ensure!(free.machine.call(KEY)?.trim() == "9");

    let mut preset = sandbox.pod("preset")?;
    preset.machine.sysctl("ipv4/tcp_tso_rtt_log", "12")?;
    let bandwidth = json!({ "bandwidth": { "egressRate": 10_000_000, "egressBurst": 1 } });
    preset.add_with(Config::new("1.0.0").with("runtimeConfig", bandwidth))?;
    ensure!(preset.machine.call(KEY)?.trim() == "12");
    Ok(())
}

#[test]
fn the_current_rate_is_shown_beside_the_limit() -> Result<()> {
    const RATE: u64 = 4_000_000;
    let (sandbox, agent) = Sandbox::with_agent()?;
    let pod = limited(&sandbox, "pod", RATE)?;
    let now = || -> Result<u64> {
        let limit = shown(&agent, &pod)?;
        limit["current_rate"].as_u64().context("no rate is shown")
    };
    let quiet = || Ok((now()? == 0).then_some(()));
    until(
        "the rate is zero after the first packets of a new link",
        quiet,
    )?;
    let (outbox, _inbox) = wire(&sandbox, &pod)?;
    let stop = AtomicBool::new(false);
    let seen = thread::scope(|scope| {
        scope.spawn(|| {
            let begun = Instant::now();
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                // One per millisecond, also on a busy machine, is two or three times the rate: the
                // bucket drops the rest.
                while sent < begun.elapsed().as_millis() {
                    let _ = outbox.send(&PAYLOAD);
                    sent += 1;
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        // The rate is exceeded only during the burst.
        let at_limit = || {
            Ok((RATE * 8 / 10..=RATE * 11 / 10)
                .contains(&now()?)
                .then_some(()))
        };
        let seen = until("the current rate equals the limit", at_limit);
        stop.store(true, Ordering::Relaxed);
        seen
    });
    seen?;
    until("the current rate is zero again", quiet)
}

/// Datagrams of one burst: none is dropped, and at the rate they take half a second.
const BURST: usize = 46;

/// A qdisc that supports departure times holds packets beyond the rate instead of sending them at
/// once.
#[test]
fn packets_beyond_the_limit_wait_in_the_uplinks_fq_qdisc() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let fq = format!("tc qdisc replace dev {UPLINK} root fq");
    if sandbox.node.call(&fq).is_err() {
        skipped("sch_fq");
        return Ok(());
    }
    if !keeps_departure_times() {
        skipped("bpf_skb_set_tstamp");
        return Ok(());
    }
    for bypass in ["never", "always"] {
        let agent = Agent::start(&sandbox.node, &["--bypass-netfilter", bypass])?;
        let shaper = agent.get("/v1/status")?["shaper"].clone();
        ensure!(shaper["chosen"] == "edt", "{shaper}");
        let pod = limited(&sandbox, bypass, 1_000_000)?;
        let (outbox, inbox) = wire(&sandbox, &pod)?;
        // Before the first datagram: on a busy machine, some arrive before the last is sent.
        let begun = Instant::now();
        for _ in 0..BURST {
            outbox.send(&PAYLOAD)?;
        }
        let mut buffer = [0; 2_048];
        for _ in 0..BURST {
            inbox.recv(&mut buffer).context("a datagram was dropped")?;
        }
        let waited = begun.elapsed();
        ensure!(waited > Duration::from_millis(250), "{waited:?}");
        let limit = shown(&agent, &pod)?;
        ensure!(limit["delayed_packets"].as_u64() > Some(30), "{limit}");
        ensure!(limit["dropped_packets"] == 0, "{limit}");
        pod.del()?;
    }
    Ok(())
}
