//! Hostports have one owner: sockets of the agent reserve them against other programs of the node.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use e2e::residue::assert_no_residue;
use e2e::{
    Agent, Config, Echo, Machine, Mapping, NODE, Pod, Process, Residue, Sandbox, Verb,
    chooses_bind_errors, tcp_source, udp_source, until,
};
use serde_json::{Value, json};

const BOTH: [Mapping; 2] = Mapping::both(8080, 80);

fn server(sandbox: &Sandbox, name: &str) -> Result<(Pod, Echo)> {
    let mut pod = sandbox.pod(name)?;
    pod.add_with(Config::new("1.1.0").publish(&BOTH))?;
    let echo = Echo::start(&pod.machine, 80)?;
    Ok((pod, echo))
}

/// Asserts that the hostport works from the world, by TCP and UDP in both families.
fn serves(sandbox: &Sandbox) -> Result<()> {
    for node in NODE {
        let server = SocketAddr::new(node, 8080);
        tcp_source(&sandbox.world, 0, server)?;
        udp_source(&sandbox.world, 0, server)?;
    }
    Ok(())
}

/// Returns the sockets of the node that are bound to the port, as `ss` prints them.
fn holders(node: &Machine, port: u16) -> Result<Vec<String>> {
    let list = node.call(&format!("ss --no-header --numeric -ltup sport = :{port}"))?;
    Ok(list.lines().map(ToOwned::to_owned).collect())
}

/// Starts a program of the node that serves a TCP port.
fn intruder(node: &Machine, port: u16) -> Result<Process> {
    let script = format!(
        "import socket, time; s = socket.create_server(('0.0.0.0', {port})); print('ready', flush=True); time.sleep(600)"
    );
    let process = Process::start(node, &["python3", "-c", &script])?;
    until("the program listens", || {
        ensure!(process.ended()?.is_none(), "it cannot serve {port}");
        Ok(process.output().contains("ready").then_some(()))
    })?;
    Ok(process)
}

fn can_bind(node: &Machine, address: &str) -> bool {
    node.run(|| std::net::TcpListener::bind(address).is_ok())
}

/// behaviours K31, F33
#[test]
fn a_hostport_is_reserved_by_sockets_and_still_reaches_the_pod() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let (pod, _echo) = server(&sandbox, "server")?;
    let held = holders(&sandbox.node, 8080)?;
    assert_eq!(held.len(), 4, "two families, two protocols: {held:?}");
    let pid = format!("pid={},", agent.pid().context("the agent has no process")?);
    assert!(held.iter().all(|line| line.contains(&pid)), "{held:?}");
    serves(&sandbox)?;
    for address in ["0.0.0.0:8080", "127.0.0.1:8080", "[::]:8080"] {
        assert!(!can_bind(&sandbox.node, address), "{address}");
    }
    pod.check()?.success()?;
    pod.del()?;
    assert!(holders(&sandbox.node, 8080)?.is_empty());
    assert!(can_bind(&sandbox.node, "0.0.0.0:8080"));
    Ok(())
}

/// behaviours K31, F33
#[test]
fn a_port_in_use_by_a_process_is_refused_and_nothing_is_left() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let process = intruder(&sandbox.node, 8081)?;
    let pod = sandbox.pod("server")?;
    let before = Residue::of(&sandbox.node, &[&pod.machine])?;
    let third = Mapping {
        host: 8081,
        ..BOTH[0]
    };
    let config = Config::new("1.1.0").publish(&[BOTH[0], BOTH[1], third]);
    let error = pod
        .prepare(Verb::Add, &config)
        .run(&sandbox.node)?
        .error()?;
    assert_eq!(error.code, 100, "{error:?}");
    assert!(
        error.msg.starts_with("host port 8081/tcp is in use by "),
        "{error:?}"
    );
    let who = format!("(pid {}, 0.0.0.0:8081)", process.pid());
    assert!(error.msg.contains(&who), "{error:?}");
    assert_no_residue(&before, &Residue::of(&sandbox.node, &[&pod.machine])?)
}

