//! Checks which crate imports which: the edges of the crate graph.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata, PackageId};

/// Each crate of the product, and the crates of the workspace that it imports: no others, and none
/// that it does not use.
const MAY_IMPORT: [(&str, &[&str]); 21] = [
    ("abi", &[]),
    ("verdict", &["abi"]),
    ("datapath", &["abi", "verdict"]),
    ("model", &[]),
    ("cni", &["model"]),
    ("crash", &[]),
    ("steps", &["abi", "model"]),
    ("planner", &["abi", "ipam", "model", "steps"]),
    ("explain", &["abi", "model", "steps", "verdict"]),
    ("store", &["crash", "model"]),
    ("kernel", &["abi", "crash", "model", "steps"]),
    (
        "engine",
        &[
            "abi", "crash", "ipam", "kernel", "model", "planner", "steps", "store",
        ],
    ),
    ("viaduct-client", &[]),
    ("ipam", &["model"]),
    ("invoke", &["cni", "ipam", "model"]),
    ("docker", &["cni", "model"]),
    ("netavark", &["cni", "model"]),
    (
        "agent",
        &[
            "abi",
            "cni",
            "crash",
            "docker",
            "engine",
            "explain",
            "ipam",
            "kernel",
            "model",
            "netavark",
            "planner",
            "steps",
            "store",
            "viaduct-client",
        ],
    ),
    (
        "plugin",
        &["abi", "cni", "invoke", "ipam", "model", "viaduct-client"],
    ),
    (
        "ctl",
        &[
            "abi",
            "cni",
            "invoke",
            "kernel",
            "model",
            "planner",
            "steps",
            "viaduct-client",
        ],
    ),
    ("viaduct-kube", &["cni", "model", "viaduct-client"]),
];

/// Crates without effects.
const PURE: [&str; 9] = [
    "abi", "verdict", "model", "cni", "docker", "netavark", "steps", "planner", "explain",
];
/// Libraries with effects: a pure crate may not reach them, directly or through others.
const EFFECTS: [&str; 3] = ["tokio", "rtnetlink", "aya"];
/// Not part of the product.
const FREE: [&str; 2] = ["e2e", "xtask"];

/// Returns whether the crate is part of the product.
pub(super) fn is_of_product(name: &str) -> bool {
    MAY_IMPORT.iter().any(|(known, _)| *known == name)
}

pub(super) fn offences(metadata: &Metadata) -> Vec<String> {
    let mut found = unknown(metadata);
    found.extend(
        MAY_IMPORT
            .iter()
            .flat_map(|(name, allowed)| differing(metadata, name, allowed)),
    );
    found.extend(PURE.iter().flat_map(|name| impure(metadata, name)));
    found
}

fn unknown(metadata: &Metadata) -> Vec<String> {
    let known = |name: &str| FREE.contains(&name) || MAY_IMPORT.iter().any(|(it, _)| *it == name);
    metadata
        .workspace_packages()
        .into_iter()
        .map(|package| package.name.to_string())
        .filter(|name| !known(name))
        .map(|name| format!("{name}: a new crate: say in tidy's table what it may import"))
        .collect()
}

fn differing(metadata: &Metadata, name: &str, allowed: &[&str]) -> Vec<String> {
    let packages = metadata.workspace_packages();
    let Some(package) = packages.iter().find(|it| it.name == name) else {
        return vec![format!("{name}: in tidy's table, but not in the workspace")];
    };
    let inside: BTreeSet<&str> = packages.iter().map(|it| it.name.as_str()).collect();
    let imports = package
        .dependencies
        .iter()
        .filter(|it| it.kind == DependencyKind::Normal);
    let imported: BTreeSet<&str> = imports
        .map(|it| it.name.as_str())
        .filter(|it| inside.contains(it))
        .collect();
    let unused = allowed
        .iter()
        .filter(|it| !imported.contains(**it))
        .map(|it| format!("{name}: tidy's table lists {it}, which it does not import"));
    imported
        .iter()
        .filter(|it| !allowed.contains(*it))
        .map(|it| format!("{name}: imports {it}, which lies above it or beside it"))
        .chain(unused)
        .collect()
}

fn impure(metadata: &Metadata, name: &str) -> Vec<String> {
    let imports = import_graph(metadata);
    let names: BTreeMap<&PackageId, &str> = metadata
        .packages
        .iter()
        .map(|it| (&it.id, it.name.as_str()))
        .collect();
    let mut waiting: Vec<&PackageId> = metadata
        .workspace_packages()
        .iter()
        .filter(|it| it.name == name)
        .map(|it| &it.id)
        .collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if seen.insert(id) {
            waiting.extend(imports.get(id).into_iter().flatten());
        }
    }
    let reached: BTreeSet<&str> = seen
        .iter()
        .filter_map(|id| names.get(*id).copied())
        .collect();
    EFFECTS
        .iter()
        .filter(|it| reached.contains(**it))
        .map(|it| format!("{name}: reaches {it}, and it is meant to decide only"))
        .collect()
}

/// Normal dependencies only: tests may use what they like.
fn import_graph(metadata: &Metadata) -> BTreeMap<&PackageId, Vec<&PackageId>> {
    let nodes = metadata.resolve.iter().flat_map(|graph| &graph.nodes);
    let normal = |kinds: &[cargo_metadata::DepKindInfo]| {
        kinds.iter().any(|it| it.kind == DependencyKind::Normal)
    };
    nodes
        .map(|node| {
            let imports = node.deps.iter().filter(|it| normal(&it.dep_kinds));
            (&node.id, imports.map(|it| &it.pkg).collect())
        })
        .collect()
}
