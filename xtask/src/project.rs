//! Where things lie in the checkout. Every path another verb relies on is named here once.

use std::path::{Path, PathBuf};

/// The root of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a folder of the workspace")
}

/// Cargo's target directory, which `CARGO_TARGET_DIR` may have moved.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// What setup installs for this checkout alone, and what it remembers.
pub(crate) fn tools() -> PathBuf {
    root().join("target/tools")
}

/// The target directory of the BPF object, apart from the host's: its flags are its own.
pub(crate) fn bpf_target() -> PathBuf {
    root().join("target/bpf")
}

/// The BPF object as built.
pub(crate) fn bpf_object() -> PathBuf {
    bpf_target().join("bpfel-unknown-none/release/datapath")
}

/// The agent as another version, for tests of upgrades.
pub(crate) fn next_dist() -> PathBuf {
    root().join("target/dist-next")
}

/// What `dist` lays out.
pub(crate) fn dist() -> PathBuf {
    root().join("target/dist")
}

/// `path` as people want to read it: relative to the checkout where it lies inside.
pub(crate) fn short(path: &Path) -> String {
    path.strip_prefix(root())
        .unwrap_or(path)
        .display()
        .to_string()
}
