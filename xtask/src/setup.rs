//! `setup`: installs what building, testing and the demo need, where it is missing.
//!
//! Two parts. Compilers: for BPF code, a Rust compiler with the sources of `core` and a linker of
//! the same LLVM; for the programs, the musl target. A stamp saves what was found or installed.
//! Programs that tests and the demo call are looked up at each run.

mod apt;
mod archive;
mod cross;
mod deny;
mod distribution;
mod kernels;
mod kubernetes;
mod linker;
mod musl;
mod netavark;
mod newest;
mod programs;
mod stamp;
mod toolchain;

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::arch::Arch;
use crate::privilege;
use crate::progress::{Steps, Voice};
use apt::Apt;
pub(crate) use archive::{Suite, numbers};
pub(crate) use deny::ensure_deny;
pub(crate) use stamp::Tools;

/// Arguments of `setup`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print nothing where nothing is missing
    #[arg(long)]
    quiet_if_done: bool,
    /// Also build these programs of Kubernetes from Debian's source package: kube-proxy, kubelet,
    /// kube-apiserver, kube-controller-manager, kube-scheduler
    #[arg(long, value_delimiter = ',', value_name = "PROGRAM")]
    kubernetes: Vec<String>,
}

/// The parts that are needed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Compilers and linkers.
    Build,
    /// Also the programs that tests and the demo call.
    Everything,
    /// Also the container runtimes, firewalls and reference plugins that end-to-end tests drive.
    Runtimes,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let voice = if args.quiet_if_done {
        Voice::QuietIfDone
    } else {
        Voice::Full
    };
    install(Scope::Everything, voice)?;
    let steps = Steps::new(voice);
    deny::ensure(&steps)?;
    kubernetes::ensure(&steps, &mut Apt::new(&steps), &args.kubernetes)
}

/// Installs what is missing for another verb; prints nothing where nothing is.
pub(crate) fn ensure(scope: Scope) -> Result<Tools> {
    install(scope, Voice::QuietIfDone)
}

/// Gets the software that `compatibility` runs in addition to the packages of [`Scope::Runtimes`].
pub(crate) fn ensure_company() -> Result<()> {
    let steps = Steps::new(Voice::QuietIfDone);
    kubernetes::ensure(&steps, &mut Apt::new(&steps), &["kube-proxy".to_owned()])
}

/// Gets the programs of a Kubernetes cluster, the runtimes of its nodes, and what makes its
/// certificates.
pub(crate) fn ensure_cluster() -> Result<()> {
    let steps = Steps::new(Voice::QuietIfDone);
    let mut apt = Apt::new(&steps);
    programs::ensure_runtimes(&mut apt)?;
    if privilege::find("openssl").is_none() {
        apt.install("make certificates", &["openssl"])?;
    }
    newest::ensure_etcd(&steps)?;
    kubernetes::ensure(&steps, &mut apt, &kubernetes::CLUSTER.map(str::to_owned))
}

/// Installs the C++ compiler of libFuzzer, whose sources its crate has.
pub(crate) fn ensure_fuzzing() -> Result<()> {
    let steps = Steps::new(Voice::QuietIfDone);
    if privilege::find("c++").is_some() {
        return Ok(());
    }
    Apt::new(&steps).install("compile libFuzzer", &["g++"])
}

/// Installs what compiles programs for another architecture.
pub(crate) fn ensure_cross(arch: Arch) -> Result<()> {
    if arch.is_host() {
        return Ok(());
    }
    let steps = Steps::new(Voice::QuietIfDone);
    cross::ensure(&steps, &mut Apt::new(&steps), arch)
}

/// Installs the tools that write packages.
pub(crate) fn ensure_packaging() -> Result<()> {
    let steps = Steps::new(Voice::QuietIfDone);
    programs::ensure_packaging(&mut Apt::new(&steps))
}

/// Installs what guests of `vm` need in addition.
pub(crate) fn ensure_guests(steps: &Steps) -> Result<()> {
    programs::ensure_guests(&mut Apt::new(steps))
}

/// Unpacks a kernel that the machine's own suite does not have, and returns its folder.
pub(crate) fn kernel(steps: &Steps, series: &str) -> Result<Option<PathBuf>> {
    kernels::unpack(steps, series)
}

/// Installs a release of a distribution, with these packages in addition, into a folder for guests.
pub(crate) fn install_distribution(
    steps: &Steps,
    release: (Suite, &[&str]),
    folder: &Path,
) -> Result<()> {
    distribution::install(steps, &mut Apt::new(steps), release, folder)
}

fn install(scope: Scope, voice: Voice) -> Result<Tools> {
    let steps = Steps::new(voice);
    let mut apt = Apt::new(&steps);
    let tools = match Tools::remembered() {
        Some(tools) => tools,
        None => compilers(&steps, &mut apt)?,
    };
    steps.already(&format!("BPF code by {}", tools.toolchain));
    steps.already(&format!(
        "linked by bpf-linker {}: {}",
        linker::VERSION,
        tools.linker.display()
    ));
    if let Some(target) = &tools.static_target {
        steps.already(&format!("the programs for {target}, linked statically"));
    }
    if scope != Scope::Build {
        programs::ensure(&steps, &mut apt)?;
    }
    if scope == Scope::Runtimes {
        programs::ensure_runtimes(&mut apt)?;
        programs::ensure_company(&steps, &mut apt)?;
        newest::ensure_reference(&steps)?;
        newest::ensure_docker(&steps)?;
        newest::ensure_prometheus(&steps)?;
        newest::ensure_podman(&steps)?;
        netavark::ensure(&steps, &mut apt)?;
    }
    Ok(tools)
}

fn compilers(steps: &Steps, apt: &mut Apt<'_>) -> Result<Tools> {
    let toolchain = toolchain::ensure(steps, apt)?;
    let linker = linker::ensure(steps, apt)?;
    let static_target = musl::ensure(steps)?;
    let tools = Tools {
        toolchain,
        linker,
        static_target,
    };
    tools.remember()?;
    Ok(tools)
}
