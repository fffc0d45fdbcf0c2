//! Hostile requests: paths, names and amounts that could stop or exhaust the agent. Each gets an
//! answer, and other requests are served meanwhile.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Agent, Answer, Config, Process, Sandbox, Verb, patient};
use serde_json::{Value, json};

/// A CNI request that waits for a file would take until its client gives up, after a minute.
const PROMPT: Duration = Duration::from_secs(20);

/// Paths that name no regular file, or one of the kernel whose read waits.
const NOT_READABLE: [&str; 8] = [
    "/run/hostile/fifo",
    "/run/hostile/link-to-fifo",
    "/run/hostile/loop",
    "/run/hostile",
    "/run/hostile/huge",
    "/proc/kmsg",
    "/dev/tty",
    "/dev/zero",
];

fn make_files(sandbox: &Sandbox) -> Result<()> {
    let node = &sandbox.node;
    node.call("mkdir -p /run/hostile/net")?;
    node.call("mkfifo /run/hostile/fifo")?;
    node.call("ln -s /run/hostile/fifo /run/hostile/link-to-fifo")?;
    node.call("ln -s /run/hostile/loop /run/hostile/loop")?;
    node.call("truncate --size 1T /run/hostile/huge")?;
    Ok(())
}

fn declared(bridge: &str, ipam: Value) -> Config {
    let base = json!({ "type": "host-local", "subnet": "10.77.0.0/24" });
    let mut merged = base.as_object().cloned().unwrap_or_default();
    merged.extend(ipam.as_object().cloned().unwrap_or_default());
    Config::new("1.1.0")
        .with("name", json!("net"))
        .with("type", json!("bridge"))
        .with("bridge", json!(bridge))
        .with("isGateway", json!(true))
        .with("ipam", merged.into())
}

/// Requires a prompt error that contains `text`.
fn assert_prompt_error(answer: &Answer, text: &str) -> Result<()> {
    let error = answer.error()?;
    let words = format!("{} {}", error.msg, error.details);
    ensure!(words.contains(text), "{text} is not in {error:?}");
    ensure!(answer.took < patient(PROMPT), "{text}: {:?}", answer.took);
    Ok(())
}

/// Requires that the agent answers, and that another pod gets its network.
fn assert_serves(sandbox: &Sandbox, agent: &Agent, name: &str) -> Result<()> {
    let status = agent.get("/v1/status")?;
    let running = status["operations"].as_array().map_or(0, Vec::len);
    ensure!(running == 0, "an operation still runs: {status}");
    let mut pod = sandbox.pod(name)?;
    pod.add()?;
    pod.del().map(drop)
}

#[test]
fn a_resolv_conf_that_is_no_readable_file_fails_its_own_add_only() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    make_files(&sandbox)?;
    let pod = sandbox.pod("pod")?;
    for path in NOT_READABLE {
        let config = declared("br77", json!({ "resolvConf": path }));
        let add = pod.prepare(Verb::Add, &config);
        let ours = add.run_as(&sandbox.node, "bridge")?;
        assert_prompt_error(&ours, "ipam.resolvConf")?;
        let alone = add.run_as(&sandbox.node, "host-local")?;
        assert_prompt_error(&alone, "ipam.resolvConf")?;
    }
    assert_serves(&sandbox, &agent, "other")
}

#[test]
fn a_netns_path_that_is_no_namespace_fails_its_own_request_only() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    make_files(&sandbox)?;
    let pod = sandbox.pod("pod")?;
    for path in NOT_READABLE {
        for (plugin, config) in [
            ("viaduct", Config::new("1.1.0")),
            ("bridge", declared("br77", json!({}))),
        ] {
            let add = pod.prepare(Verb::Add, &config).set("CNI_NETNS", path);
            assert_prompt_error(&add.run_as(&sandbox.node, plugin)?, path)?;
            let del = pod.prepare(Verb::Del, &config).set("CNI_NETNS", path);
            let answer = del.run_as(&sandbox.node, plugin)?;
            answer.success()?;
            ensure!(answer.took < patient(PROMPT), "{path}: {:?}", answer.took);
        }
        let query = format!("/v1/attachments/none?netns={path}");
        ensure!(agent.get(&query).is_err(), "{path}");
    }
    assert_serves(&sandbox, &agent, "other")
}

/// The directory itself, the network's directory in it, and each file that the agent opens there.
#[test]
fn a_data_dir_with_fifos_fails_its_own_add_only() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    make_files(&sandbox)?;
    let node = &sandbox.node;
    for (name, fifo) in [
        ("parent", "mkfifo /run/leases"),
        ("network", "mkdir /run/leases && mkfifo /run/leases/net"),
        (
            "lock",
            "mkdir -p /run/leases/net && mkfifo /run/leases/net/lock",
        ),
        (
            "last",
            "mkdir -p /run/leases/net && mkfifo /run/leases/net/last_reserved_ip.0",
        ),
    ] {
        node.call_words(&["sh", "-c", &format!("rm -rf /run/leases && {fifo}")])?;
        let pod = sandbox.pod(name)?;
        let config = declared("br77", json!({ "dataDir": "/run/leases" }));
        for plugin in ["bridge", "host-local"] {
            let answer = pod.prepare(Verb::Add, &config).run_as(node, plugin)?;
            assert_prompt_error(&answer, "lease files")?;
        }
    }
    // A lease that is none takes its address, and the next pod gets another one.
    node.call_words(&[
        "sh",
        "-c",
        "rm -rf /run/leases && mkdir -p /run/leases/net && mkfifo /run/leases/net/10.77.0.2",
    ])?;
    let pod = sandbox.pod("fine")?;
    let config = declared("br77", json!({ "dataDir": "/run/leases" }));
    let result = pod
        .prepare(Verb::Add, &config)
        .run_as(node, "bridge")?
        .result()?;
    ensure!(result["ips"][0]["address"] == "10.77.0.3/24", "{result}");
    pod.prepare(Verb::Del, &config)
        .run_as(node, "bridge")?
        .success()?;
    assert_serves(&sandbox, &agent, "other")
}

/// The lock of host-local's leases is a file that any process may hold.
#[test]
fn a_lock_that_another_process_holds_delays_its_own_network_only() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    node.call("mkdir -p /run/leases/net")?;
    let line = "exec 9>/run/leases/net/lock; flock 9; echo locked; exec sleep 600";
    let holder = Process::start(node, &["sh", "-c", line])?;
    e2e::until("the lock is held", || {
        Ok(holder.output().contains("locked").then_some(()))
    })?;
    let pod = sandbox.pod("pod")?;
    let config = declared("br77", json!({ "dataDir": "/run/leases" }));
    let add = pod.prepare(Verb::Add, &config);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| add.run_as(node, "bridge"));
        let mut other = sandbox.pod("other")?;
        let answer = other.add()?;
        ensure!(answer.took < patient(Duration::from_secs(2)), "{answer:?}");
        let refused = waiting.join().expect("the thread does not panic")?;
        assert_prompt_error(&refused, "holds their lock")
    })?;
    drop(holder);
    assert_serves(&sandbox, &agent, "third")
}
