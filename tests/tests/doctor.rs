//! `viaductctl doctor` on a node with a fault: it names the fault by the word of the agent, once,
//! with an agent and without one.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use e2e::company::RecordedRules;
use e2e::{
    Agent, Cgroup, Config, Machine, Mapping, Process, Sandbox, UPLINK, program,
    set_bridge_netfilter, skipped, until,
};
use serde_json::{Value, json};

/// Configuration file of the agent.
const CONFIG: &str = "/run/viaductd.toml";

/// Report of `viaductctl doctor`.
struct Report {
    code: Option<i32>,
    text: String,
    json: Value,
}

impl Report {
    /// Runs doctor as text and as JSON.
    fn of(node: &Machine, arguments: &str) -> Result<Self> {
        let (code, text) = run(node, "", arguments)?;
        let (_, json) = run(node, "", &format!("{arguments} --json"))?;
        Ok(Self {
            code,
            text,
            json: serde_json::from_str(&json)?,
        })
    }

    /// Checks the outcomes of the checks with this degraded reason.
    #[track_caller]
    fn expect(&self, reason: &str, outcomes: &[&str]) {
        assert_eq!(self.outcomes(reason), outcomes, "{}", self.text);
    }

    /// Returns the outcomes of the checks with this degraded reason.
    fn outcomes(&self, reason: &str) -> Vec<&str> {
        let sections = self.json["sections"].as_array().into_iter().flatten();
        let checks =
            sections.flat_map(|section| section["checks"].as_array().into_iter().flatten());
        checks
            .filter(|check| check["reason"] == reason)
            .filter_map(|check| check["outcome"].as_str())
            .collect()
    }
}

/// Runs doctor behind a shell command, and returns exit status and output.
fn run(node: &Machine, before: &str, arguments: &str) -> Result<(Option<i32>, String)> {
    let ctl = program("bin/viaductctl").display().to_string();
    let line = format!("{before} exec {ctl} doctor --config {CONFIG} {arguments}");
    let output = node.output(&["sh", "-c", &line])?;
    ensure!(output.stderr.is_empty(), "{output:?}");
    Ok((output.status.code(), String::from_utf8(output.stdout)?))
}

fn configure(node: &Machine, keys: &str) -> Result<()> {
    let text = format!("pod-cidr = [\"10.244.1.0/24\"]\n{keys}");
    Ok(node.mounts().run(|| std::fs::write(CONFIG, text))?)
}

/// Starts an agent with the configuration that doctor reads.
fn start(node: &Machine) -> Result<Agent> {
    Agent::start_with(node, vec![format!("--config={CONFIG}")])
}

fn await_reason(agent: &Agent, reason: &str) -> Result<()> {
    until(&format!("the agent reports {reason}"), || {
        let status = agent.get("/v1/status")?;
        let degraded = status["degraded"].as_array().into_iter().flatten();
        let mut words = degraded.map(|one| &one["reason"]);
        Ok(words.any(|word| word == reason).then_some(()))
    })
    .map_err(|error| {
        let status = agent.get("/v1/status").unwrap_or_default();
        error.context(status["degraded"].to_string())
    })
}

/// Checks that doctor names a fault without an agent, once beside an agent, and after its end.
fn names_with_and_without_an_agent(node: &Machine, reason: &str) -> Result<()> {
    names_with_arguments(node, reason, "")
}

/// As [`names_with_and_without_an_agent`], for doctor with these arguments.
fn names_with_arguments(node: &Machine, reason: &str, arguments: &str) -> Result<()> {
    let before = Report::of(node, arguments)?;
    assert_eq!(before.outcomes(reason).len(), 1, "{}", before.text);
    assert_eq!(before.code, Some(1));
    let mut agent = start(node)?;
    await_reason(&agent, reason)?;
    let beside = Report::of(node, arguments)?;
    beside.expect(reason, &["fail"]);
    assert_eq!(beside.code, Some(1));
    agent.kill()?;
    let after = Report::of(node, arguments)?;
    assert!(!after.outcomes(reason).is_empty(), "{}", after.text);
    assert!(after.text.contains("agent-unreachable"), "{}", after.text);
    Ok(())
}

