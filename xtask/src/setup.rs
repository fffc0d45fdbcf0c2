//! `setup`: what building, testing and the demo need, installed where it is missing.
//!
//! Two halves. Compilers: for BPF code, a Rust compiler with the sources of `core` and a linker of the same
//! LLVM, and for the plugin a library that links statically; a stamp remembers what was found or installed. The programs that tests and the demo
//! call are looked up each time, which costs nothing.

mod apt;
mod linker;
mod musl;
mod programs;
mod stamp;
mod toolchain;

use anyhow::Result;

use crate::progress::{Steps, Voice};
use apt::Apt;
pub(crate) use stamp::Tools;

/// Arguments of `setup`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Say nothing where nothing is missing
    #[arg(long)]
    quiet_if_done: bool,
}

/// How much is needed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Compilers and linkers.
    Build,
    /// And the programs that tests and the demo call.
    Everything,
    /// And the container runtimes that end-to-end tests drive.
    Runtimes,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let voice = if args.quiet_if_done {
        Voice::QuietIfDone
    } else {
        Voice::Full
    };
    install(Scope::Everything, voice).map(drop)
}

/// For the other verbs: silent where nothing is missing.
pub(crate) fn ensure(scope: Scope) -> Result<Tools> {
    install(scope, Voice::QuietIfDone)
}

/// What guests of `vm` need beside that: only who boots one has to have it.
pub(crate) fn ensure_guests(steps: &Steps) -> Result<()> {
    programs::ensure_guests(&mut Apt::new(steps))
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
    if let Some(target) = &tools.plugin_target {
        steps.already(&format!("the plugin for {target}, linked statically"));
    }
    if scope != Scope::Build {
        programs::ensure(&steps, &mut apt)?;
    }
    if scope == Scope::Runtimes {
        programs::ensure_runtimes(&mut apt)?;
    }
    Ok(tools)
}

fn compilers(steps: &Steps, apt: &mut Apt<'_>) -> Result<Tools> {
    let toolchain = toolchain::ensure(steps, apt)?;
    let linker = linker::ensure(steps, apt)?;
    let plugin_target = musl::ensure(steps)?;
    let tools = Tools {
        toolchain,
        linker,
        plugin_target,
    };
    tools.remember()?;
    Ok(tools)
}