/// behaviours F33, F34: one owner, so that no stale rule can win.
#[test]
fn a_hostport_of_another_pod_is_refused_by_name() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let (_first, _echo) = server(&sandbox, "first")?;
    let second = sandbox.pod("second")?;
    let config = Config::new("1.1.0").publish(&BOTH[1..]);
    let error = second
        .prepare(Verb::Add, &config)
        .run(&sandbox.node)?
        .error()?;
    assert_eq!(error.code, 100, "{error:?}");
    assert_eq!(
        error.msg,
        "host port 8080/udp is in use by container default/first/eth0"
    );
    Ok(())
}

/// behaviours K31, F33
#[test]
fn hostports_work_after_an_agent_kill_and_are_reserved_again_at_restart() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let (pod, _echo) = server(&sandbox, "server")?;
    agent.kill()?;
    assert!(holders(&sandbox.node, 8080)?.is_empty());
    serves(&sandbox)?;
    agent.restart()?;
    assert_eq!(holders(&sandbox.node, 8080)?.len(), 4);
    serves(&sandbox)?;
    pod.check()?.success()?;
    let repaired = agent.get("/v1/status")?["last_reconcile"]["items"].to_string();
    assert!(!repaired.contains("port"), "{repaired}");
    Ok(())
}

/// The hostport still reaches the pod, and the agent names the process that has bound the port.
#[test]
fn a_hostport_bound_by_a_process_while_the_agent_was_down_is_reported() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let (_pod, _echo) = server(&sandbox, "server")?;
    agent.kill()?;
    // The cgroup programs deny published ports to processes below the node's cgroup; this process
    // is outside of it.
    let process = intruder(&sandbox.node, 8080)?;
    agent.restart()?;
    let degraded = agent.get("/v1/status")?["degraded"].to_string();
    let who = format!("(pid {}, 0.0.0.0:8080)", process.pid());
    assert!(degraded.contains(&who), "{degraded}");
    serves(&sandbox)?;
    assert!(agent.ctl("ports 8080")?.contains("(NOT RESERVED)"));
    Ok(())
}

/// behaviours R12, K35: not every runtime repeats the port mappings in DEL.
#[test]
fn a_del_without_port_mappings_releases_all_ports() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let (pod, _echo) = server(&sandbox, "server")?;
    let del = pod.prepare(Verb::Del, &Config::new("1.1.0"));
    del.without("CNI_NETNS").run(&sandbox.node)?.success()?;
    assert!(holders(&sandbox.node, 8080)?.is_empty());
    assert_eq!(agent.ctl("ports")?, "No published ports.\n");
    let (_next, _echo) = server(&sandbox, "next")?;
    serves(&sandbox)
}

/// The cgroup programs protect published ports, whether or not a socket reserves them.
#[test]
fn no_node_process_can_bind_a_hostport_while_the_agent_is_down() -> Result<()> {
    const TAKE: &str = "import socket, sys; socket.create_server((sys.argv[1], 8080), \
        family=socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET)";
    let refusal = if chooses_bind_errors() {
        "Address already in use"
    } else {
        "Operation not permitted"
    };
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let (_pod, _echo) = server(&sandbox, "server")?;
    let cgroup = agent.cgroup().context("there is no cgroup2")?;
    let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", cgroup.display());
    agent.kill()?;
    for address in ["0.0.0.0", "::", "127.0.0.1", "::1"] {
        let words = ["sh", "-c", &enter, "sh", "python3", "-c", TAKE, address];
        let output = sandbox.node.output(&words)?;
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(printed.contains(refusal), "{address}: {printed:?}");
    }
    serves(&sandbox)?;
    agent.restart()?;
    assert_eq!(holders(&sandbox.node, 8080)?.len(), 4);
    Ok(())
}

fn ports(agent: &Agent) -> Result<Vec<Value>> {
    let ports = agent.get("/v1/hostports")?;
    ports.as_array().cloned().context("a list")
}

