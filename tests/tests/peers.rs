//! Peers: pods of several nodes see each other's own addresses, by routes that follow the list.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::cluster::{Cluster, large_cluster, peer};
use e2e::{Agent, Machine, Sandbox, UPLINK, patient, until};
use serde_json::{Value, json};

const FILE: &str = "/run/peers.json";

/// Peers of the largest cluster.
const MANY: u32 = 5_000;

fn routes(node: &Machine) -> Result<Vec<String>> {
    let mut routes = Vec::new();
    for family in ["-4", "-6"] {
        let shown = node.call(&format!("ip {family} route show proto 118"))?;
        routes.extend(shown.lines().map(|line| line.trim().to_owned()));
    }
    Ok(routes)
}

fn route_count(node: &Machine) -> Result<usize> {
    Ok(routes(node)?.len())
}

fn degraded(agent: &Agent) -> Result<String> {
    Ok(agent.get("/v1/status")?["degraded"].to_string())
}

fn await_degraded(agent: &Agent, words: &str, expected: bool) -> Result<()> {
    until(&format!("degraded has {words:?}: {expected}"), || {
        Ok((degraded(agent)?.contains(words) == expected).then_some(()))
    })
}

/// Replaces the file, as most programs write files.
fn write(node: &Machine, text: &str) -> Result<()> {
    let new = format!("{FILE}.new");
    node.mounts().run(|| {
        std::fs::write(&new, text)?;
        Ok(std::fs::rename(&new, FILE)?)
    })
}

#[test]
fn pods_of_three_nodes_see_each_others_own_addresses() -> Result<()> {
    let mut cluster = Cluster::new(3, &[])?;
    let before = cluster.nodes[0].host.sandbox.node.call("ip route show")?;
    cluster.put_all_peers()?;
    cluster.await_connected()?;
    let listed = cluster.nodes[0].agent.ctl("peers")?;
    assert!(listed.contains("via 198.51.100.2 dev lan0"), "{listed}");

    // A node is readdressed: the others replace their routes.
    cluster.nodes[2].readdress(33)?;
    let mut moved = peer(3);
    moved["addresses"] = peer(33)["addresses"].clone();
    cluster.nodes[0].put_peers(&json!([peer(2), moved]))?;
    cluster.nodes[1].put_peers(&json!([peer(1), moved]))?;
    cluster.await_connected()?;

    // A node leaves: its routes go, and no others.
    let node = &cluster.nodes[0];
    node.put_peers(&json!([peer(2)]))?;
    let left = routes(&node.host.sandbox.node)?;
    ensure!(
        left.len() == 2
            && left
                .iter()
                .all(|one| one.contains("81.2.0") || one.contains("81:2:")),
        "{left:?}"
    );
    node.await_seen_by(&cluster.nodes[1])?;
    node.put_peers(&json!([]))?;
    assert_eq!(node.host.sandbox.node.call("ip route show")?, before);
    Ok(())
}

#[test]
fn a_peer_that_changes_its_pod_cidr_is_followed() -> Result<()> {
    let mut cluster = Cluster::new(2, &[])?;
    cluster.put_all_peers()?;
    cluster.await_connected()?;
    let second = &mut cluster.nodes[1];
    second.pod.del()?;
    let cidrs = json!({ "podCIDRs": ["10.81.9.0/24", "fd00:81:9::/64"] });
    second.agent.put("/v1/pod-cidrs", &cidrs.to_string())?;
    second.pod.add()?;
    let mut moved = peer(2);
    moved["prefixes"] = peer(9)["prefixes"].clone();
    cluster.nodes[0].put_peers(&json!([moved]))?;
    cluster.await_connected()
}

