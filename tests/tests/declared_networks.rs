//! The operator's lists of bridges and subnets that networks of CNI configurations may use
//! (decision 106).

use std::net::IpAddr;

use anyhow::Result;
use e2e::residue::await_no_residue;
use e2e::{Agent, Config, Pod, Residue, Sandbox, Verb, ping};
use serde_json::{Value, json};

/// Code of CNI for an invalid network configuration.
const INVALID_CONFIG: u64 = 7;

fn network(bridge: &str, ipam: &Value) -> Config {
    Config::new("1.1.0")
        .with("name", json!(format!("of-{bridge}")))
        .with("bridge", json!(bridge))
        .with("isGateway", json!(true))
        .with("ipam", ipam.clone())
}

fn ranges(subnets: &[&str]) -> Value {
    let sets: Vec<Value> = subnets
        .iter()
        .map(|subnet| json!([{ "subnet": subnet }]))
        .collect();
    json!({ "type": "host-local", "ranges": sets })
}

/// Fails unless ADD is refused with these words, and STATUS, which has no static addresses.
fn is_refused(sandbox: &Sandbox, pod: &Pod, config: &Config, words: &str) -> Result<()> {
    let is_static = config.0["ipam"]["type"] == "static";
    let verbs = [Verb::Add, Verb::Status].into_iter();
    for verb in verbs.filter(|verb| !is_static || *verb == Verb::Add) {
        let error = pod.prepare(verb, config).run(&sandbox.node)?.error()?;
        assert_eq!(error.code, INVALID_CONFIG, "{} {}", verb.name(), error.msg);
        assert!(error.msg.contains(words), "{} {}", verb.name(), error.msg);
    }
    Ok(())
}

#[test]
fn networks_outside_of_the_operators_lists_are_refused_without_a_trace() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    let flags = [
        "--declared-bridge=cni*,tenant-br",
        "--declared-subnet=10.7.0.0/16,fd07::/32",
    ];
    let agent = Agent::start(node, &flags)?;
    let before = Residue::of(node, &[])?;
    let pod = sandbox.pod("refused")?;
    let inside = ranges(&["10.7.1.0/24"]);
    let address = |address: &str, gateway: &str| json!({ "type": "static", "addresses": [{ "address": address, "gateway": gateway }] });
    for (bridge, ipam, words) in [
        ("br7", inside.clone(), "bridge br7"),
        ("cbr0", inside.clone(), "bridge cbr0"),
        ("tenant-br0", inside.clone(), "bridge tenant-br0"),
        ("cni7", ranges(&["10.8.0.0/24"]), "subnet 10.8.0.0/24"),
        ("cni7", ranges(&["10.0.0.0/8"]), "subnet 10.0.0.0/8"),
        (
            "cni7",
            ranges(&["10.7.1.0/24", "fd08::/64"]),
            "subnet fd08::/64",
        ),
        (
            "cni7",
            address("192.0.2.9/24", "192.0.2.8"),
            "subnet 192.0.2",
        ),
        ("cni7", address("10.7.1.9/24", "192.0.2.8"), "192.0.2.8"),
    ] {
        is_refused(&sandbox, &pod, &network(bridge, &ipam), words)?;
    }
    let requested = network("cni7", &inside).with(
        "runtimeConfig",
        json!({ "ipRanges": [[{ "subnet": "10.8.0.0/24" }]] }),
    );
    let error = pod.prepare(Verb::Add, &requested).run(node)?.error()?;
    assert!(error.msg.contains("subnet 10.8.0.0/24"), "{}", error.msg);
    await_no_residue(&before, node)?;
    assert_eq!(agent.get("/v1/attachments")?, json!([]));

    // What the lists contain, and the default network, are accepted.
    let gateway: IpAddr = "10.7.1.1".parse()?;
    let mut allowed = sandbox.pod("allowed")?;
    allowed.add_with(network("cni7", &ranges(&["10.7.1.0/24", "fd07::/64"])))?;
    ping(&allowed.machine, gateway, 1)?;
    let mut own = sandbox.pod("own")?;
    own.add()?;
    for pod in [&allowed, &own] {
        pod.check()?.success()?;
        pod.del()?;
    }
    Ok(())
}

#[test]
fn attachments_outlive_a_list_that_a_reload_has_made_shorter() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    let file = "/run/viaductd.toml";
    let write = |bridges: &str| {
        let text = format!("declared-bridge = {bridges}\n");
        node.run(|| std::fs::write(file, text))
    };
    write(r#"["cni7"]"#)?;
    let mut agent = Agent::start(node, &[&format!("--config={file}")])?;
    let config = network("cni7", &ranges(&["10.7.1.0/24"]));
    let mut pods = Vec::new();
    for name in ["one", "two"] {
        let mut pod = sandbox.pod(name)?;
        pod.add_with(config.clone())?;
        pods.push(pod);
    }
    write("[]")?;
    let reloaded = agent.ctl("reload")?;
    assert!(reloaded.contains("declared-bridge"), "{reloaded}");
    let late = sandbox.pod("late")?;
    is_refused(&sandbox, &late, &config, "may use: none")?;
    agent.kill()?;
    agent.restart()?;
    is_refused(&sandbox, &late, &config, "may use: none")?;
    let gateway: IpAddr = "10.7.1.1".parse()?;
    for pod in &pods {
        pod.check()?.success()?;
        ping(&pod.machine, gateway, 1)?;
    }
    pods[0].del()?;
    let gc = config.clone().with("cni.dev/valid-attachments", json!([]));
    let collected = pods[1].prepare(Verb::Gc, &gc).run(node)?;
    collected.success()?;
    pods[1].del()?;
    assert_eq!(agent.get("/v1/attachments")?, json!([]));
    Ok(())
}
