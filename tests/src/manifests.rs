//! Files of the repository that operators get: manifests of `deploy/kubernetes`, and the image
//! of `cargo xtask package`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use serde_json::Value;

/// Returns the folder of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the objects of a file of `deploy/kubernetes`.
fn objects(file: &str) -> Result<Vec<Value>> {
    let path = repository().join("deploy/kubernetes").join(file);
    let yaml = std::fs::read_to_string(path).with_context(|| file.to_owned())?;
    serde_saphyr::from_multiple(&yaml).map_err(|error| anyhow!("{file}: {error}"))
}

/// Returns the object of a kind in a file of `deploy/kubernetes`.
pub fn object(file: &str, kind: &str) -> Result<Value> {
    let mut all = objects(file)?.into_iter();
    let found = all.find(|one| one["kind"] == kind);
    found.with_context(|| format!("{file} has no {kind}"))
}

/// Returns the archive of the image that `cargo xtask package` has written.
pub fn image() -> Result<PathBuf> {
    let packages = repository().join("target/package");
    let entries = std::fs::read_dir(packages).context("no packages: run `cargo xtask package`")?;
    let mut paths = entries.filter_map(|entry| entry.ok().map(|it| it.path()));
    let found = paths.find(|path| path.to_string_lossy().ends_with(".oci.tar"));
    found.context("no image among the packages")
}
