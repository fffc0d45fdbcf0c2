//! Debian packages: installed when missing, or named in full where they cannot be installed.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::progress::Steps;
use crate::{command, privilege};

const UPDATE_LIMIT: Duration = Duration::from_mins(3);
const INSTALL_LIMIT: Duration = Duration::from_mins(15);

/// The package manager; its index is refreshed once, when first needed.
pub(super) struct Apt<'a> {
    steps: &'a Steps,
    refreshed: bool,
}

impl<'a> Apt<'a> {
    pub(super) fn new(steps: &'a Steps) -> Self {
        Self {
            steps,
            refreshed: false,
        }
    }

    /// Installs those of `packages` that are missing; `purpose` completes "needed to …".
    pub(super) fn install(&mut self, purpose: &str, packages: &[&str]) -> Result<()> {
        let missing: Vec<&str> = packages
            .iter()
            .copied()
            .filter(|name| !is_installed(name))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let list = missing.join(" ");
        if privilege::find("apt-get").is_none() {
            bail!("please install what is needed to {purpose}; Debian calls it: {list}");
        }
        let Ok(mut install) = apt_get() else {
            bail!(
                "needed to {purpose}; as root, run: apt-get install --no-install-recommends {list}"
            );
        };
        self.refresh()?;
        install
            .args(["install", "-y", "--no-install-recommends"])
            .args(&missing);
        self.steps
            .run(&format!("install {list}"), &mut install, INSTALL_LIMIT)
    }

    /// An unreachable repository is not an error: another one may have the package.
    fn refresh(&mut self) -> Result<()> {
        if !self.refreshed {
            self.refreshed = true;
            let mut update = apt_get()?;
            self.steps.works(
                "refresh the package index",
                update.arg("update"),
                UPDATE_LIMIT,
            )?;
        }
        Ok(())
    }
}

fn apt_get() -> Result<Command> {
    let mut command = privilege::as_root("env")?;
    command.args([
        "DEBIAN_FRONTEND=noninteractive",
        "apt-get",
        "-o",
        "DPkg::Lock::Timeout=120",
    ]);
    Ok(command)
}

fn is_installed(package: &str) -> bool {
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat=${db:Status-Status}", package]);
    command::output(&mut query).is_ok_and(|status| status == "installed")
}