#[test]
fn a_peers_file_is_followed_and_a_broken_one_changes_nothing() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut agent = Agent::start(&sandbox.node, &["--peers-file", FILE])?;
    let node = &sandbox.node;
    await_degraded(&agent, "peers-unreadable", true)?;
    let b = r#"{"name":"b","prefixes":["10.82.2.0/24"],"addresses":["192.0.2.2"]}"#;
    let far = r#"{"name":"far","prefixes":["10.82.3.0/24"],"addresses":["203.0.113.3"]}"#;
    write(node, &format!("[{b},{far}]"))?;
    await_degraded(
        &agent,
        "peer far has no IPv4 address on a link of this node",
        true,
    )?;
    let expected = ["10.82.2.0/24 via 192.0.2.2 dev up0 metric 2048 onlink"];
    assert_eq!(routes(node)?, expected);
    await_degraded(&agent, "peers-unreadable", false)?;

    // Half-written in place, then missing.
    node.call_words(&["sh", "-c", &format!("printf '[{{' > {FILE}")])?;
    await_degraded(&agent, "peers-unreadable", true)?;
    assert_eq!(routes(node)?, expected);
    node.call(&format!("rm {FILE}"))?;
    // Without its source, a restarted agent has the last list.
    agent.kill()?;
    node.call("ip route flush proto 118")?;
    agent.restart()?;
    assert_eq!(routes(node)?, expected);

    // Replaced in place.
    node.call_words(&["sh", "-c", &format!("printf '%s' '[{b}]' > {FILE}")])?;
    await_degraded(&agent, "peer-not-on-link", false)?;
    await_degraded(&agent, "peers-unreadable", false)?;
    let metrics =
        node.call("curl --silent --unix-socket /run/viaduct/viaduct.sock http://v/metrics")?;
    for line in [
        "viaduct_peers{state=\"routed\"} 1",
        "viaduct_peers_reached{way=\"route\"} 1",
        "viaduct_peers_reached{way=\"tunnel\"} 0",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }

    // A list that was set over the API stays while the file does not change, until it is gone.
    agent.put("/v1/peers", "[]")?;
    node.call("touch /run/other")?;
    node.call(&format!("rm {FILE}"))?;
    await_degraded(&agent, "peers-unreadable", true)?;
    assert_eq!(route_count(node)?, 0);
    Ok(())
}

#[test]
fn viaductctl_replaces_the_list_of_peers_and_refuses_an_invalid_one() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    assert_eq!(agent.ctl("peers")?, "No peers.\n");
    write(
        node,
        r#"[{"name":"b","prefixes":["10.82.2.0/24"],"addresses":["192.0.2.2"]}]"#,
    )?;
    let shown = agent.ctl(&format!("peers set {FILE}"))?;
    assert!(
        shown.contains("routed") && shown.contains("via 192.0.2.2 dev up0"),
        "{shown}"
    );
    let json: Value = serde_json::from_str(&agent.ctl("peers -o json")?)?;
    assert_eq!(json[0]["state"], "routed");
    write(node, r#"[{"name":"b","prefixes":["0.0.0.0/0"]}]"#)?;
    let refused = format!("{:#}", agent.ctl(&format!("peers set {FILE}")).unwrap_err());
    assert!(
        refused.contains("peer b: 0.0.0.0/0 cannot be a prefix of pods"),
        "{refused}"
    );
    assert_eq!(route_count(node)?, 1);
    Ok(())
}

#[test]
fn routes_of_other_software_stay_and_are_reported() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let list = json!([
        { "name": "b", "prefixes": ["10.82.2.0/24", "fd00:82:2::/64"],
          "addresses": ["192.0.2.2", "2001:db8:1::2"] },
        { "name": "c", "prefixes": ["10.82.3.0/24"], "addresses": ["192.0.2.3"] },
    ]);
    agent.put("/v1/peers", &list.to_string())?;
    assert_eq!(route_count(node)?, 3);
    node.call("ip route add 10.82.2.0/24 via 192.0.2.2 proto bird")?;
    await_degraded(
        &agent,
        "other software (route protocol 12) has a route to 10.82.2.0/24",
        true,
    )?;
    until("our route is gone", || {
        Ok((route_count(node)? == 2).then_some(()))
    })?;
    assert!(
        node.call("ip route show 10.82.2.0/24")?
            .contains("proto bird")
    );
    node.call("ip route del 10.82.2.0/24 proto bird")?;
    until("our route is back", || {
        Ok((route_count(node)? == 3).then_some(()))
    })?;

    node.call("ip route add 10.83.0.0/24 via 192.0.2.2 proto zebra")?;
    agent.ctl("uninstall --yes")?;
    assert_eq!(route_count(node)?, 0);
    assert!(
        node.call("ip route show 10.83.0.0/24")?
            .contains("proto zebra")
    );
    Ok(())
}

