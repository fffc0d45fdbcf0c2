//! Limits of pods: what arrives in the other namespace, counted where the limit is so slow that
//! time hardly matters, and measured over seconds only where a rate is the promise.

#[path = "shaping/escape.rs"]
mod escape;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Config, Machine, Mapping, NODE, Pod, Sandbox, WORLD, enlarge_receive_buffer, patient,
    ping, udp_bound, udp_socket, until, until_within,
};
use serde_json::{Value, json};

const PORT: u16 = 7000;
/// Payload of a datagram.
const PAYLOAD: usize = 1_372;
/// What a datagram counts: with the headers of IPv4 and UDP.
const WEIGHT: usize = PAYLOAD + 28;
/// Bytes that pass at once by any slow limit, and the datagrams that these are.
const BURST: usize = (64 << 10) + 1_500;
const BURST_DATAGRAMS: usize = BURST / WEIGHT;
/// Datagrams that the flood of a counting test has: many bursts.
const FLOOD: usize = 400;
/// Datagrams that a new flow can send beyond the bucket: it counts as a small flow until it has
/// sent more.
const SPARED: usize = 4;
/// The slowest limit that is used here, in bits per second.
const SLOW: u64 = 1_000;

/// A socket of `to` that hears datagrams at `at`.
fn hear(to: &Machine, at: SocketAddr) -> Result<UdpSocket> {
    let inbox = udp_bound(to, at)?;
    inbox.set_read_timeout(Some(patient(Duration::from_millis(300))))?;
    enlarge_receive_buffer(&inbox)?;
    Ok(inbox)
}

fn outbox(from: &Machine, to: SocketAddr) -> Result<UdpSocket> {
    Ok(from.run(|| udp_socket(0, to))?)
}

/// Sends many datagrams at once, and returns how many arrive.
fn flood(from: &Machine, to: SocketAddr, receiver: &Machine, at: SocketAddr) -> Result<usize> {
    let (inbox, outbox) = (hear(receiver, at)?, outbox(from, to)?);
    for _ in 0..FLOOD {
        // A full queue of the sender is a datagram that was not sent; there are enough.
        let _ = outbox.send(&[7; PAYLOAD]);
    }
    let mut arrived = 0;
    let mut buffer = [0; 2_048];
    while inbox.recv(&mut buffer).is_ok() {
        arrived += 1;
    }
    Ok(arrived)
}

/// Of a flood behind the burst nothing arrives but what is spared, and what has been paid for since
/// the burst has `begun`.
fn is_spent(arrived: usize, begun: Instant) -> Result<()> {
    let paid = usize::try_from(begun.elapsed().as_secs() * SLOW / 8)?.div_ceil(WEIGHT);
    ensure!(arrived <= SPARED + paid, "{arrived}, with {paid} paid for");
    Ok(())
}

fn is_burst(arrived: usize) -> Result<()> {
    // The debt lets one more pass; at 1 kbit/s the time of the test adds none.
    let expected = BURST_DATAGRAMS..=BURST_DATAGRAMS + 2;
    ensure!(
        expected.contains(&arrived),
        "{arrived} arrived, and not {expected:?}"
    );
    Ok(())
}

fn at(address: IpAddr) -> SocketAddr {
    SocketAddr::new(address, PORT)
}

/// behaviours R16, K28, k8s #48727: both directions, both families.
#[test]
fn a_slow_pod_gets_its_burst_and_no_more_in_either_direction_and_family() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    for (number, world) in WORLD.into_iter().enumerate() {
        let pod = sandbox.limited(&format!("slow{number}"), 1_000, 1_000)?;
        let own = at(pod.address(world)?);
        is_burst(flood(&pod.machine, at(world), &sandbox.world, at(world))?)?;
        is_burst(flood(&sandbox.node, own, &pod.machine, own)?)?;
        pod.check()?.success()?;

        let limits = agent.limits(&pod)?;
        for direction in ["ingress", "egress"] {
            let limit = &limits[direction];
            ensure!(limit["rate"] == 1_000 && limit["burst"] == BURST, "{limit}");
            let dropped = limit["dropped_packets"].as_u64().unwrap_or(0);
            ensure!(dropped > 300, "{limit}");
        }
    }
    let counters = agent.get("/v1/counters")?;
    ensure!(
        counters["drops"]["rate-limit"].as_u64() > Some(1_000),
        "{counters}"
    );
    Ok(())
}

