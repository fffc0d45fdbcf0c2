//! Uninstall removes Viaduct from a node and restores its previous state.

use anyhow::{Result, ensure};
use e2e::residue::{assert_no_residue, make_qdisc};
use e2e::{Agent, Config, Machine, Mapping, Residue, Sandbox, UPLINK, until};

const PORTS: [Mapping; 1] = [Mapping::tcp(8080, 80)];

/// Returns every readable sysctl below `net` with its value.
fn sysctls(node: &Machine) -> Result<Vec<String>> {
    let shown = node.call("sysctl --all --ignore --pattern ^net\\.")?;
    // Exclude values that the kernel changes itself.
    let own = [
        "random",
        "nf_conntrack_count",
        "stable_secret",
        "mtu_expires",
    ];
    let lines = shown
        .lines()
        .filter(|line| !own.iter().any(|word| line.contains(word)));
    Ok(lines.map(str::to_owned).collect())
}

/// Returns the files below /run and /sys/fs/bpf, where Viaduct's files are.
fn files(node: &Machine) -> Result<String> {
    node.call("find /run /sys/fs/bpf -path /run/netns -prune -o -print")
}

struct Before {
    residue: Residue,
    sysctls: Vec<String>,
    files: String,
}

impl Before {
    fn of(node: &Machine) -> Result<Self> {
        Ok(Self {
            residue: Residue::of(node, &[])?,
            sysctls: sysctls(node)?,
            files: files(node)?,
        })
    }

    fn assert_unchanged(&self, node: &Machine) -> Result<()> {
        assert_no_residue(&self.residue, &Residue::of(node, &[])?)?;
        let now = sysctls(node)?;
        let new: Vec<_> = now
            .iter()
            .filter(|line| !self.sysctls.contains(line))
            .collect();
        ensure!(new.is_empty(), "sysctls have changed: {new:?}");
        ensure!(self.sysctls.len() == now.len(), "sysctls are missing");
        let files = files(node)?;
        ensure!(
            files == self.files,
            "files: {files}\nbefore: {}",
            self.files
        );
        Ok(())
    }
}

/// A node whose uplink accepts router advertisements, and with locally reserved ports. Its state
/// changes by itself until the uplink has its addresses.
fn node() -> Result<Sandbox> {
    let sandbox = Sandbox::new()?;
    sandbox.node.await_addresses(UPLINK)?;
    make_qdisc(&sandbox.node, UPLINK)?;
    sandbox
        .node
        .sysctl(&format!("ipv6/conf/{UPLINK}/accept_ra"), "1")?;
    sandbox
        .node
        .sysctl("ipv4/ip_local_reserved_ports", "9000-9002")?;
    sandbox.node.sysctl("ipv4/ip_forward", "0")?;
    sandbox.node.sysctl("ipv6/conf/all/forwarding", "0")?;
    Ok(sandbox)
}

#[test]
fn uninstall_restores_links_sysctls_and_ports() -> Result<()> {
    let sandbox = node()?;
    let before = Before::of(&sandbox.node)?;
    let mut agent = Agent::start(&sandbox.node, &[])?;
    let mut pod = sandbox.pod("pod")?;
    pod.add_with(Config::new("1.1.0").publish(&PORTS))?;

    let refusal = agent.ctl("uninstall").unwrap_err().to_string();
    ensure!(refusal.contains(pod.id()), "{refusal}");
    pod.check()?.success()?;

    pod.del()?;
    pod.machine.unbind()?;
    agent.ctl("uninstall")?;
    let status = agent.wait_for_end()?;
    ensure!(status.success(), "{status}");
    before.assert_unchanged(&sandbox.node)
}

#[test]
fn uninstall_detaches_pods_only_with_drain() -> Result<()> {
    let sandbox = node()?;
    let before = Before::of(&sandbox.node)?;
    let mut agent = Agent::start(&sandbox.node, &[])?;
    let mut pod = sandbox.pod("pod")?;
    pod.add_with(Config::new("1.1.0").publish(&PORTS))?;
    agent.ctl("uninstall --drain")?;
    ensure!(agent.wait_for_end()?.success(), "the agent failed");
    until("the pod's interface is gone", || {
        let links = pod.machine.call("ip -o link show")?;
        Ok((!links.contains("eth0")).then_some(()))
    })?;
    pod.machine.unbind()?;
    before.assert_unchanged(&sandbox.node)
}

#[test]
fn the_agent_program_uninstalls_a_node_without_a_running_agent() -> Result<()> {
    let sandbox = node()?;
    let before = Before::of(&sandbox.node)?;
    let mut agent = Agent::start(&sandbox.node, &[])?;
    let mut pod = sandbox.pod("pod")?;
    pod.add_with(Config::new("1.1.0").publish(&PORTS))?;
    agent.kill()?;

    let refusal = agent.run(&["--uninstall"]).unwrap_err().to_string();
    ensure!(refusal.contains(pod.id()), "{refusal}");
    agent.run(&["--uninstall", "--drain"])?;
    pod.machine.unbind()?;
    before.assert_unchanged(&sandbox.node)
}

/// State that other software uses or has changed is left, and the output of uninstall names it.
#[test]
fn uninstall_leaves_state_that_others_changed_or_use() -> Result<()> {
    let sandbox = node()?;
    let mut agent = Agent::start(&sandbox.node, &[])?;
    sandbox
        .node
        .call("ip link add vm0 type veth peer name vm1")?;
    sandbox.node.call("ip link set vm0 master cbr0")?;
    let output = agent.ctl("uninstall")?;
    ensure!(output.contains("bridge cbr0 has foreign ports"), "{output}");
    ensure!(agent.wait_for_end()?.success(), "the agent failed");
    sandbox.node.call("ip link show vm0 master cbr0").map(drop)
}

/// A second uninstall has nothing to do.
#[test]
fn a_second_uninstall_finds_nothing_to_do() -> Result<()> {
    let sandbox = node()?;
    let before = Before::of(&sandbox.node)?;
    let mut agent = Agent::start(&sandbox.node, &[])?;
    agent.kill()?;
    for _ in 0..2 {
        agent.run(&["--uninstall"])?;
        before.assert_unchanged(&sandbox.node)?;
    }
    Ok(())
}

#[test]
fn requests_and_repairs_appear_as_events_and_metrics() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    sandbox
        .node
        .call(&format!("ip link set {} down", pod.host_link()))?;
    let await_event = |words: &[&str]| {
        until(&words.join(" "), || {
            let events = agent.ctl("events")?;
            let matches = |line: &str| words.iter().all(|word| line.contains(word));
            Ok(events.lines().any(matches).then_some(()))
        })
    };
    await_event(&["start", "done", "agent"])?;
    await_event(&["add", "done", "pod/eth0"])?;
    await_event(&["reconcile", "repaired", "pod"])?;
    pod.del()?;
    let last = agent.ctl("events --last")?;
    let of_pod: Vec<&str> = last
        .lines()
        .filter(|line| line.contains(" pod/eth0"))
        .collect();
    ensure!(of_pod.len() == 1 && of_pod[0].contains(" del "), "{last}");
    let metrics = sandbox.node.call(&format!(
        "curl --silent --show-error --fail --unix-socket {} http://viaduct/metrics",
        e2e::SOCKET
    ))?;
    for line in [
        "viaduct_events_total{action=\"add\",outcome=\"done\"} 1",
        "viaduct_events_total{action=\"reconcile\",outcome=\"repaired\"} ",
        "viaduct_requests_total{verb=\"del\",outcome=\"done\"} 1",
    ] {
        ensure!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    Ok(())
}
