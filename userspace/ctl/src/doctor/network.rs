//! Checks of links, routes, policies and filter tables: what the node does to packets of pods.
//!
//! An agent that answers has decided this already, with the same functions. Then only the software
//! with rules for forwarded packets is listed.

use std::collections::{BTreeMap, BTreeSet};

use ::kernel::{NodeReader, Observe, ObserveError};
use model::{DegradedReason, NodeCheck};
use planner::{DefaultState, DroppingDefault, NodeCondition, NodePreview, PeerProblem};
use steps::{ForwardTables, ForwardingQuery, NodeQuery};

use super::configuration::Configuration;
use super::report::{Check, Section};

/// Beginnings of the names of chains and tables, and the software that uses them.
const SOFTWARE: [(&str, &str); 14] = [
    ("DOCKER", "Docker"),
    ("KUBE-", "kube-proxy"),
    ("kube-proxy", "kube-proxy"),
    ("ufw", "ufw"),
    ("firewalld", "firewalld"),
    ("NETAVARK", "podman"),
    ("netavark", "podman"),
    ("CNI-", "CNI plugins"),
    ("cni_", "CNI plugins"),
    ("LIBVIRT", "libvirt"),
    ("libvirt", "libvirt"),
    ("CILIUM", "Cilium"),
    ("cali-", "Calico"),
    ("VIADUCT", "Viaduct"),
];

/// Checks the network of the calling thread's namespace.
pub(super) fn section(configured: &Configuration, serves: bool) -> Section {
    let checks = match check(configured, serves) {
        Ok(checks) => checks,
        Err(error) => vec![unknown(NodeCheck::Network, &error)],
    };
    Section {
        name: "network",
        checks,
    }
}

fn check(configured: &Configuration, serves: bool) -> Result<Vec<Check>, ObserveError> {
    let mut reader = NodeReader::open()?;
    let tables = reader.observe(&ForwardingQuery);
    let mut checks = vec![match &tables {
        Ok(tables) => software(tables),
        Err(error) => unknown(NodeCheck::Firewall, error),
    }];
    if serves {
        return Ok(checks);
    }
    let preview = NodePreview::new(&configured.intent, reader.observe(&NodeQuery::default())?);
    if let Ok(tables) = &tables {
        let defaults = preview.dropping_defaults(tables, configured.forwarding);
        checks.extend(defaults.iter().filter_map(dropped));
    }
    checks.push(uplinks(&preview));
    checks.extend(peers(configured, &preview));
    if configured.intent.networks.is_empty() {
        return Ok(checks);
    }
    let facts = reader.observe(&preview.query())?;
    checks.extend(conditions(&preview.conditions(&facts)));
    Ok(checks)
}

fn unknown(check: NodeCheck, error: &ObserveError) -> Check {
    Check::skip(check, format!("{error}: {}", error.source))
}

/// Returns which software has rules for forwarded packets, with its tables.
pub(super) fn software(tables: &ForwardTables) -> Check {
    let mut found: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (table, state) in &tables.tables {
        let names = state.rules.keys().chain([&table.name]);
        let known: BTreeSet<&str> = names.filter_map(|name| software_of(name)).collect();
        let has_rules = state.rules.values().any(|rules| !rules.is_empty());
        let of_others = if known.is_empty() && has_rules {
            Some("other software")
        } else {
            None
        };
        for owner in known.into_iter().chain(of_others) {
            found.entry(owner).or_default().insert(table.to_string());
        }
    }
    if found.is_empty() {
        return Check::ok(
            NodeCheck::Firewall,
            "no software has rules for forwarded packets",
        );
    }
    let owners: Vec<String> = found
        .into_iter()
        .map(|(owner, tables)| {
            let tables: Vec<String> = tables.into_iter().collect();
            format!("{owner} ({})", tables.join(", "))
        })
        .collect();
    let text = format!(
        "software with rules for forwarded packets: {}",
        owners.join(", ")
    );
    Check::info(NodeCheck::Firewall, text)
}

fn software_of(name: &str) -> Option<&'static str> {
    let mut known = SOFTWARE.into_iter();
    known
        .find(|(beginning, _)| name.starts_with(beginning))
        .map(|(_, owner)| owner)
}

/// Returns the fault that a default drops packets of pods: a warning where an agent would carry the
/// packets past it.
pub(super) fn dropped(default: &DroppingDefault) -> Option<Check> {
    let (what, reason) = (&default.what, DegradedReason::ForwardingDropped);
    let check = match &default.state {
        DefaultState::Left => return None,
        DefaultState::Carried => {
            let text = format!("{what} drops the packets of pods until an agent accepts them");
            Check::warn(NodeCheck::Firewall, text)
                .because(reason)
                .with_advice("Start the agent, which adds accept rules with `--forwarding auto`.")
        }
        DefaultState::Drops(why) => {
            let text = format!("{what} drops the packets of pods: {why}");
            Check::fail(NodeCheck::Firewall, text).because(reason)
        }
    };
    Some(check)
}

fn uplinks(preview: &NodePreview<'_>) -> Check {
    let names: Vec<String> = preview.uplinks().iter().map(ToString::to_string).collect();
    if names.is_empty() {
        let text = "no link leads out of the node";
        return Check::fail(NodeCheck::Network, text).because(DegradedReason::NoUplink);
    }
    Check::ok(
        NodeCheck::Network,
        format!("packets leave the node through {}", names.join(", ")),
    )
}

/// Returns what would prevent routes or tunnels to the peers of the peers file; nothing without
/// one.
pub(super) fn peers(configured: &Configuration, preview: &NodePreview<'_>) -> Vec<Check> {
    let Some(peers) = &configured.intent.peers.peers else {
        return configured.peers_file.iter().cloned().collect();
    };
    let problems = preview.peer_problems();
    if problems.is_empty() {
        let count = peers.list().len();
        let text =
            format!("nothing prevents routes or tunnels to the {count} nodes of the peers-file");
        return vec![Check::ok(NodeCheck::Peers, text)];
    }
    let check = |problem: &PeerProblem| {
        Check::fail(NodeCheck::Peers, problem.to_string()).because(problem.kind().reason())
    };
    problems.iter().map(check).collect()
}

fn conditions(found: &[NodeCondition]) -> Vec<Check> {
    if found.is_empty() {
        let text = "subnets, routes, filters, IPsec policies and MTUs let packets of pods pass";
        return vec![Check::ok(NodeCheck::Network, text)];
    }
    let check = |condition: &NodeCondition| {
        Check::fail(NodeCheck::Network, condition.to_string()).because(condition.reason())
    };
    found.iter().map(check).collect()
}