/// behaviour K29, cilium #15824: pods of one node are limited too, by the bridge, past it, and by
/// hostports.
#[test]
fn a_limit_applies_to_pod_to_pod_traffic_on_every_path() -> Result<()> {
    for bypass in ["never", "always"] {
        let sandbox = Sandbox::new()?;
        let agent = Agent::start(&sandbox.node, &["--bypass-netfilter", bypass])?;
        let mut client = sandbox.pod("client")?;
        client.add()?;
        let direct = sandbox.limited("direct", 1_000, 0)?;
        let to = at(direct.address(WORLD[0])?);
        is_burst(flood(&client.machine, to, &direct.machine, to)?)?;

        let published = limited_with_port(&sandbox)?;
        let to = SocketAddr::new(NODE[0], 8080);
        let own = at(published.address(WORLD[0])?);
        is_burst(flood(&client.machine, to, &published.machine, own)?)?;
        let limits = agent.limits(&published)?;
        ensure!(
            limits["ingress"]["dropped_packets"].as_u64() > Some(300),
            "{limits}"
        );
    }
    Ok(())
}

fn limited_with_port(sandbox: &Sandbox) -> Result<Pod> {
    let mapping = Mapping::udp(8080, PORT);
    let config = Config::new("1.0.0")
        .publish(&[mapping])
        .with("ingressRate", json!(1_000))
        .with("ingressBurst", json!(8_000));
    let mut pod = sandbox.pod("published")?;
    pod.add_with(config)?;
    Ok(pod)
}

/// behaviour R16: the address of the other end decides, in both directions and families.
#[test]
fn limits_are_for_shaped_subnets_alone_and_not_for_unshaped_ones() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let others: [IpAddr; 2] = ["192.0.2.77".parse()?, "2001:db8:1::77".parse()?];
    for (address, length) in others.into_iter().zip(["24", "64 nodad"]) {
        sandbox
            .world
            .call(&format!("ip address add {address}/{length} dev eth0"))?;
    }
    let listed = json!([format!("{}/32", others[0]), format!("{}/124", others[1])]);
    for (number, world) in WORLD.into_iter().enumerate() {
        let apart = [world, others[number]].map(at);
        for (key, limited_at) in [("shapedSubnets", 1), ("unshapedSubnets", 0)] {
            let pod = limited_with(&sandbox, &format!("{key}{number}"), key, &listed)?;
            for (index, to) in apart.into_iter().enumerate() {
                let arrived = flood(&pod.machine, to, &sandbox.world, to)?;
                if index == limited_at {
                    is_burst(arrived).with_context(|| format!("{key} to {to}"))?;
                } else {
                    ensure!(
                        arrived > FLOOD * 9 / 10,
                        "{key} to {to}: {arrived} of {FLOOD}"
                    );
                }
            }
            // The node is in neither list.
            let own = at(pod.address(world)?);
            let arrived = flood(&sandbox.node, own, &pod.machine, own)?;
            match key {
                "shapedSubnets" => ensure!(arrived > FLOOD * 9 / 10, "{arrived} of {FLOOD}"),
                _ => is_burst(arrived)?,
            }
            agent.kill()?;
            agent.restart()?;
            pod.check()?.success()?;
            ensure!(
                listing(&agent.limits(&pod)?, key) == 2,
                "{}",
                agent.limits(&pod)?
            );
            pod.del()?;
        }
    }
    Ok(())
}

/// How many prefixes the API shows for a key of the configuration.
fn listing(limits: &Value, key: &str) -> usize {
    let key = match key {
        "shapedSubnets" => "shaped_subnets",
        _ => "unshaped_subnets",
    };
    limits[key].as_array().map_or(0, Vec::len)
}

/// A pod that is limited to almost nothing in both directions, with a list of subnets.
fn limited_with(sandbox: &Sandbox, name: &str, key: &str, subnets: &Value) -> Result<Pod> {
    let bandwidth = json!({
        "ingressRate": 1_000, "ingressBurst": 8_000, "egressRate": 1_000, "egressBurst": 8_000,
        key: subnets,
    });
    let mut pod = sandbox.pod(name)?;
    let runtime = json!({ "bandwidth": bandwidth });
    pod.add_with(Config::new("1.0.0").with("runtimeConfig", runtime))?;
    Ok(pod)
}

