//! Uninstall removes Viaduct from a node and restores its previous state.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use e2e::residue::{assert_no_residue, make_qdisc};
use e2e::{Agent, Config, Machine, Mapping, Residue, Sandbox, UPLINK, Verb, until};
use serde_json::Value;

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

/// File of the events, in the node's namespaces.
const EVENTS: &str = "/run/viaduct/events.jsonl";

/// Returns the events as the API has them.
fn events(agent: &Agent) -> Result<Vec<Value>> {
    let lines = agent.ctl("events --json")?;
    let events = lines.lines().map(serde_json::from_str);
    Ok(events.collect::<Result<_, _>>()?)
}

/// Waits until the file has all events of the agent, and returns them.
fn kept_events(node: &Machine, agent: &Agent) -> Result<Vec<Value>> {
    until("all events are in their file", || {
        let events = events(agent)?;
        let last = events.last().context("an event")?;
        let text = node.mounts().run(|| fs::read_to_string(EVENTS))?;
        let kept = text.lines().last().map(serde_json::from_str::<Value>);
        let is_last = kept.is_some_and(|kept| kept.is_ok_and(|kept| kept == *last));
        Ok(is_last.then_some(events))
    })
}

/// Damages the file of the events between two starts of the agent: it is set aside, the other
/// events stay, and the damage is logged and an event.
fn damage_events(node: &Machine, agent: &mut Agent, before: &[Value]) -> Result<()> {
    kept_events(node, agent)?;
    agent.kill()?;
    node.mounts().run(|| -> Result<()> {
        let text = fs::read_to_string(EVENTS)?;
        Ok(fs::write(EVENTS, format!("damaged\n{text}"))?)
    })?;
    agent.restart()?;
    let aside = EVENTS.replace("jsonl", "damaged");
    let damaged = node.mounts().run(|| fs::read_to_string(&aside))?;
    ensure!(damaged.starts_with("damaged\n"), "{damaged}");
    let all = events(agent)?;
    ensure!(all.starts_with(before), "{all:#?}");
    let is_report = |it: &Value| it["message"].as_str().is_some_and(|it| it.contains(&aside));
    ensure!(all.iter().any(is_report), "{all:#?}");
    ensure!(agent.log().contains("is damaged"), "{}", agent.log());
    Ok(())
}

#[test]
fn events_outlive_a_killed_agent_and_a_damaged_file_with_their_pods() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let pod = sandbox.pod("pod")?;
    let names = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0";
    let call = |verb| {
        pod.prepare(verb, &Config::new("1.1.0"))
            .set("CNI_ARGS", names)
    };
    let added = call(Verb::Add).run(&sandbox.node)?.result()?;
    let link = added["interfaces"][1]["name"].as_str().context("a link")?;
    sandbox.node.call(&format!("ip link set {link} down"))?;
    until("the repair is an event of the pod", || {
        let is_repair = |event: &Value| {
            event["action"] == "reconcile"
                && event["subject"] == "default/pod/eth0"
                && event["pod"]["name"] == "web-0"
        };
        Ok(events(&agent)?.iter().any(is_repair).then_some(()))
    })?;
    let before = kept_events(&sandbox.node, &agent)?;
    agent.kill()?;
    agent.restart()?;
    let after = events(&agent)?;
    ensure!(
        after.starts_with(&before),
        "{after:#?}, but was {before:#?}"
    );
    let numbers: Vec<_> = after.iter().map(|it| it["sequence"].as_u64()).collect();
    ensure!(
        numbers.is_sorted() && numbers.first() == Some(&Some(1)),
        "{numbers:?}"
    );
    let text = agent.ctl("events")?;
    ensure!(text.contains("shop/web-0 (pod/eth0)"), "{text}");
    ensure!(text.matches(" start ").count() == 2, "{text}");
    damage_events(&sandbox.node, &mut agent, &after)?;
    call(Verb::Del).run(&sandbox.node)?.success()?;
    let text = agent.ctl("events --last")?;
    ensure!(
        text.contains("del       done       shop/web-0 (pod/eth0)"),
        "{text}"
    );
    // The file goes with the records.
    agent.kill()?;
    agent.run(&["--uninstall"])?;
    let left = files(&sandbox.node)?;
    ensure!(!left.contains("/run/viaduct"), "{left}");
    Ok(())
}