#[test]
fn a_subnet_that_another_bridge_has_is_named_before_the_installation() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    node.call("ip link add cni-podman0 type bridge")?;
    node.call("ip address add 10.244.1.1/24 dev cni-podman0")?;
    node.call("ip link set cni-podman0 up")?;
    configure(node, "bypass-netfilter = \"never\"\n")?;
    names_with_and_without_an_agent(node, "subnet-overlap")
}

#[test]
fn an_mtu_above_that_of_the_uplink_is_named_before_the_installation() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    node.call(&format!("ip link set {UPLINK} mtu 1400"))?;
    configure(node, "mtu = 1500\n")?;
    names_with_and_without_an_agent(node, "mtu-mismatch")
}

/// While no agent runs, nothing sets the MTU of the bridge again.
#[test]
fn a_bridge_with_a_smaller_mtu_than_its_pods_is_named_without_an_agent() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    configure(node, "")?;
    let mut agent = start(node)?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    agent.kill()?;
    let well = Report::of(node, "")?;
    assert!(well.outcomes("mtu-mismatch").is_empty(), "{}", well.text);
    node.call("ip link set cbr0 mtu 1300")?;
    let found = Report::of(node, "")?;
    found.expect("mtu-mismatch", &["fail"]);
    assert!(
        found.text.contains("bridge cbr0 has MTU 1300"),
        "{}",
        found.text
    );
    Ok(())
}

/// A rule leads answers elsewhere: the strict filter of the bridge drops what pods send.
#[test]
fn a_strict_reverse_path_filter_is_named_with_and_without_an_agent() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    sandbox.connect("up1", "eth1")?;
    sandbox.configure_link(node, "up1", &["198.51.100.1".parse()?])?;
    sandbox.configure_link(&sandbox.world, "eth1", &["198.51.100.2".parse()?])?;
    node.call("ip route add default via 198.51.100.2 dev up1 table 100")?;
    node.call(&format!("ip rule add iif {UPLINK} lookup 100"))?;
    configure(node, "bypass-netfilter = \"never\"\n")?;
    let mut agent = start(node)?;
    node.sysctl("ipv4/conf/cbr0/rp_filter", "1")?;
    await_reason(&agent, "rp-filter")?;
    let beside = Report::of(node, "")?;
    beside.expect("rp-filter", &["fail"]);
    agent.kill()?;
    let after = Report::of(node, "")?;
    after.expect("rp-filter", &["fail"]);
    node.sysctl("ipv4/conf/cbr0/rp_filter", "2")?;
    let loose = Report::of(node, "")?;
    assert!(loose.outcomes("rp-filter").is_empty(), "{}", loose.text);
    Ok(())
}

/// Docker turns forwarding on with a policy of DROP. An agent with `leave` accepts nothing.
#[test]
fn dockers_dropping_policy_is_named_with_and_without_an_agent() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    RecordedRules::Docker.restore(node)?;
    node.call("iptables-nft -P FORWARD DROP")?;
    configure(node, "forwarding = \"leave\"\n")?;
    names_with_and_without_an_agent(node, "forwarding-dropped")?;
    let found = Report::of(node, "")?;
    for words in [
        "policy DROP of chain FORWARD of table ip filter",
        "Docker (table ip filter",
    ] {
        assert!(found.text.contains(words), "{words}: {}", found.text);
    }
    // With `auto`, an agent would accept the packets.
    configure(node, "")?;
    let auto = Report::of(node, "")?;
    auto.expect("forwarding-dropped", &["warn"]);
    // Rules of an agent stay when it is killed.
    let mut agent = start(node)?;
    until("the agent accepts packets of pods", || {
        let rules = node.call("iptables-nft-save")?;
        Ok(rules.contains("VIADUCT-FORWARD").then_some(()))
    })?;
    agent.kill()?;
    let carried = Report::of(node, "")?;
    assert!(
        carried.outcomes("forwarding-dropped").is_empty(),
        "{}",
        carried.text
    );
    Ok(())
}

/// What other software does to the node before the agent's start, by the reason that doctor names:
/// commands, and keys of the agent.
const FAULTS: [(&str, &[&str], &str); 4] = [
    (
        "subnet-overlap",
        &["ip route add 10.244.1.128/25 dev up0"],
        "bypass-netfilter = \"never\"\n",
    ),
    (
        "forwarding-dropped",
        &[
            "nft add table inet guard",
            "nft add chain inet guard forward { type filter hook forward priority 0; policy drop; }",
        ],
        "forwarding = \"leave\"\n",
    ),
    (
        "forwarding-dropped",
        &[
            "nft add table inet guard",
            "nft add chain inet guard forward { type filter hook forward priority 0; policy accept; }",
            "nft add rule inet guard forward ct state established accept",
            "nft add rule inet guard forward drop",
        ],
        "forwarding = \"leave\"\n",
    ),
    (
        "ipsec-policy",
        &["ip xfrm policy add src 10.244.1.0/24 dst 0.0.0.0/0 dir fwd action block"],
        "",
    ),
];