#[test]
fn the_agent_lists_the_owner_of_each_hostport() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    assert_eq!(agent.ctl("ports")?, "No published ports.\n");
    let mut pod = sandbox.pod("server")?;
    let config = Config::new("1.1.0").publish(&BOTH);
    let add = pod.prepare(Verb::Add, &config).set(
        "CNI_ARGS",
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web",
    );
    add.run(&sandbox.node)?.success()?;
    let list = ports(&agent)?;
    assert_eq!(list.len(), 2);
    for (port, protocol) in list.iter().zip(["tcp", "udp"]) {
        assert_eq!(port["host_port"], 8080, "{port}");
        assert_eq!(port["protocol"], protocol);
        assert_eq!(port["pod"]["name"], "web");
        assert_eq!(port["network"], "default");
        assert_eq!(port["containerID"], "server");
        let claims = port["claims"].as_array().context("a list")?;
        assert_eq!(claims.len(), 2);
        assert!(claims.iter().all(|claim| claim["held_by"] == "socket"));
    }
    let table = agent.ctl("ports 8080")?;
    assert!(table.contains("8080->80/tcp  shop/web"), "{table}");
    assert_eq!(agent.ctl("ports 80")?, "No pod publishes host port 80.\n");
    pod = sandbox.pod("other")?;
    pod.add()?;
    Ok(())
}

/// A mapping of a specific address counts its own flows, and the wildcard mapping beside it does
/// not count them.
#[test]
fn the_agent_counts_the_flows_of_each_hostport() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("server")?;
    let mapping = |port: u16, host: &str, protocol: &str| json!({ "hostPort": port, "containerPort": 80, "protocol": protocol, "hostIP": host });
    let mappings = [
        mapping(8080, "", "tcp"),
        mapping(8080, "", "udp"),
        mapping(8081, "0.0.0.0", "tcp"),
        mapping(8081, "::", "tcp"),
        mapping(8082, "", "tcp"),
        mapping(8082, "192.0.2.1", "tcp"),
    ];
    pod.add_with(Config::new("1.1.0").map_ports(&mappings))?;
    let _echo = Echo::start(&pod.machine, 80)?;
    let flows = || -> Result<Vec<u64>> {
        let list = ports(&agent)?;
        list.iter()
            .map(|port| port["flows"].as_u64().context("a number"))
            .collect()
    };
    assert_eq!(flows()?, [0; 6]);
    let [v4, v6] = NODE;
    let mut open = Vec::new();
    for (node, port) in [
        (v4, 8080),
        (v4, 8080),
        (v6, 8080),
        (v4, 8081),
        (v6, 8081),
        (v6, 8081),
        (v4, 8082),
        (v6, 8082),
        (v6, 8082),
        (v6, 8082),
    ] {
        open.push(tcp_source(&sandbox.world, 0, SocketAddr::new(node, port))?);
    }
    udp_source(&sandbox.world, 0, SocketAddr::new(v4, 8080))?;
    // Sorted by port, protocol and address; mappings without an address first.
    assert_eq!(flows()?, [3, 1, 1, 2, 3, 1]);
    Ok(())
}

/// behaviour C5: CRI-O passes no port mappings.
#[test]
fn hostports_come_from_an_annotation_when_configured() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let agent = Agent::start(
        &sandbox.node,
        &["--hostport-annotation=example.org/host-ports"],
    )?;
    let mut pod = sandbox.pod("server")?;
    let list =
        json!([{"hostPort": 8080, "containerPort": 80}, {"hostPort": 0, "containerPort": 9}]);
    let annotations = json!({"example.org/host-ports": list.to_string()});
    let capabilities = json!({ "io.kubernetes.cri.pod-annotations": annotations });
    pod.add_with(Config::new("1.1.0").with("runtimeConfig", capabilities))?;
    let _echo = Echo::start(&pod.machine, 80)?;
    tcp_source(&sandbox.world, 0, SocketAddr::new(NODE[0], 8080))?;
    assert_eq!(ports(&agent)?.len(), 1);
    Ok(())
}
