//! Privileges of the agent's process: capabilities of all threads, and what works with them.

use std::fs;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use e2e::{Agent, Call, Config, Echo, Mapping, NODE, Process, Sandbox, Verb, tcp_source, until};
use serde_json::json;

/// Capabilities that the agent keeps, in the order of their numbers (docs/reference/privileges.md).
const KEPT: [(&str, u32); 6] = [
    ("chown", 0),
    ("net_bind_service", 10),
    ("net_admin", 12),
    ("net_raw", 13),
    ("sys_ptrace", 19),
    ("sys_admin", 21),
];

/// Returns `/proc/<pid>/status` of each thread.
fn threads(pid: u32) -> Result<Vec<String>> {
    fs::read_dir(format!("/proc/{pid}/task"))?
        .map(|entry| Ok(fs::read_to_string(entry?.path().join("status"))?))
        .collect()
}

fn field<'a>(status: &'a str, name: &str) -> Result<&'a str> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
        .with_context(|| format!("no {name} in {status}"))
}

fn capabilities(status: &str, set: &str) -> Result<u64> {
    Ok(u64::from_str_radix(field(status, set)?, 16)?)
}

fn kept() -> u64 {
    KEPT.iter().fold(0, |bits, (_, number)| bits | 1 << number)
}

#[test]
fn every_thread_of_the_agent_has_the_documented_capabilities_and_no_others() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    let pid = agent.pid().context("the agent runs")?;
    let threads = threads(pid)?;
    ensure!(threads.len() >= 2, "{} threads", threads.len());
    for status in &threads {
        for set in ["CapPrm", "CapEff", "CapBnd"] {
            assert_eq!(capabilities(status, set)?, kept(), "{set} of\n{status}");
        }
        for set in ["CapInh", "CapAmb"] {
            assert_eq!(capabilities(status, set)?, 0, "{set} of\n{status}");
        }
        assert_eq!(field(status, "NoNewPrivs")?, "1", "{status}");
        assert_eq!(field(status, "Seccomp")?, "2", "{status}");
    }
    let shown = agent.get("/v1/status")?;
    let names = KEPT.map(|(name, _)| name);
    assert_eq!(shown["sandbox"]["capabilities"], json!(names), "{shown}");
    assert_eq!(shown["sandbox"]["seccomp"], true, "{shown}");
    ensure!(
        agent.log().contains("sandbox on"),
        "the log says what is in force: {}",
        agent.log()
    );
    Ok(())
}

#[test]
fn an_agent_without_a_sandbox_keeps_its_privileges_and_reports_it() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let agent = Agent::start(&sandbox.node, &["--sandbox=off"])?;
    let own = fs::read_to_string("/proc/self/status")?;
    for status in threads(agent.pid().context("the agent runs")?)? {
        for name in ["CapPrm", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp"] {
            assert_eq!(field(&status, name)?, field(&own, name)?, "{name}");
        }
    }
    let shown = agent.get("/v1/status")?;
    assert_eq!(shown["sandbox"]["no_new_privs"], false, "{shown}");
    Ok(())
}

/// A process of another user without capabilities, as the first process of a pod often is.
#[test]
fn a_namespace_path_in_proc_of_another_user_is_attached() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = sandbox.pod("pod")?;
    let words = [
        "setpriv",
        "--reuid=65535",
        "--regid=65535",
        "--clear-groups",
        "sleep",
        "600",
    ];
    let process = Process::start(&pod.machine, &words)?;
    until("the process has its user", || {
        let status = fs::read_to_string(format!("/proc/{}/status", process.pid()))?;
        Ok(field(&status, "Uid")?.starts_with("65535").then_some(()))
    })?;
    let path = format!("/proc/{}/ns/net", process.pid());
    let config = Config::new("1.0.0");
    let run = |verb| Call::new(verb, "by-process", &path, &config).run(&sandbox.node);
    run(Verb::Add)?.success()?;
    pod.machine.call("ip link show eth0")?;
    run(Verb::Del)?.success()?;
    ensure!(pod.machine.call("ip link show eth0").is_err());
    Ok(())
}

/// `CAP_NET_BIND_SERVICE` for the port, `CAP_CHOWN` for the user id of its reservation.
#[test]
fn a_hostport_below_1024_is_reserved_serves_and_is_released() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("pod")?;
    pod.add_with(Config::new("1.1.0").publish(&Mapping::both(80, 8080)))?;
    let _echo = Echo::start(&pod.machine, 8080)?;
    for address in NODE {
        let (source, _) = tcp_source(&sandbox.world, 0, SocketAddr::new(address, 80))?;
        ensure!(source.ip().is_ipv4() == address.is_ipv4(), "{source}");
    }
    let taken = |address: IpAddr| {
        let bind = move || std::net::TcpListener::bind((address, 80));
        sandbox.node.run(bind)
    };
    ensure!(taken(NODE[0]).is_err(), "the port is reserved");
    pod.del()?;
    taken(NODE[0]).map(drop).context("the port is released")
}