#[test]
fn a_route_a_chain_and_an_ipsec_policy_are_named_with_and_without_an_agent() -> Result<()> {
    for (reason, commands, keys) in FAULTS {
        let sandbox = Sandbox::new()?;
        let node = &sandbox.node;
        configure(node, keys)?;
        let made: Result<Vec<String>> = commands.iter().map(|line| node.call(line)).collect();
        if reason == "ipsec-policy" && made.is_err() {
            skipped("this kernel has no IPsec");
            continue;
        }
        made?;
        names_with_and_without_an_agent(node, reason).context(commands.join("; "))?;
    }
    Ok(())
}

/// The link is the operator's: an agent reports it, and sets what all its networks need.
#[test]
fn forwarding_that_other_software_turns_off_is_named_with_and_without_an_agent() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    configure(node, "bypass-netfilter = \"never\"\n")?;
    let mut agent = start(node)?;
    node.sysctl(&format!("ipv4/conf/{UPLINK}/forwarding"), "0")?;
    await_reason(&agent, "forwarding-off")?;
    let beside = Report::of(node, "")?;
    beside.expect("forwarding-off", &["fail"]);
    node.sysctl(&format!("ipv4/conf/{UPLINK}/forwarding"), "1")?;
    until("the agent finds other software at the sysctl", || {
        node.sysctl("ipv4/ip_forward", "0")?;
        let status = agent.get("/v1/status")?;
        let degraded = status["degraded"].as_array().into_iter().flatten();
        let mut words = degraded.map(|one| &one["reason"]);
        Ok(words.any(|word| word == "sysctl-contested").then_some(()))
    })?;
    let contested = Report::of(node, "")?;
    contested.expect("sysctl-contested", &["fail"]);
    agent.kill()?;
    node.sysctl("ipv4/ip_forward", "0")?;
    let after = Report::of(node, "")?;
    assert!(
        after.outcomes("forwarding-off").contains(&"warn"),
        "{}",
        after.text
    );
    assert!(
        after.text.contains("net.ipv4.ip_forward is 0"),
        "{}",
        after.text
    );
    Ok(())
}

#[test]
fn bridge_netfilter_is_named_with_and_without_an_agent() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    configure(node, "")?;
    if set_bridge_netfilter(node, true).is_err() {
        skipped("this kernel has no bridge netfilter");
        return Ok(());
    }
    let words = "rules of iptables also apply to packets between pods";
    let before = Report::of(node, "")?;
    assert!(before.text.contains(words), "{}", before.text);
    let _agent = start(node)?;
    let beside = Report::of(node, "")?;
    assert!(beside.text.contains(words), "{}", beside.text);
    set_bridge_netfilter(node, false)?;
    let without = Report::of(node, "")?;
    assert!(!without.text.contains(words), "{}", without.text);
    Ok(())
}

#[test]
fn the_order_of_conflists_is_named_with_and_without_an_agent() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let directory = tempfile::tempdir()?;
    std::os::unix::fs::symlink(program("cni/viaduct"), directory.path().join("viaduct"))?;
    conflist(&directory.path().join("10-viaduct.conflist"))?;
    let other =
        json!({ "cniVersion": "1.0.0", "name": "other", "plugins": [{ "type": "bridge" }] });
    std::fs::write(
        directory.path().join("05-other.conflist"),
        other.to_string(),
    )?;
    let shown = directory.path().display();
    configure(
        &sandbox.node,
        &format!("cni-conf-dir = \"{shown}\"\ncni-bin-dir = \"{shown}\"\n"),
    )?;
    let arguments = format!("--configurations {shown} --path {shown}");
    names_with_arguments(&sandbox.node, "conflist-shadowed", &arguments)
}

