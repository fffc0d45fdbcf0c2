//! `verify`: loads the BPF object and compares the verifier's figures with the committed table.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::progress::{Steps, Voice};
use crate::setup::{self, Scope};
use crate::vm::guest::Guest;
use crate::vm::kernel::Kernel;
use crate::{build, command, privilege, project, vm};

/// The committed table.
const TABLE: &str = "ebpf-programs/datapath/verifier.txt";

/// Limit of a guest that loads the programs.
const LIMIT: Duration = Duration::from_mins(10);

/// Arguments of `verify`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write the figures of this run as the new table
    #[arg(long)]
    bless: bool,
    /// Further kernels to load the programs on, as for `vm`: 6.1,6.12
    #[arg(long, value_delimiter = ',', value_name = "KERNEL")]
    kernels: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    build::bpf_object(&setup::ensure(Scope::Build)?)?;
    let build = ["build", "-p", "e2e", "--bin", "verify"];
    command::run(Command::new("cargo").args(build))?;
    let given = in_guests(&args.kernels)?;
    let mut verify = privilege::as_root(program())?;
    verify
        .arg(project::bpf_object())
        .arg(project::root().join(TABLE));
    for file in given {
        verify.arg("--given").arg(file);
    }
    if args.bless {
        verify.arg("--bless");
    }
    command::run(&mut verify)
}

fn program() -> PathBuf {
    project::target().join("debug/verify")
}

/// Runs the verifiers of other kernels, and returns a file with the figures of each.
fn in_guests(kernels: &[String]) -> Result<Vec<PathBuf>> {
    let Some(first) = kernels.first() else {
        return Ok(Vec::new());
    };
    let steps = Steps::new(Voice::Full);
    setup::ensure_guests(&steps)?;
    let accelerator = vm::accelerator(&Kernel::get(first, &steps)?)?;
    let script = format!(
        "'{}' '{}'",
        program().display(),
        project::bpf_object().display()
    );
    let ask = |word: &String| {
        let kernel = Kernel::get(word, &steps)?;
        let guest = Guest::alone(&kernel, accelerator, LIMIT);
        steps.note(&format!("kernel {word} by {}", accelerator.name()));
        let mut printed = String::new();
        let status = guest.run(&script, |line| {
            printed.push_str(line);
            printed.push('\n');
        })?;
        ensure!(
            status == 0,
            "kernel {word} refuses the programs:\n{printed}"
        );
        let name = kernel.image.file_name().unwrap_or_default().to_owned();
        let file = project::target()
            .join("vm")
            .join(name)
            .with_extension("verified");
        fs::write(&file, printed)?;
        Ok(file)
    };
    kernels.iter().map(ask).collect()
}
