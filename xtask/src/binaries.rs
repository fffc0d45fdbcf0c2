//! Test binaries: what cargo builds of the tests, and where each runs.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use cargo_metadata::{Artifact, Message, Metadata};

use crate::{command, metadata};

/// Integration tests of package `e2e` that need no installed programs: they load BPF programs, or
/// drive the engine.
const BPF_TESTS: [&str; 4] = ["differential", "explanations", "node_histories", "packets"];

/// Integration tests of package `e2e` with a Kubernetes cluster, which is built for them.
const CLUSTER_TESTS: [&str; 3] = [
    "kubernetes_cluster",
    "kubernetes_nodes",
    "kubernetes_daemon_set",
];

/// A test binary, and the folder in which cargo would run it.
#[derive(Clone, Debug)]
pub(crate) struct TestBinary {
    /// The package that it tests.
    pub(crate) package: String,
    /// The name of the target: `nat_ports`, or the package's own for its unit tests.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) folder: PathBuf,
}

impl TestBinary {
    /// What people call it: `engine`, or `e2e::nat_ports`.
    pub(crate) fn title(&self) -> String {
        if self.name == self.package {
            self.name.clone()
        } else {
            format!("{}::{}", self.package, self.name)
        }
    }
}

/// The names of the tests of the netns rung.
pub(crate) fn netns_names(metadata: &Metadata) -> Vec<String> {
    let mut names = metadata::integration_tests(metadata, "kernel");
    names.retain(|name| name.starts_with("netns"));
    names.extend(
        metadata::integration_tests(metadata, "e2e")
            .into_iter()
            .filter(|name| BPF_TESTS.contains(&name.as_str())),
    );
    names
}

/// The names of the tests of the e2e rung.
pub(crate) fn e2e_names(metadata: &Metadata) -> Vec<String> {
    let mut names = metadata::integration_tests(metadata, "e2e");
    let others = [&BPF_TESTS[..], &CLUSTER_TESTS].concat();
    names.retain(|name| !others.contains(&name.as_str()));
    names
}

/// The names of the tests of the cluster rung.
pub(crate) fn cluster_names() -> Vec<String> {
    CLUSTER_TESTS.map(str::to_owned).to_vec()
}

/// Builds the tests that need no root.
pub(crate) fn unit() -> Result<Vec<TestBinary>> {
    build(Command::new("cargo").args(["test", "--workspace"]))
}

/// Builds the agent's unit tests with its feature `otlp`, which the default build does not have.
pub(crate) fn unit_with_traces() -> Result<Vec<TestBinary>> {
    let features = ["--features", "agent/otlp", "--bin", "viaductd"];
    build(
        Command::new("cargo")
            .args(["test", "--workspace"])
            .args(features),
    )
}

/// Builds the integration tests of those names, which need root, and returns them in that order.
/// The whole workspace is selected, so that what the unit tests have compiled is used again.
pub(crate) fn rooted(metadata: &Metadata, names: &[String]) -> Result<Vec<TestBinary>> {
    ensure!(!names.is_empty(), "there are no such tests");
    let mut cargo = Command::new("cargo");
    cargo
        .args(["test", "--workspace"])
        .args(["--features", &metadata::root_features(metadata)]);
    for name in names {
        cargo.args(["--test", name]);
    }
    let mut tests = build(&mut cargo)?;
    let place = |it: &TestBinary| names.iter().position(|name| *name == it.name);
    tests.retain(|it| place(it).is_some());
    tests.sort_by_key(place);
    Ok(tests)
}

/// Builds programs of the workspace, unoptimised, with more features and variables.
///
/// A test is built as well: with one, cargo gives libraries the features that they have in tests,
/// so what those have compiled is used again.
pub(crate) fn programs(names: &[&str], features: &str, variables: &[(&str, &str)]) -> Result<()> {
    let metadata = metadata::load()?;
    let of_tests = metadata::root_features(&metadata);
    let test = e2e_names(&metadata).into_iter().next();
    let mut cargo = Command::new("cargo");
    cargo
        .args(["build", "--workspace", "--locked"])
        .args(["--features", &format!("{of_tests},{features}")])
        .args(test.iter().flat_map(|name| ["--test", name]))
        .args(names.iter().flat_map(|name| ["--bin", name]))
        .envs(variables.iter().copied());
    command::run(&mut cargo)
}

fn build(cargo: &mut Command) -> Result<Vec<TestBinary>> {
    cargo.args(["--no-run", "--message-format=json-render-diagnostics"]);
    let built = command::shown_output(cargo)?;
    Ok(Message::parse_stream(built.as_bytes())
        .filter_map(|message| match message {
            Ok(Message::CompilerArtifact(artifact)) if artifact.profile.test => binary(artifact),
            _ => None,
        })
        .collect())
}

fn binary(artifact: Artifact) -> Option<TestBinary> {
    let folder = artifact.manifest_path.parent()?.to_owned();
    let package = artifact.package_id.repr;
    let package = package_name(&package)?.to_owned();
    let is_own = !artifact.target.is_test() && !artifact.target.is_bin();
    Some(TestBinary {
        name: if is_own {
            package.clone()
        } else {
            artifact.target.name
        },
        package,
        program: artifact.executable?.into(),
        folder: folder.into(),
    })
}

/// The name in a package ID: `path+file:///x/userspace/engine#0.1.0` or
/// `path+file:///x/tests#e2e@0.1.0`.
fn package_name(id: &str) -> Option<&str> {
    let (path, fragment) = id.split_once('#')?;
    match fragment.split_once('@') {
        Some((name, _)) => Some(name),
        None => path.rsplit('/').next(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_id_has_the_packages_name() {
        assert_eq!(
            package_name("path+file:///x/userspace/engine#0.1.0"),
            Some("engine")
        );
        assert_eq!(package_name("path+file:///x/tests#e2e@0.1.0"), Some("e2e"));
        assert_eq!(package_name("no fragment"), None);
    }
}
