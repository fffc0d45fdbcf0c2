//! A guest that reboots: the agent's records are on a disk, and the second boot starts with those
//! of the first.
//!
//! The guest's script (`assets/guest-reboot.sh`) makes the checks. This module checks that two
//! boots ran it, with different boot IDs.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::guest::{self, Guest};
use super::{Args, prepare};
use crate::{command, dist, project};

const SCRIPT: &str = include_str!("../../assets/guest-reboot.sh");

/// Prefix of the lines that report a boot, before its number and the kernel's boot ID.
const BOOT: &str = "boot ";

/// Size of the disk in bytes.
const DISK: u64 = 64 << 20;

/// Runs the guest with each kernel.
pub(super) fn run(args: &Args) -> Result<()> {
    let (kernels, accelerator) = prepare(&args.kernels)?;
    if !args.staged {
        dist::run(dist::Args::default())?;
    }
    for kernel in &kernels {
        let folder = guest::folder()?;
        let disk = folder.join("disk");
        make_disk(&disk)?;
        let guest = Guest {
            disk: Some(disk),
            ..Guest::alone(kernel, accelerator, Duration::from_mins(args.limit))
        };
        let variables = format!(
            "export VIADUCT_DIST='{}' VIADUCT_TEST_PATIENCE={}",
            project::dist().display(),
            accelerator.patience()
        );
        let mut boots = Vec::new();
        let status = guest.run(&format!("{variables}\n{SCRIPT}"), |line| {
            println!("{:>6} │ {line}", kernel.name);
            boots.extend(line.strip_prefix(BOOT).map(str::to_owned));
        })?;
        ensure!(status == 0, "kernel {}: the script failed", kernel.name);
        ensure_rebooted(&boots).with_context(|| format!("kernel {}", kernel.name))?;
        fs::remove_dir_all(&folder)?;
        eprintln!(
            "kernel {}: the reboot left nothing of the boot before",
            kernel.name
        );
    }
    Ok(())
}

/// Creates an empty disk with an ext4 file system.
fn make_disk(disk: &Path) -> Result<()> {
    File::create(disk)?.set_len(DISK)?;
    let mut format = Command::new("mkfs.ext4");
    format.args(["-q", "-F"]).arg(disk);
    format.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    command::output(&mut format).map(drop)
}

/// Fails unless there were two boots with different IDs. `boots` has number and ID of each.
fn ensure_rebooted(boots: &[String]) -> Result<()> {
    let [first, second] = boots else {
        anyhow::bail!("not two boots: {boots:?}");
    };
    let first = first.strip_prefix("1: ").context("no first boot")?;
    let second = second.strip_prefix("2: ").context("no second boot")?;
    ensure!(first != second, "both boots have the ID {first}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reboot_has_two_boots_with_different_ids() {
        let boots = |lines: &[&str]| lines.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(ensure_rebooted(&boots(&["1: a", "2: b"])).is_ok());
        for lines in [
            &["1: a"][..],
            &["1: a", "2: a"],
            &["1: a", "1: b"],
            &["1: a", "2: b", "2: c"],
        ] {
            assert!(ensure_rebooted(&boots(lines)).is_err(), "{lines:?}");
        }
    }
}
