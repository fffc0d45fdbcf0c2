//! Detaches all pods, removes Viaduct, and shows that neither leaves anything behind.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use e2e::residue::assert_no_residue;
use e2e::{Machine, Residue, until};

use crate::scenario::Scenario;
use crate::screen::Screen;

pub(crate) fn show(screen: &mut Screen, scenario: &mut Scenario) -> Result<()> {
    screen.section("Detach all pods");
    scenario.servers.clear();
    for pod in &scenario.pods {
        let took = pod.del()?.took;
        screen.line(format!("{} DEL", pod.id()), Ok(format!("{took:.1?}")));
    }
    let node = &scenario.sandbox.node;
    let machines = scenario
        .pods
        .iter()
        .map(|pod| &pod.machine)
        .collect::<Vec<_>>();
    let after = Residue::of(node, &machines)?;
    for list in ["attachments", "leases", "hostports"] {
        screen.line(list, none_of(&after, list));
    }
    for table in ["INTERFACES", "ENDPOINTS", "HOSTPORTS"] {
        screen.line(
            format!("entries of {table}"),
            none_of(&after, &format!("table {table}")),
        );
    }
    let only_loopback = machines
        .iter()
        .map(|pod| after.count(&format!("{}: links", pod.name())))
        .sum::<usize>()
        - machines.len();
    screen.line("interfaces left in the pods", none(only_loopback));
    let on_node = Residue::of(node, &[])?;
    screen.line(
        "differences from the node before the pods",
        same(&scenario.empty, &on_node),
    );
    for pod in scenario.pods.drain(..) {
        pod.machine.unbind()?;
    }
    uninstall(screen, scenario)
}

/// Commands that remove the agent's pins, bridge and records. The datapath outlives the agent.
const REMOVAL: [&str; 3] = [
    "rm -r /sys/fs/bpf/viaduct",
    "ip link delete cbr0",
    "rm -r /run/viaduct",
];

fn uninstall(screen: &mut Screen, scenario: &mut Scenario) -> Result<()> {
    screen.section("Remove Viaduct");
    let node = scenario.sandbox.node.clone();
    let before = objects(&node)?;
    let status = scenario.agent.terminate()?;
    screen.line("agent", Ok(format!("exited, {status}")));
    for removal in REMOVAL {
        screen.line(removal, node.call(removal).map(|_| "done"));
    }
    let left = until("the kernel frees programs and maps", || {
        Ok(Some(objects_left(&node, &before)?).filter(BTreeSet::is_empty))
    });
    screen.line(
        "BPF programs, maps and links left",
        left.map(|_| format!("0 of {}", before.len())),
    );
    let after = Residue::of(&node, &[])?;
    let more = |kind| {
        let before = scenario.bare.count(kind);
        after.count(kind).saturating_sub(before)
    };
    screen.line("pins left", none(more("pins")));
    screen.line("interfaces left on the node", none(more("links")));
    screen.line(
        "differences from the node before the agent",
        same(&scenario.bare, &after),
    );
    let namespaces = node.call("ls /run/netns")?.split_whitespace().count();
    screen.line("network namespaces of pods left", none(namespaces - 2));
    Ok(())
}

/// Returns all pinned programs, maps and links, each as kind and ID.
fn objects(node: &Machine) -> Result<BTreeSet<String>> {
    let found = node.call("find /sys/fs/bpf -type f")?;
    let mut objects = BTreeSet::new();
    for pin in found.lines() {
        for kind in ["map", "prog", "link"] {
            let output = node.output(&["bpftool", "-j", kind, "show", "pinned", pin])?;
            let shown = serde_json::from_slice::<serde_json::Value>(&output.stdout);
            let id = shown.ok().and_then(|shown| shown["id"].as_u64());
            objects.extend(
                id.filter(|_| output.status.success())
                    .map(|id| format!("{kind} {id}")),
            );
        }
    }
    ensure!(!objects.is_empty(), "no BPF object is pinned");
    Ok(objects)
}

fn objects_left(node: &Machine, objects: &BTreeSet<String>) -> Result<BTreeSet<String>> {
    let mut left = BTreeSet::new();
    for object in objects {
        let (kind, id) = object.split_once(' ').context("a kind and a number")?;
        if node
            .output(&["bpftool", kind, "show", "id", id])?
            .status
            .success()
        {
            left.insert(object.clone());
        }
    }
    Ok(left)
}

/// Checks that a snapshot has no item of a kind. A kind that it does not contain is an error.
fn none_of(residue: &Residue, kind: &str) -> Result<&'static str> {
    let items = residue.kinds.get(kind);
    none(
        items
            .with_context(|| format!("the snapshot has no {kind}"))?
            .len(),
    )
}

fn none(count: usize) -> Result<&'static str> {
    ensure!(count == 0, "{count} left");
    Ok("0")
}

fn same(before: &Residue, after: &Residue) -> Result<&'static str> {
    assert_no_residue(before, after)?;
    Ok("0")
}
