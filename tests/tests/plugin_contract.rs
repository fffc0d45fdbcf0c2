//! Requirements on the CNI plugin beside requests and results: its file, its environment, its
//! dependencies.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use anyhow::{Context as _, Result};
use e2e::{Agent, Call, Config, Mapping, Sandbox, Verb, program, until};

const NAMES: [&str; 8] = [
    "viaduct",
    "bridge",
    "host-local",
    "portmap",
    "bandwidth",
    "firewall",
    "tuning",
    "loopback",
];

#[test]
fn the_plugin_is_one_file_of_less_than_a_megabyte_under_eight_names() -> Result<()> {
    let files = NAMES.map(|name| fs::metadata(program("cni").join(name)));
    let mut inodes = BTreeSet::new();
    for file in files {
        let file = file?;
        assert!(file.len() < 1_000_000, "{} bytes", file.len());
        inodes.insert(file.ino());
    }
    assert_eq!(inodes.len(), 1);
    Ok(())
}

/// behaviour S18
#[test]
fn the_runtimes_span_is_in_the_agents_log() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let pod = sandbox.machine("pod")?;
    let span = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    Call::new(Verb::Add, "c1", &pod.path(), &Config::new("1.1.0"))
        .set("TRACEPARENT", span)
        .run(&sandbox.node)?
        .success()?;
    until("the agent logs the ADD", || {
        let log = agent.log();
        let line = log.lines().find(|line| line.contains(span));
        Ok(line.map(|line| assert!(line.contains("c1"), "{line}")))
    })
}

/// Returns the remote addresses of the agent's connected IPv4 and IPv6 sockets, as `/proc/net` has
/// them.
fn peers(sandbox: &Sandbox, agent: &Agent) -> Result<Vec<String>> {
    let pid = agent.pid().context("the agent has no process")?;
    let mut own = BTreeSet::new();
    for file in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let Ok(target) = fs::read_link(file?.path()) else {
            continue;
        };
        let name = target.to_string_lossy().into_owned();
        own.extend(
            name.strip_prefix("socket:[")
                .map(|it| it.trim_end_matches(']').to_owned()),
        );
    }
    let mut peers = Vec::new();
    for table in ["tcp", "tcp6", "udp", "udp6"] {
        let shown = sandbox.node.call(&format!("cat /proc/net/{table}"))?;
        for line in shown.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (remote, inode) = (words[2], words[9]);
            if own.contains(inode) && !remote.ends_with(":0000") {
                peers.push(format!("{table} {remote}"));
            }
        }
    }
    Ok(peers)
}

/// behaviour A7
#[test]
fn pods_attach_on_a_node_without_a_network_and_without_outbound_connections() -> Result<()> {
    let sandbox = Sandbox::new()?;
    sandbox.node.call("ip link delete up0")?;
    assert_eq!(sandbox.node.call("ip route show default")?, "");
    let agent = Agent::start(&sandbox.node, &[])?;
    let mut pod = sandbox.pod("pod")?;
    let port = Mapping::tcp(8080, 80);
    pod.add_with(Config::new("1.1.0").publish(&[port]))?;
    assert_eq!(peers(&sandbox, &agent)?, [""; 0]);
    let held = sandbox.node.call("cat /proc/net/tcp")?;
    assert!(
        held.contains(":1F90 "),
        "the port's socket is missing: {held}"
    );
    pod.del()?;
    assert_eq!(agent.get("/v1/attachments")?, serde_json::json!([]));
    assert_eq!(peers(&sandbox, &agent)?, [""; 0]);
    Ok(())
}
