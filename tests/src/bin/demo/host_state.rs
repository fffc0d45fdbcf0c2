//! State that an administrator finds on the node: BPF programs on interfaces, and no netfilter
//! rule.

use anyhow::{Context as _, Result, ensure};
use e2e::{Machine, UPLINK};

use crate::scenario::Scenario;
use crate::screen::Screen;

/// Cgroup programs for processes of the node that connect to or bind a hostport.
const SOCKET_PROGRAMS: [&str; 10] = [
    "bind4",
    "bind6",
    "connect4",
    "connect6",
    "getpeername4",
    "getpeername6",
    "recvmsg4",
    "recvmsg6",
    "sendmsg4",
    "sendmsg6",
];

pub(crate) fn show(screen: &mut Screen, scenario: &Scenario) {
    screen.section("State on the node: netfilter rules, qdiscs and BPF programs");
    let node = &scenario.sandbox.node;
    for tool in [
        "nft list ruleset",
        "iptables-save",
        "ip6tables-save",
        "ebtables-save",
    ] {
        screen.line(tool, rules(node, tool));
    }
    screen.line("tc qdisc", qdiscs(node));
    screen.line("bpftool net", pod_programs(node, scenario.pods.len()));
    let uplink = linked(node, "[0-9]*", &["uplink_in", "uplink_out"]);
    screen.line(format!("bpftool link, for {UPLINK}"), uplink);
    let cgroup = linked(node, "cgroup-*", &SOCKET_PROGRAMS);
    screen.line("bpftool link, for the node's cgroup", cgroup);
}

fn rules(node: &Machine, tool: &str) -> Result<String> {
    let printed = node.call(tool)?;
    let is_rule =
        |line: &&str| !line.is_empty() && !line.starts_with(['#', '*', ':']) && *line != "COMMIT";
    let count = printed.lines().filter(is_rule).count();
    ensure!(count == 0, "{count} rules:\n{printed}");
    Ok("0 rules".to_owned())
}

fn qdiscs(node: &Machine) -> Result<String> {
    let shown = node.call_json("tc -j qdisc show")?;
    let kinds = shown
        .as_array()
        .into_iter()
        .flatten()
        .map(|qdisc| qdisc["kind"].as_str().unwrap_or_default().to_owned())
        .collect::<Vec<_>>();
    let ours = kinds.iter().filter(|kind| *kind == "clsact").count();
    let strange = kinds
        .iter()
        .filter(|kind| !["clsact", "noqueue"].contains(&kind.as_str()))
        .collect::<Vec<_>>();
    ensure!(strange.is_empty(), "unexpected qdiscs {strange:?}");
    Ok(format!("{ours} × clsact, which has no queue, and no other"))
}

/// Checks that each pod's veth has two programs, as tc filters.
fn pod_programs(node: &Machine, pods: usize) -> Result<String> {
    let shown = node.call_json("bpftool -j net show")?;
    let attached = shown[0]["tc"].as_array().context("no list of programs")?;
    let count = |name: &str| {
        attached
            .iter()
            .filter_map(|at| at["name"].as_str())
            .filter(|found| found.contains(name))
            .count()
    };
    let counts = (count("from_pod"), count("to_pod"));
    ensure!(counts == (pods, pods), "{shown}");
    Ok(format!("{pods} × from_pod, {pods} × to_pod"))
}

/// Checks the programs of the pinned links whose names match `pattern`. BPF links outlive the
/// agent, and not every version of `bpftool net` shows them.
fn linked(node: &Machine, pattern: &str, expected: &[&str]) -> Result<String> {
    let pins = node.call(&format!("find /sys/fs/bpf -path */links/{pattern}"))?;
    let mut names = Vec::new();
    for pin in pins.lines() {
        let link = node.call_json(&format!("bpftool -j link show pinned {pin}"))?;
        let program = node.call_json(&format!("bpftool -j prog show id {}", link["prog_id"]))?;
        names.push(program["name"].as_str().unwrap_or_default().to_owned());
    }
    names.sort_unstable();
    ensure!(names == expected, "{names:?}");
    Ok(names.join(", "))
}
