//! What an administrator finds on the node: programs on interfaces, and not one rule.

use anyhow::{Context as _, Result, ensure};
use e2e::{Machine, UPLINK};

use crate::cast::Cast;
use crate::screen::Screen;

pub(crate) fn show(screen: &mut Screen, cast: &Cast) {
    screen.section("What an administrator finds on the node");
    let node = &cast.sandbox.node;
    for tool in [
        "nft list ruleset",
        "iptables-save",
        "ip6tables-save",
        "ebtables-save",
    ] {
        screen.line(tool, rules(node, tool));
    }
    screen.line("tc qdisc", qdiscs(node));
    screen.line("bpftool net", programs(node, cast.pods.len()));
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
    let kinds = shown.as_array().into_iter().flatten();
    let kinds = kinds.map(|qdisc| qdisc["kind"].as_str().unwrap_or_default().to_owned());
    let kinds = kinds.collect::<Vec<_>>();
    let ours = kinds.iter().filter(|kind| *kind == "clsact").count();
    let strange = kinds
        .iter()
        .filter(|kind| !["clsact", "noqueue"].contains(&kind.as_str()))
        .collect::<Vec<_>>();
    ensure!(strange.is_empty(), "also {strange:?}");
    Ok(format!(
        "{ours} × clsact, which queues nothing, and nothing else"
    ))
}

/// Two programs for each pod and two for the uplink.
fn programs(node: &Machine, pods: usize) -> Result<String> {
    let shown = node.call_json("bpftool -j net show")?;
    let attached = shown[0]["tc"].as_array().context("no list of programs")?;
    let ends = |interface: &str, name: &str| {
        let matches = attached.iter().filter(|program| {
            let at = program["devname"].as_str().unwrap_or_default();
            let called = program["name"].as_str().unwrap_or_default();
            at.starts_with(interface) && called.contains(name)
        });
        matches.count()
    };
    let counts = [
        ("veth", "from_pod"),
        ("veth", "to_pod"),
        (UPLINK, "uplink_in"),
        (UPLINK, "uplink_out"),
    ];
    let shown_counts =
        counts.map(|(interface, name)| format!("{} × {name}", ends(interface, name)));
    let good = counts.iter().all(|(interface, name)| {
        ends(interface, name) == if *interface == "veth" { pods } else { 1 }
    });
    ensure!(good, "{}\n{shown}", shown_counts.join(", "));
    Ok(shown_counts.join(", "))
}
