//! Runs single commands as root, through sudo where needed. Compilers always run as the caller.

use std::ffi::OsStr;
use std::io::IsTerminal as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// Returns a command that runs `program` as root: directly, or through sudo.
pub(crate) fn as_root(program: impl AsRef<OsStr>) -> Result<Command> {
    let Some(sudo) = prefix()? else {
        return Ok(Command::new(program));
    };
    let mut command = Command::new(sudo[0]);
    command.args(&sudo[1..]).arg(program);
    Ok(command)
}

/// Finds a program on PATH or in the system's sbin folders, which not every user's PATH has.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0)
}

fn prefix() -> Result<Option<Vec<&'static str>>> {
    if is_root() {
        return Ok(None);
    }
    if find("sudo").is_none() {
        bail!("this needs root, and there is no sudo: run the same command as root");
    }
    let ask = std::io::stdin().is_terminal();
    Ok(Some(if ask {
        vec!["sudo", "-E"]
    } else {
        vec!["sudo", "-n", "-E"]
    }))
}
