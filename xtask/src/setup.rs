//! `setup`: what building, testing and the demo need, installed where it is missing.
//!
//! Two halves. The BPF toolchain is a Rust compiler with the sources of `core` and a linker of the same
//! LLVM; it takes minutes to install, so a stamp remembers it. The programs that tests and the demo
//! call are looked up each time, which costs nothing.

mod apt;
mod linker;
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

fn install(scope: Scope, voice: Voice) -> Result<Tools> {
    let steps = Steps::new(voice);
    let mut apt = Apt::new(&steps);
    let tools = match Tools::remembered() {
        Some(tools) => tools,
        None => bpf_tools(&steps, &mut apt)?,
    };
    steps.already(&format!("BPF code by {}", tools.toolchain));
    steps.already(&format!(
        "linked by bpf-linker {}: {}",
        linker::VERSION,
        tools.linker.display()
    ));
    if scope == Scope::Everything {
        programs::ensure(&steps, &mut apt)?;
    }
    Ok(tools)
}

fn bpf_tools(steps: &Steps, apt: &mut Apt<'_>) -> Result<Tools> {
    let toolchain = toolchain::ensure(steps, apt)?;
    let linker = linker::ensure(steps, apt)?;
    let tools = Tools { toolchain, linker };
    tools.remember()?;
    Ok(tools)
}