#[test]
fn prefixes_of_followed_routes_keep_the_pods_addresses_while_the_routes_exist() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let _agent = Agent::start(&sandbox.node, &["--non-masquerade-routes", "bird"])?;
    let node = &sandbox.node;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    let own = pod.addresses[0];
    let world = &sandbox.world;
    world.call("ip address add 10.84.0.1/24 dev eth0")?;
    world.call(&format!("ip route add {own} via 192.0.2.1"))?;
    let _server = e2e::Echo::start(world, 7000)?;
    let seen = |expected| {
        until(&format!("10.84.0.1 sees {expected}"), || {
            let found = e2e::Connection::tcp(&pod.machine, "10.84.0.1:7000".parse()?);
            Ok(found
                .is_ok_and(|found| found.seen().ip() == expected)
                .then_some(()))
        })
    };
    seen(e2e::NODE[0])?;
    node.call(&format!(
        "ip route add 10.84.0.0/24 via 192.0.2.2 dev {UPLINK} proto bird"
    ))?;
    seen(own)?;
    node.call("ip route del 10.84.0.0/24 proto bird")?;
    seen(e2e::NODE[0])
}

/// Returns the resident memory of the agent in KiB, and its peak.
fn memory(agent: &Agent) -> Result<(u64, u64)> {
    let pid = agent.pid().context("the agent runs")?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = |key: &str| -> Result<u64> {
        let line = status.lines().find(|line| line.starts_with(key));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        Ok(number.with_context(|| format!("no {key}"))?.parse()?)
    };
    Ok((value("VmRSS:")?, value("VmHWM:")?))
}

/// Returns the CPU time of all threads of the agent.
fn cpu_time(agent: &Agent) -> Result<Duration> {
    let pid = agent.pid().context("the agent runs")?;
    let mut total = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        total += text
            .split_whitespace()
            .next()
            .context("no time")?
            .parse::<u64>()?;
    }
    Ok(Duration::from_nanos(total))
}

/// 5,000 peers of both families, as pod CIDRs of a cluster are allocated: one after the other.
#[test]
fn five_thousand_peers_are_programmed_in_seconds() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    node.call(&format!("ip address add 172.20.255.1/16 dev {UPLINK}"))?;
    node.call(&format!(
        "ip address add 2001:db8:77::ffff/64 dev {UPLINK} nodad"
    ))?;
    agent.put("/v1/peers", "[]")?;
    let (before, _) = memory(&agent)?;
    write(node, &large_cluster(MANY).to_string())?;
    let set = format!("peers set {FILE} -o json");
    let (started, cpu) = (Instant::now(), cpu_time(&agent)?);
    let shown: Value = serde_json::from_str(&agent.ctl(&set)?)?;
    let (took, cpu) = (started.elapsed(), cpu_time(&agent)?.saturating_sub(cpu));
    let shown = shown.as_array().context("a list")?;
    ensure!(shown.len() == MANY as usize);
    ensure!(shown.iter().all(|one| one["state"] == "routed"));
    assert_eq!(route_count(node)?, 2 * MANY as usize);
    // Reconciliations and responses take more, and give it back.
    let (after, peak) = until("the agent has 8 MiB more than before", || {
        let (now, peak) = memory(&agent)?;
        Ok((now < before + (8 << 10)).then_some((now, peak)))
    })?;
    println!("5,000 peers: {took:?}, CPU {cpu:?}, RSS {before} → {after} KiB, peak {peak} KiB");
    ensure!(took < patient(Duration::from_secs(5)), "{took:?}");
    ensure!(cpu < Duration::from_secs(5), "{cpu:?}");

    // A node that comes changes two routes; a restarted agent finds all of them.
    let mut fewer = large_cluster(MANY);
    fewer.as_array_mut().context("a list")?.pop();
    write(node, &fewer.to_string())?;
    agent.ctl(&set)?;
    assert_eq!(route_count(node)?, 2 * MANY as usize - 2);
    agent.kill()?;
    node.call("ip route del 10.100.7.0/24")?;
    agent.restart()?;
    assert_eq!(route_count(node)?, 2 * MANY as usize - 2);
    Ok(())
}

#[test]
fn an_agent_that_is_killed_while_it_adds_routes_adds_the_rest_at_its_start() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    node.call(&format!("ip address add 172.20.255.1/16 dev {UPLINK}"))?;
    node.call(&format!(
        "ip address add 2001:db8:77::ffff/64 dev {UPLINK} nodad"
    ))?;
    write(node, &large_cluster(MANY).to_string())?;
    let request = format!(
        "curl --silent --unix-socket {} --request PUT --data @{FILE} http://v/v1/peers",
        e2e::SOCKET
    );
    let words: Vec<&str> = request.split_whitespace().collect();
    let client = e2e::Process::start(node, &words)?;
    until("some routes are there", || {
        Ok((route_count(node)? > 0).then_some(()))
    })?;
    agent.kill()?;
    drop(client);
    agent.restart()?;
    assert_eq!(route_count(node)?, 2 * MANY as usize);
    Ok(())
}
