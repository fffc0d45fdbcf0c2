//! Paths in the checkout that several verbs use.

use std::path::{Path, PathBuf};

/// The root of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a folder of the workspace")
}

/// Cargo's target directory, `CARGO_TARGET_DIR` included.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Tools that setup installs for this checkout, and its stamp.
pub(crate) fn tools() -> PathBuf {
    root().join("target/tools")
}

/// The target directory of the BPF object: apart from the host's, since its compiler flags differ.
pub(crate) fn bpf_target() -> PathBuf {
    root().join("target/bpf")
}

/// The built BPF object.
pub(crate) fn bpf_object() -> PathBuf {
    bpf_object_in(&bpf_target())
}

/// The BPF object in a target directory.
pub(crate) fn bpf_object_in(target: &Path) -> PathBuf {
    target.join("bpfel-unknown-none/release/datapath")
}

/// The second build of the agent, for upgrade tests.
pub(crate) fn next_dist() -> PathBuf {
    root().join("target/dist-next")
}

/// The target directory of the BPF object with the next map layout.
pub(crate) fn layout_bpf_target() -> PathBuf {
    root().join("target/bpf-layout")
}

/// The agent and BPF object with the next ABI version and map layout, for upgrade tests.
pub(crate) fn layout_dist() -> PathBuf {
    root().join("target/dist-layout")
}

/// The folder that `dist` lays out.
pub(crate) fn dist() -> PathBuf {
    root().join("target/dist")
}

/// Returns `path` for messages: relative to the checkout, if it lies inside.
pub(crate) fn short(path: &Path) -> String {
    path.strip_prefix(root())
        .unwrap_or(path)
        .display()
        .to_string()
}