/// The limit is the datapath's: it needs no agent, and the next agent finds it.
#[test]
fn a_limit_outlives_the_agent_and_goes_with_its_pod() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let pod = sandbox.limited("limited", 0, 1_000)?;
    agent.kill()?;
    let world = at(WORLD[0]);
    let begun = Instant::now();
    is_burst(flood(&pod.machine, world, &sandbox.world, world)?)?;
    agent.restart()?;
    pod.check()?.success()?;
    let limits = agent.limits(&pod)?;
    ensure!(limits["egress"]["rate"] == 1_000, "{limits}");
    // What was used up is not given again.
    is_spent(flood(&pod.machine, world, &sandbox.world, world)?, begun)?;

    pod.del()?;
    let mut next = sandbox.pod("next")?;
    next.add()?;
    let arrived = flood(&next.machine, world, &sandbox.world, world)?;
    ensure!(arrived > FLOOD * 9 / 10, "{arrived} of {FLOOD}");
    Ok(())
}

/// behaviour U4, calico #9145
#[test]
fn a_limit_changes_while_the_pod_runs_and_is_remembered() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    let world = at(WORLD[0]);
    let printed = agent.ctl(&format!("limit {} --egress 1k", pod.id()))?;
    ensure!(printed.contains("egress 1000"), "{printed}");
    is_burst(flood(&pod.machine, world, &sandbox.world, world)?)?;
    agent.kill()?;
    agent.restart()?;
    ensure!(agent.limits(&pod)?["egress"]["rate"] == 1_000);
    pod.check()?.success()?;

    let path = format!("/v1/attachments/{}/eth0/bandwidth", pod.id());
    let now = agent.put(&path, r#"{"egress": "none", "ingress": "2M"}"#)?;
    ensure!(
        now == json!({"ingress": "2000000", "egress": "none"}),
        "{now}"
    );
    let arrived = flood(&pod.machine, world, &sandbox.world, world)?;
    ensure!(arrived > FLOOD * 9 / 10, "{arrived} of {FLOOD}");
    for body in [
        r#"{"egress": "fast"}"#,
        r#"{"egress": "-1"}"#,
        r#"{"egress": "2P"}"#,
    ] {
        ensure!(agent.put(&path, body).is_err(), "{body}");
    }
    ensure!(agent.limits(&pod)?["egress"].is_null());
    pod.check()?.success()?;

    // The only interface needs no name.
    let path = format!("/v1/attachments/{}/bandwidth", pod.id());
    let now = agent.put(&path, r#"{"egress": "3M"}"#)?;
    ensure!(
        now == json!({"ingress": "2000000", "egress": "3000000"}),
        "{now}"
    );
    let views: Value = serde_json::from_str(&agent.ctl(&format!("inspect {}", pod.id()))?)?;
    ensure!(
        views[0]["bandwidth"]["egress"]["rate"] == 3_000_000,
        "{views}"
    );
    let top = agent.ctl("top --once")?;
    let row = top.lines().nth(1).unwrap_or_default();
    ensure!(row.contains("3.0M"), "{top}");
    Ok(())
}

/// Bits per second that arrive over two seconds of twice the rate, once the burst is gone.
///
/// Waits for a measurement in which the sender is never late by more than the burst makes up for:
/// on a busy machine it may offer less than the rate.
fn rate(from: &Machine, receiver: &Machine, to: SocketAddr, offered: u64) -> Result<f64> {
    until_within(
        Duration::from_secs(30),
        "the sender offers twice the rate",
        || {
            let (rate, late) = measure(from, receiver, to, offered)?;
            let burst = Duration::from_millis(u64::try_from(BURST)? * 16_000 / offered);
            Ok((late < burst).then_some(rate))
        },
    )
}

/// Sends `offered` bits per second for three seconds. Returns the bits per second that arrive in
/// the last two, and the longest interval in which nothing was sent.
fn measure(
    from: &Machine,
    receiver: &Machine,
    to: SocketAddr,
    offered: u64,
) -> Result<(f64, Duration)> {
    const PAUSE: Duration = Duration::from_millis(5);
    let (inbox, outbox) = (hear(receiver, to)?, outbox(from, to)?);
    let (warm, span) = (Duration::from_millis(1_200), Duration::from_secs(2));
    let begin = Instant::now();
    let end = begin + warm + span;
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let (mut sent, mut last, mut late) = (0_u64, begin, Duration::ZERO);
            while Instant::now() < end {
                late = late.max(last.elapsed());
                last = Instant::now();
                let due =
                    offered / 8 * u64::try_from(begin.elapsed().as_millis()).unwrap_or(0) / 1_000;
                while sent < due {
                    let _ = outbox.send(&[7; PAYLOAD]);
                    sent += WEIGHT as u64;
                }
                std::thread::sleep(PAUSE);
            }
            late
        });
        let mut buffer = [0; 2_048];
        let mut bytes = 0_u32;
        while Instant::now() < end {
            let heard = inbox.recv(&mut buffer).is_ok();
            if heard && begin.elapsed() > warm && Instant::now() < end {
                bytes += u32::try_from(WEIGHT)?;
            }
        }
        let late = sender.join().ok().context("the sender panicked")?;
        Ok((f64::from(bytes) * 8.0 / span.as_secs_f64(), late))
    })
}

