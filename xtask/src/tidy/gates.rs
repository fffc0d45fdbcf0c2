//! Checks the feature gate of tests that need root. A package that has some keeps all its
//! integration tests behind one feature: a test that is not behind it would be run among the unit
//! tests, without root and before the binaries are built, and would pass there only where an
//! earlier run has left them.

use cargo_metadata::{Metadata, Package};

use crate::metadata::ROOT_TESTS;

/// Integration tests beside tests that need root, which do not say that they need it.
pub(super) fn offences(metadata: &Metadata) -> Vec<String> {
    metadata
        .workspace_packages()
        .into_iter()
        .filter(|it| it.features.contains_key(ROOT_TESTS))
        .flat_map(open)
        .collect()
}

fn open(package: &Package) -> impl Iterator<Item = String> {
    package
        .targets
        .iter()
        .filter(|it| it.is_test())
        .filter(|it| !it.required_features.iter().any(|name| name == ROOT_TESTS))
        .map(|it| {
            format!(
                "{}: test `{}` lacks required-features = [\"{ROOT_TESTS}\"]",
                package.manifest_path, it.name
            )
        })
}
