//! Hostile requests: paths and names that could stop the agent, reach a terminal, or prevent its
//! start. Each request gets an answer, and others are served meanwhile.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Answer, Config, Connection, Echo, Machine, Mapping, Process, Sandbox, Verb, WORLD,
    patient, until,
};
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

fn declared(bridge: &str, ipam: &Value) -> Config {
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
    // A reconciliation may run at any time.
    until("no operation is left", || {
        let status = agent.get("/v1/status")?;
        let running = status["operations"].as_array().map_or(0, Vec::len);
        Ok((running == 0).then_some(()))
    })?;
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
        let config = declared("br77", &json!({ "resolvConf": path }));
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
            ("bridge", declared("br77", &json!({}))),
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
        let config = declared("br77", &json!({ "dataDir": "/run/leases" }));
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
    let config = declared("br77", &json!({ "dataDir": "/run/leases" }));
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
    until("the lock is held", || {
        Ok(holder.output().contains("locked").then_some(()))
    })?;
    let pod = sandbox.pod("pod")?;
    let config = declared("br77", &json!({ "dataDir": "/run/leases" }));
    let add = pod.prepare(Verb::Add, &config);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| add.run_as(node, "bridge"));
        let mut other = sandbox.pod("other")?;
        let answer = other.add()?;
        ensure!(answer.took < patient(Duration::from_secs(2)), "{answer:?}");
        let refused = waiting.join().expect("the thread does not panic")?;
        // On a busy machine, the limit of the whole access may come first.
        let error = refused.error()?;
        let is_named = ["holds their lock", "no answer from the file system"]
            .iter()
            .any(|text| error.msg.contains(text));
        ensure!(is_named, "{error:?}");
        ensure!(refused.took < patient(PROMPT), "{:?}", refused.took);
        Ok(())
    })?;
    drop(holder);
    assert_serves(&sandbox, &agent, "third")
}

/// Starts a Python program on the node, and waits until it prints `ready`.
fn start_script(node: &Machine, prefix: &[&str], script: &str) -> Result<Process> {
    let words = [prefix, &["python3", "-u", "-c", script]].concat();
    let process = Process::start(node, &words)?;
    until("the script is ready", || {
        let ended = process.ended()?;
        ensure!(ended.is_none(), "it has ended: {}", process.output());
        Ok(process.output().contains("ready").then_some(()))
    })?;
    Ok(process)
}

/// Requires that a text has no control character but line feeds.
fn assert_printable(what: &str, text: &str) -> Result<()> {
    let found = text.chars().find(|c| c.is_control() && *c != '\n');
    ensure!(found.is_none(), "{found:?} in {what}: {text:?}");
    Ok(())
}

/// A name that clears the screen, forges a line, and has a control character of two bytes.
const HOSTILE: &str = "evil\x1b[2J\n2026 ERROR forged\u{9b}31m";

#[test]
fn control_characters_of_names_reach_neither_terminal_nor_log() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let pod = sandbox.pod("pod")?;
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={HOSTILE}");
    // The reference plugins accept such a name.
    let add = pod.prepare(Verb::Add, pod.config()).set("CNI_ARGS", &args);
    let result = add.run(node)?.result()?;
    let link = result["interfaces"][1]["name"].as_str().unwrap_or_default();

    let name = r"import ctypes, socket
ctypes.CDLL(None).prctl(15, b'evil\x1b[2J\nERROR', 0, 0, 0)
s = socket.create_server(('', 8080))
print('ready')
s.accept()";
    let _holder = start_script(node, &[], name)?;
    let other = sandbox.pod("other")?;
    let publish = Config::new("1.1.0").publish(&[Mapping::tcp(8080, 80)]);
    let refused = other.prepare(Verb::Add, &publish).run(node)?;
    let error = refused.error()?;
    ensure!(error.msg.contains("evil"), "{error:?}");
    ensure!(!error.msg.contains(char::is_control), "{error:?}");

    for verb in [
        "list",
        "list --json",
        "status",
        "flows",
        "events --last",
        "events --last --json",
        &format!("inspect {}", pod.id()),
        "top --once",
    ] {
        assert_printable(verb, &agent.ctl(verb)?)?;
    }
    let list = agent.ctl("list")?;
    ensure!(list.contains(r"ns/evil\u{1b}[2J\n2026 ERROR"), "{list}");
    let links = node.call_json(&format!("ip -json link show dev {link}"))?;
    let alias = links[0]["ifalias"]
        .as_str()
        .context("the link has an alias")?;
    ensure!(alias.contains("evil"), "{alias}");
    ensure!(!alias.contains(char::is_control), "{alias:?}");
    assert_printable("the log", &agent.log())?;
    for line in agent.log().lines() {
        let forged = line.starts_with("2026 ERROR") || line.starts_with("ERROR");
        ensure!(!forged, "{line}");
    }
    let del = pod.prepare(Verb::Del, pod.config()).set("CNI_ARGS", &args);
    del.run(node)?.success()
}