#[test]
fn datagrams_at_twice_the_rate_arrive_at_the_rate() -> Result<()> {
    const RATE: u64 = 8_000_000;
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = sandbox.limited("pod", RATE, RATE)?;
    let own = at(pod.address(WORLD[0])?);
    let sent = rate(&pod.machine, &sandbox.world, at(WORLD[0]), 2 * RATE)?;
    let received = rate(&sandbox.node, &pod.machine, own, 2 * RATE)?;
    for (direction, measured) in [("from", sent), ("to", received)] {
        let share = measured / 8_000_000.0;
        ensure!(
            (0.9..=1.1).contains(&share),
            "{direction} the pod: {share:.3} of the rate"
        );
    }
    Ok(())
}

/// A question that is lost beside a bulk flow waits for a retransmission: none is.
#[test]
fn request_response_latency_stays_low_beside_a_flood_of_the_same_pod() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let pod = sandbox.limited("busy", 2_000_000, 2_000_000)?;
    let flood = outbox(&pod.machine, at(WORLD[0]))?;
    let flooding = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while flooding.load(std::sync::atomic::Ordering::Relaxed) {
                for _ in 0..20 {
                    let _ = flood.send(&[7; PAYLOAD]);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let drops = || -> Result<u64> {
            let limits = agent.limits(&pod)?;
            limits["egress"]["dropped_packets"]
                .as_u64()
                .context("no drops are shown")
        };
        let measured = until(
            "the flood is limited",
            || Ok((drops()? > 100).then_some(())),
        )
        // Every one of them must be answered.
        .and_then(|()| {
            pod.machine
                .call(&format!("ping -n -q -c 100 -i 0.02 -W 3 {}", WORLD[0]))
        });
        flooding.store(false, std::sync::atomic::Ordering::Relaxed);
        let printed = measured?;
        ensure!(printed.contains(" 0% packet loss"), "{printed}");
        let limits = agent.limits(&pod)?;
        ensure!(
            limits["egress"]["spared_packets"].as_u64() > Some(0),
            "{limits}"
        );
        ping(&pod.machine, WORLD[1], 3).map(drop)
    })
}

/// behaviour R16: nothing half-set.
#[test]
fn an_invalid_limit_fails_the_add_and_leaves_nothing() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let cases = [
        (
            json!({"ingressRate": 1_000_000}),
            "if rate is set, burst must also be set",
        ),
        (json!({"egressRate": -5, "egressBurst": 1}), "negative"),
        (
            json!({"shapedSubnets": ["10.0.0.0/8"], "unshapedSubnets": ["10.0.0.0/9"]}),
            "cannot be both specified",
        ),
    ];
    for (number, (bandwidth, words)) in cases.into_iter().enumerate() {
        let mut pod = sandbox.pod(&format!("refused{number}"))?;
        let runtime = json!({ "bandwidth": bandwidth });
        let config = Config::new("1.0.0").with("runtimeConfig", runtime);
        let error = pod.add_with(config).err().context("the ADD must fail")?;
        let text = format!("{error:#}");
        ensure!(text.contains(words), "{text}");
    }
    ensure!(agent.get("/v1/attachments")? == json!([]));
    Ok(())
}