/// The process has run for some seconds when it counts.
#[test]
fn a_process_outside_of_the_agents_cgroup_is_named_with_and_without_an_agent() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    let Some(part) = Cgroup::new()? else {
        skipped("no cgroup2 is mounted");
        return Ok(());
    };
    let shown = part.path_on(node)?.display().to_string();
    configure(node, &format!("cgroup = \"{shown}\"\n"))?;
    let _process = Process::start(node, &["sleep", "1000"])?;
    let named = until("doctor names the process", || {
        let report = Report::of(node, "")?;
        let found = report.outcomes("cgroup-uncovered") == ["warn"];
        Ok((found && report.text.contains("sleep")).then_some(report))
    })?;
    assert_eq!(named.code, Some(1), "{}", named.text);
    let mut agent = start(node)?;
    let mut pod = sandbox.pod("pod")?;
    pod.add_with(Config::new("1.0.0").publish(&[Mapping::tcp(8080, 80)]))?;
    await_reason(&agent, "cgroup-uncovered")?;
    let beside = Report::of(node, "")?;
    beside.expect("cgroup-uncovered", &["fail"]);
    agent.kill()?;
    let after = Report::of(node, "")?;
    after.expect("cgroup-uncovered", &["warn"]);
    Ok(())
}

#[test]
fn a_low_limit_of_open_files_is_named_with_and_without_an_agent() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    configure(node, "")?;
    let low = |node: &Machine| -> Result<()> {
        let (code, text) = run(node, "ulimit -n 100;", "")?;
        assert_eq!(code, Some(1));
        assert!(text.contains("may open 100 files"), "{text}");
        assert!(text.contains("file-limit"), "{text}");
        Ok(())
    };
    low(node)?;
    let mut agent = start(node)?;
    let pid = agent.pid().context("the agent runs")?;
    node.call(&format!("prlimit --pid {pid} --nofile=200:200"))?;
    await_reason(&agent, "file-limit")?;
    let beside = Report::of(node, "")?;
    beside.expect("file-limit", &["fail"]);
    agent.kill()?;
    low(node)
}

#[test]
fn a_missing_plugin_is_named_with_and_without_an_agent() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let directory = tempfile::tempdir()?;
    conflist(&directory.path().join("10-viaduct.conflist"))?;
    let shown = directory.path().display();
    let arguments = format!("--configurations {shown} --path {shown}");
    configure(
        &sandbox.node,
        &format!("cni-conf-dir = \"{shown}\"\ncni-bin-dir = \"{shown}\"\n"),
    )?;
    let before = Report::of(&sandbox.node, &arguments)?;
    before.expect("plugin-missing", &["fail", "warn"]);
    let mut agent = start(&sandbox.node)?;
    await_reason(&agent, "plugin-missing")?;
    let beside = Report::of(&sandbox.node, &arguments)?;
    assert!(
        beside.outcomes("plugin-missing").contains(&"fail"),
        "{}",
        beside.text
    );
    agent.kill()?;
    let after = Report::of(&sandbox.node, &arguments)?;
    assert!(
        after.outcomes("plugin-missing").contains(&"fail"),
        "{}",
        after.text
    );
    Ok(())
}

#[test]
fn missing_capabilities_of_a_configuration_are_named_without_an_agent() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let directory = tempfile::tempdir()?;
    conflist(&directory.path().join("10-viaduct.conflist"))?;
    let shown = directory.path().display();
    let arguments = format!("--configurations {shown} --path {shown}");
    let report = Report::of(&sandbox.node, &arguments)?;
    let words = "does not declare portMappings and bandwidth";
    assert!(report.text.contains(words), "{}", report.text);
    Ok(())
}

fn conflist(file: &Path) -> Result<()> {
    let list = json!({ "cniVersion": "1.0.0", "name": "pods", "plugins": [{ "type": "viaduct" }] });
    Ok(std::fs::write(file, list.to_string())?)
}

/// Without privileges, doctor says so and checks the rest.
#[test]
fn doctor_without_privileges_says_what_it_could_not_check() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let (_, text) = run(&sandbox.node, "", "")?;
    assert!(text.contains("all checks are possible"), "{text}");
    let ctl = program("bin/viaductctl").display().to_string();
    let output = sandbox.node.output(&[
        "setpriv",
        "--bounding-set=-all",
        "--inh-caps=-all",
        &ctl,
        "doctor",
    ])?;
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("without CAP_NET_ADMIN"), "{text}");
    assert!(text.contains("Checks of the kernel"), "{text}");
    Ok(())
}
