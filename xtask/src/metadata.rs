//! The workspace as `cargo metadata` describes it.

use anyhow::Result;
use cargo_metadata::{Metadata, MetadataCommand};

use crate::project;

/// Loads packages, targets and the resolved graph, for the host's platform.
pub(crate) fn load() -> Result<Metadata> {
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let metadata = MetadataCommand::new()
        .manifest_path(project::root().join("Cargo.toml"))
        .other_options(["--filter-platform".to_owned(), triple])
        .exec()?;
    Ok(metadata)
}

/// Name of the feature that enables a package's tests that need root.
pub(crate) const ROOT_TESTS: &str = "root-tests";

/// Returns the features that enable all tests that need root, for cargo's `--features`.
pub(crate) fn root_features(metadata: &Metadata) -> String {
    metadata
        .workspace_packages()
        .into_iter()
        .filter(|it| it.features.contains_key(ROOT_TESTS))
        .map(|it| format!("{}/{ROOT_TESTS}", it.name))
        .collect::<Vec<_>>()
        .join(",")
}

/// Returns the names of the integration tests of `package`.
pub(crate) fn integration_tests(metadata: &Metadata, package: &str) -> Vec<String> {
    let found = metadata
        .workspace_packages()
        .into_iter()
        .find(|it| it.name == package);
    let targets = found.map(|it| it.targets.as_slice()).unwrap_or_default();
    let mut names: Vec<String> = targets
        .iter()
        .filter(|target| target.is_test())
        .map(|target| target.name.clone())
        .collect();
    names.sort();
    names
}
