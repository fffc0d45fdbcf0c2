//! Tunnels to the peers of a large cluster.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::cluster::large_cluster;
use e2e::{Agent, Sandbox, UPLINK, patient, until};
use serde_json::Value;

const TUNNEL: &str = "viaduct.vx";
const FILE: &str = "/run/peers.json";

/// Peers of the largest cluster.
const MANY: u32 = 5_000;

fn status_of(agent: &Agent, key: &str) -> Result<u64> {
    let pid = agent.pid().context("the agent runs")?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with(key));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(number.with_context(|| format!("no {key}"))?.parse()?)
}

/// Returns the CPU time of all threads of the agent.
fn cpu_time(agent: &Agent) -> Result<Duration> {
    let pid = agent.pid().context("the agent runs")?;
    let mut total = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let ran = text.split_whitespace().next().context("no time")?;
        total += ran.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(total))
}

#[test]
fn five_thousand_tunnelled_peers_are_programmed_in_seconds() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut agent = Agent::start(&sandbox.node, &["--between-nodes=tunnel"])?;
    let node = &sandbox.node;
    node.call(&format!("ip address add 172.20.255.1/16 dev {UPLINK}"))?;
    agent.put("/v1/peers", "[]")?;
    let before = status_of(&agent, "VmRSS:")?;
    let text = large_cluster(MANY).to_string();
    node.mounts().run(|| std::fs::write(FILE, &text))?;
    let (started, cpu) = (Instant::now(), cpu_time(&agent)?);
    let shown: Value = serde_json::from_str(&agent.ctl(&format!("peers set {FILE} -o json"))?)?;
    let (took, cpu) = (started.elapsed(), cpu_time(&agent)?.saturating_sub(cpu));
    let shown = shown.as_array().context("a list")?;
    ensure!(shown.len() == MANY as usize);
    ensure!(
        shown
            .iter()
            .all(|one| one["state"] == "routed" && one["tunnel"].is_string())
    );
    let count = |command: &str| -> Result<usize> { Ok(node.call(command)?.lines().count()) };
    let all = || -> Result<[usize; 3]> {
        Ok([
            count(&format!("bridge fdb show dev {TUNNEL}"))?,
            count(&format!("ip neigh show dev {TUNNEL} nud permanent"))?,
            count("ip route show proto 118")?,
        ])
    };
    let expected = [MANY as usize; 3];
    let found = all()?;
    ensure!(
        found[0] == expected[0] && found[2] == expected[2],
        "{found:?}"
    );
    // Reconciliations and responses take more, and give it back.
    let after = until("the agent has 16 MiB more than before", || {
        let now = status_of(&agent, "VmRSS:")?;
        Ok((now < before + (16 << 10)).then_some(now))
    })?;
    let peak = status_of(&agent, "VmHWM:")?;
    println!(
        "5,000 tunnelled peers: {took:?}, CPU {cpu:?}, RSS {before} → {after} KiB, peak {peak} KiB"
    );
    ensure!(took < patient(Duration::from_secs(10)), "{took:?}");
    ensure!(cpu < Duration::from_secs(8), "{cpu:?}");
    agent.kill()?;
    let started = Instant::now();
    agent.restart()?;
    println!("restart: {:?}", started.elapsed());
    ensure!(all()? == found);
    Ok(())
}
