//! `vm`: the tests that need root, on other kernels, in virtual machines.
//!
//! A kernel is a series of Debian's, such as `6.1`, or the path of an image. The tests are those of
//! the host: the same binaries, and the same list. A test that a kernel cannot pass says which
//! feature is missing, and is counted apart.

pub(crate) mod guest;
mod install;
pub(crate) mod kernel;
mod ledger;
mod page;
pub(crate) mod pair;
mod reboot;
mod selection;
mod stage;
mod suite;
mod switch;

use std::num::NonZero;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;

use crate::progress::{Steps, Voice};
use crate::project;
use crate::setup::{self, Scope};
use guest::{Accelerator, Guest};
use kernel::Kernel;
use selection::Family;

/// Memory of a guest in MiB.
pub(crate) const MEMORY: u32 = 4096;

/// Limit of a guest that does nothing.
const TRIAL: Duration = Duration::from_secs(30);

/// Arguments of `vm`.
#[derive(clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub(crate) struct Args {
    /// Series of Debian's kernels, such as 6.1, or paths of images
    #[arg(required = true, value_name = "KERNEL")]
    kernels: Vec<String>,
    /// The guests to start
    #[arg(long, value_enum, default_value_t = Topology::One)]
    topology: Topology,
    /// Minutes after which a guest is killed
    #[arg(long, default_value_t = 60)]
    limit: u64,
    /// Guests that share the tests [default: one with KVM, two for each processor without]
    #[arg(long)]
    guests: Option<usize>,
    /// Test binaries to run, such as `nat_ports` or `nat_*` [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// Families of test binaries to run, beside those of `--only`
    #[arg(long, value_enum, value_delimiter = ',')]
    family: Vec<Family>,
    /// Test binaries for each boot of a guest [default: 3, those of a minute or more alone]
    #[arg(long, value_name = "NUMBER")]
    per_boot: Option<NonZero<usize>>,
    /// Tests that a guest runs at a time [default: 2 with KVM, 1 without]
    #[arg(long, value_name = "NUMBER")]
    threads: Option<NonZero<usize>>,
    /// Print the last results and run nothing, also while guests run
    #[arg(long)]
    results: bool,
    /// Write the last results of all test binaries on these kernels as docs/kernels.md
    #[arg(long, conflicts_with = "filter")]
    bless: bool,
    /// Only tests that failed or were not reached in the last run
    #[arg(long)]
    again: bool,
    /// Run the binaries of the last run, without building
    #[arg(long)]
    staged: bool,
    /// Passed on to the test binaries: a part of test names, `--nocapture`, …
    #[arg(last = true)]
    filter: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Topology {
    /// One guest, which runs the tests that need root
    One,
    /// Two nodes and a client on a switch, which measure Viaduct beside the reference plugins
    Pair,
    /// One guest with a fresh Debian of the release that has this kernel, 12 or 13: the packages
    /// are installed, upgraded under traffic and purged
    Install,
    /// One guest with a disk, which reboots: the agent starts with the records of the boot before
    Reboot,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match args.topology {
        Topology::One => suite::run(args),
        Topology::Reboot => reboot::run(args),
        Topology::Install => install::run(args),
        Topology::Pair => args.kernels.iter().try_for_each(|kernel| {
            let words = ["--quick", "pair"].map(str::to_owned);
            pair::measure(kernel, Duration::from_mins(args.limit), &words)
        }),
    }
}

/// Returns the kernels, and how guests are executed on this machine.
pub(crate) fn prepare(words: &[String]) -> Result<(Vec<Kernel>, Accelerator)> {
    let steps = Steps::new(Voice::Full);
    setup::ensure(Scope::Everything)?;
    setup::ensure_guests(&steps)?;
    let kernels: Vec<Kernel> = words
        .iter()
        .map(|word| Kernel::get(word, &steps))
        .collect::<Result<_>>()?;
    let accelerator = accelerator(&kernels[0])?;
    steps.note(&format!("guests run by {}", accelerator.name()));
    Ok((kernels, accelerator))
}

/// Returns KVM if a trial guest ends under it: the device alone proves nothing.
pub(crate) fn accelerator(kernel: &Kernel) -> Result<Accelerator> {
    if !std::path::Path::new("/dev/kvm").exists() {
        return Ok(Accelerator::Tcg);
    }
    let remembered = project::target().join("vm/accelerator");
    if let Ok(known) = std::fs::read_to_string(&remembered) {
        return Ok(if known == "kvm" {
            Accelerator::Kvm
        } else {
            Accelerator::Tcg
        });
    }
    let trial = Guest {
        memory: 512,
        ..Guest::alone(kernel, Accelerator::Kvm, TRIAL)
    };
    let works = trial.run("true", |_| {}).is_ok_and(|status| status == 0);
    std::fs::write(remembered, if works { "kvm" } else { "tcg" })?;
    Ok(if works {
        Accelerator::Kvm
    } else {
        Accelerator::Tcg
    })
}