/// Any process in the node's network namespace can bind the name of the instance lock, and so can
/// one of a pod in that namespace. It has none of an agent's capabilities.
#[test]
fn a_squatted_lock_socket_does_not_keep_the_agent_from_starting() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let bind = "import socket, time
s = socket.socket(socket.AF_UNIX)
s.bind(b'\\0viaduct/bridge/cbr0')";
    let full = "s.listen(0)
for _ in range(4):
    c = socket.socket(socket.AF_UNIX)
    c.setblocking(False)
    c.connect_ex(b'\\0viaduct/bridge/cbr0')
    globals()[f'c{_}'] = c";
    let powerless = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
    for (how, listens) in [("listening", "s.listen()"), ("full", full), ("bound", "")] {
        let script = format!("{bind}\n{listens}\nprint('ready')\ntime.sleep(600)");
        let _squatter = start_script(&sandbox.node, &powerless, &script)?;
        let mut agent = Agent::start(&sandbox.node, &[]).context(how)?;
        assert_serves(&sandbox, &agent, how).context(how)?;
        let log = agent.log();
        ensure!(
            log.contains("instance lock of bridge cbr0 unavailable"),
            "{how}: {log}"
        );
        // The directories have locks of their own.
        let second = agent.run(&[]).err().context(how)?;
        let text = format!("{second:#}");
        ensure!(text.contains("another agent"), "{how}: {text}");
        agent.terminate()?;
    }
    Ok(())
}

/// The spool folder is made by a plugin that finds no agent.
#[test]
fn uninstall_leaves_no_spool_folder() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    for by_api in [true, false] {
        let mut pod = sandbox.pod(&format!("pod-{by_api}"))?;
        pod.add()?;
        agent.terminate()?;
        pod.del()?;
        let spooled = sandbox.node.call("ls /run/viaduct/spool")?;
        ensure!(spooled.contains(".json"), "{spooled}");
        agent.restart()?;
        if by_api {
            agent.ctl("uninstall")?;
            agent.wait_for_end()?;
        } else {
            agent.terminate()?;
            agent.run(&["--uninstall"])?;
        }
        let left = sandbox.node.call("find /run -path /run/viaduct/*")?;
        ensure!(left.trim().is_empty(), "left: {left}");
        agent.restart()?;
    }
    Ok(())
}

const JOURNAL: &str = "/run/viaduct/records.journal";

/// Returns the journal with its end cut at a line end, zeroed, and gone.
fn journal_damages(whole: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let ends: Vec<usize> = whole
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n')
        .map(|(at, _)| at + 1)
        .collect();
    let last = ends[ends.len() - 2];
    let head = ends[0];
    let zeros = |from: usize| {
        let mut bytes = whole.to_vec();
        bytes[from..].fill(0);
        bytes
    };
    vec![
        ("the last line is cut off", whole[..last].to_vec()),
        ("all lines are cut off", whole[..head].to_vec()),
        ("the last line is zeroed", zeros(last)),
        ("all lines are zeroed", zeros(head)),
        ("the file is empty", Vec::new()),
        ("the file is zeroed", zeros(0)),
    ]
}

#[test]
fn a_journal_that_lost_its_end_is_reported_and_live_pods_keep_their_links() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let mut pods = Vec::new();
    for name in ["one", "two", "three"] {
        let mut pod = sandbox.pod(name)?;
        pod.add()?;
        pods.push(pod);
    }
    let _echo = Echo::start(&sandbox.world, 7000)?;
    let open: Vec<Connection> = pods
        .iter()
        .map(|pod| Connection::tcp(&pod.machine, SocketAddr::new(WORLD[0], 7000)))
        .collect::<Result<_>>()?;
    agent.kill()?;
    let mounts = sandbox.node.mounts();
    let whole = mounts.run(|| fs::read(JOURNAL))?;
    for (what, bytes) in journal_damages(&whole) {
        mounts.run(|| fs::write(JOURNAL, &bytes))?;
        let refusal = agent.restart().err().context(what)?;
        let text = format!("{refusal:#}");
        ensure!(text.contains("damaged"), "{what}: {text}");
        for pod in &pods {
            ensure!(text.contains(pod.host_link()), "{what}: {text}");
        }
        for connection in &open {
            connection.exchange().context(what)?;
        }
        let kept = mounts.run(|| fs::read(JOURNAL))?;
        ensure!(kept == bytes, "{what}: the journal has changed");
    }
    mounts.run(|| fs::write(JOURNAL, &whole))?;
    agent.restart()?;
    for pod in &pods {
        pod.check()?.success()?;
        pod.del()?;
    }
    Ok(())
}
