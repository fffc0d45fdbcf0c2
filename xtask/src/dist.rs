//! `dist`: lays out under `target/dist` what is installed on a node.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::arch::Arch;
use crate::sbom::{self, Shipped};
use crate::setup::{self, Scope, Tools};
use crate::{binaries, build, command, programs, project};

/// Sample configuration files.
const SAMPLES: [(&str, &str); 5] = [
    (
        "viaductd.service",
        include_str!("../assets/viaductd.service"),
    ),
    ("viaductd.socket", include_str!("../assets/viaductd.socket")),
    ("viaductd.toml", include_str!("../assets/viaductd.toml")),
    (
        "viaduct-kube.service",
        include_str!("../assets/viaduct-kube.service"),
    ),
    (
        "05-viaduct.conflist",
        include_str!("../assets/05-viaduct.conflist"),
    ),
];

/// Other names of the plugin: executed by one of them, it is that plugin.
pub(crate) const PLUGIN_NAMES: [&str; 7] = [
    "bridge",
    "host-local",
    "portmap",
    "bandwidth",
    "firewall",
    "tuning",
    "loopback",
];

/// Size limit of the plugin in bytes.
const MOST_PLUGIN: u64 = 1_000_000;

/// Version string of the second agent.
const NEXT: &str = concat!(env!("CARGO_PKG_VERSION"), "+next");

/// Version string of the agent with the next map layout.
const LAYOUT: &str = concat!(env!("CARGO_PKG_VERSION"), "+layout");

/// Feature of the package `abi` that changes the layout of a map.
const NEXT_LAYOUT: &str = "next-layout";

/// Arguments of `dist`.
#[derive(Clone, Copy, Default, clap::Args)]
pub(crate) struct Args {
    /// Also build agents for upgrade tests: another version under target/dist-next, and one with a
    /// changed map layout under target/dist-layout
    #[arg(long, conflicts_with = "arch")]
    pub(crate) next: bool,
    /// Build for this architecture, under target/dist-ARCH
    #[arg(long)]
    pub(crate) arch: Option<Arch>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let tools = setup::ensure(Scope::Build)?;
    let arch = args.arch.unwrap_or(Arch::HOST);
    setup::ensure_cross(arch)?;
    build::bpf_object(&tools)?;
    let programs = programs::build(&tools, arch)?;
    let dist = arch.dist();
    install(&programs.agent, &dist.join("bin/viaductd"), 0o755)?;
    install(&programs.ctl, &dist.join("bin/viaductctl"), 0o755)?;
    install(&programs.kube, &dist.join("bin/viaduct-kube"), 0o755)?;
    ensure_small(&programs.plugin)?;
    install(&programs.plugin, &dist.join("cni/viaduct"), 0o755)?;
    for name in PLUGIN_NAMES {
        link(&dist.join("cni/viaduct"), &dist.join("cni").join(name))?;
    }
    install(
        &project::bpf_object(),
        &dist.join("lib/viaduct/datapath.o"),
        0o644,
    )?;
    for (name, text) in SAMPLES {
        put(&dist.join("etc").join(name), text.as_bytes(), 0o644)?;
    }
    sbom::write(
        &dist.join("sbom"),
        &shipped(&tools, &programs.target, &dist)?,
    )?;
    eprintln!("{} is ready", project::short(&dist));
    if args.next {
        next_agent()?;
        next_layout(&tools)?;
    }
    Ok(())
}

/// Returns the shipped files that are compiled, each as it is built.
fn shipped(tools: &Tools, target: &str, dist: &Path) -> Result<[Shipped; 5]> {
    let compiler = command::output(Command::new("rustc").arg("-V"))?;
    let of = |file: &str, package| Shipped {
        file: dist.join(file),
        package,
        target: target.to_owned(),
        built_with: &["agent", "ctl"],
        runtime: "rust-std",
        compiler: compiler.clone(),
    };
    Ok([
        of("bin/viaductd", "agent"),
        of("bin/viaductctl", "ctl"),
        Shipped {
            built_with: &["viaduct-kube"],
            ..of("bin/viaduct-kube", "viaduct-kube")
        },
        Shipped {
            built_with: &["plugin"],
            ..of("cni/viaduct", "plugin")
        },
        Shipped {
            target: build::BPF_TARGET.to_owned(),
            built_with: &["datapath"],
            runtime: "rust-core",
            compiler: tools.toolchain.version().to_owned(),
            ..of("lib/viaduct/datapath.o", "datapath")
        },
    ])
}

/// Builds the agent a second time from the same sources: unoptimised, with another version string
/// and another digest of the BPF object, so that an upgrade to it replaces all attached programs.
/// It has crash points, which are inert unless an environment variable enables one.
fn next_agent() -> Result<()> {
    let dist = project::next_dist();
    test_agent("agent/crash-points", NEXT, &dist)?;
    let object = dist.join("lib/viaduct/datapath.o");
    let mut bytes = fs::read(project::bpf_object()).context("cannot read the object")?;
    // Appended after all that the loader reads.
    bytes.extend_from_slice(NEXT.as_bytes());
    put(&object, &bytes, 0o644)
}

/// Builds agent and BPF object of the next ABI version, in which the layout of one map has changed.
/// The object has a target directory of its own, so that the other one is not replaced. The agent
/// has crash points, as above.
fn next_layout(tools: &Tools) -> Result<()> {
    let target = project::layout_bpf_target();
    build::bpf_object_with(tools, &target, Some(NEXT_LAYOUT))?;
    let dist = project::layout_dist();
    let features = format!("agent/crash-points,abi/{NEXT_LAYOUT}");
    test_agent(&features, LAYOUT, &dist)?;
    let object = dist.join("lib/viaduct/datapath.o");
    install(&project::bpf_object_in(&target), &object, 0o644)
}

/// Builds an unoptimised agent for upgrade tests into `dist`.
fn test_agent(features: &str, version: &str, dist: &Path) -> Result<()> {
    binaries::programs(&["viaductd"], features, &[("VIADUCT_VERSION", version)])?;
    let built = project::target().join("debug/viaductd");
    install(&built, &dist.join("bin/viaductd"), 0o755)
}

fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    put(to, &bytes, mode)
}

/// Fails if the plugin exceeds its size limit: it is executed for every ADD and DEL.
fn ensure_small(plugin: &Path) -> Result<()> {
    let bytes = fs::metadata(plugin)?.len();
    ensure!(
        bytes <= MOST_PLUGIN,
        "the plugin has {bytes} bytes, and {MOST_PLUGIN} is the most"
    );
    Ok(())
}

/// Creates a hard link, replacing an existing one.
fn link(file: &Path, name: &Path) -> Result<()> {
    let fresh = name.with_extension("new");
    if fresh.exists() {
        fs::remove_file(&fresh)?;
    }
    fs::hard_link(file, &fresh).with_context(|| format!("cannot make {}", fresh.display()))?;
    fs::rename(&fresh, name)?;
    // rename(2) does nothing if both are links to the same file, and leaves the draft.
    if fresh.exists() {
        fs::remove_file(&fresh)?;
    }
    Ok(())
}

/// Replaces a file by rename, so that a running program keeps its old contents.
fn put(to: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let folder = to.parent().context("every file lies in a folder")?;
    fs::create_dir_all(folder)?;
    // Two builds may run at once: each has its own draft.
    let fresh = to.with_extension(format!("new-{}", std::process::id()));
    fs::write(&fresh, bytes).with_context(|| format!("cannot write {}", fresh.display()))?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(mode))?;
    fs::rename(&fresh, to)?;
    Ok(())
}
