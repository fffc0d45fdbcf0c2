//! `dist`: what is installed on a node, laid out under `target/dist`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::setup::{self, Scope};
use crate::{build, command, project};

/// Files of the system's configuration, as samples to start from.
const SAMPLES: [(&str, &str); 3] = [
    (
        "viaductd.service",
        include_str!("../assets/viaductd.service"),
    ),
    ("viaductd.toml", include_str!("../assets/viaductd.toml")),
    (
        "10-viaduct.conflist",
        include_str!("../assets/10-viaduct.conflist"),
    ),
];

pub(crate) fn run() -> Result<()> {
    build::bpf_object(&setup::ensure(Scope::Build)?)?;
    command::run(build::programs().arg("--release"))?;
    let release = project::target().join("release");
    let dist = project::dist();
    install(&release.join("viaductd"), &dist.join("bin/viaductd"), 0o755)?;
    install(
        &release.join("viaductctl"),
        &dist.join("bin/viaductctl"),
        0o755,
    )?;
    install(&release.join("viaduct"), &dist.join("cni/viaduct"), 0o755)?;
    install(
        &project::bpf_object(),
        &dist.join("lib/viaduct/datapath.o"),
        0o644,
    )?;
    for (name, text) in SAMPLES {
        put(&dist.join("etc").join(name), text.as_bytes(), 0o644)?;
    }
    eprintln!("{} is ready", project::short(&dist));
    Ok(())
}

fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    put(to, &bytes, mode)
}

/// Replaces the file by name, so that one that is being executed keeps its old contents.
fn put(to: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let folder = to.parent().context("every file lies in a folder")?;
    fs::create_dir_all(folder)?;
    let fresh = to.with_extension("new");
    fs::write(&fresh, bytes).with_context(|| format!("cannot write {}", fresh.display()))?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(mode))?;
    fs::rename(&fresh, to)?;
    Ok(())
}
