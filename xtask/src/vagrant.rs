//! `vagrant-check`: checks that `vagrant/` works as its README says, without creating its machines.
//!
//! Vagrant validates the file, where it is installed; no provider is needed. The provisioning
//! script runs in a guest that has all packages already, so that it must find nothing to install
//! and call `cargo xtask`.

use std::env;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::vm::guest::Guest;
use crate::{command, privilege, project, vm};

/// Limit of the provisioning script where there is nothing to install.
const LIMIT: Duration = Duration::from_mins(20);

/// Arguments of `vagrant-check`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Kernel of the guest, as for `vm`
    #[arg(long, default_value = "6.1", value_name = "KERNEL")]
    kernel: String,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    validate()?;
    let (kernels, accelerator) = vm::prepare(std::slice::from_ref(&args.kernel))?;
    let guest = Guest::alone(&kernels[0], accelerator, LIMIT);
    let status = guest.run(&provisioning(), |line| println!("{line}"))?;
    ensure!(status == 0, "the provisioning script ended with {status}");
    println!("vagrant: the provisioning script ended well");
    Ok(())
}

fn validate() -> Result<()> {
    if privilege::find("vagrant").is_none() {
        println!("vagrant: is not installed, so Vagrantfile is not read (Debian has a package)");
        return Ok(());
    }
    let place = project::target().join("vagrant");
    let mut validate = Command::new("vagrant");
    validate
        .args(["validate", "--ignore-provider"])
        .current_dir(project::root().join("vagrant"))
        .env("VAGRANT_HOME", &place)
        .env("VAGRANT_DOTFILE_PATH", place.join("machines"));
    command::run(&mut validate)
}

/// Script that runs the provisioning with this user's compilers.
fn provisioning() -> String {
    let variable = |name: &str| {
        let value = env::var(name).unwrap_or_default();
        format!("export {name}='{value}'\n")
    };
    let root = project::root().display();
    let variables = ["HOME", "PATH"].map(variable).concat();
    format!("{variables}sh '{root}/vagrant/provision.sh' '{root}'")
}
