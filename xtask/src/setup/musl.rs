//! The musl target, by which the plugin is linked statically: it runs on hosts with any C library,
//! or none. It is executed for every ADD and DEL: without a dynamic linker it starts in a third of
//! the time.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::progress::Steps;
use crate::{command, privilege, project};

/// Limit of the download, as for the sources of `core`.
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(20);

/// Returns the target for which the plugin is built, or `None` if its standard library is not
/// available.
pub(super) fn ensure(steps: &Steps) -> Result<Option<String>> {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    if is_installed(&target) {
        return Ok(Some(target));
    }
    if privilege::find("rustup").is_some() {
        let mut add = Command::new("rustup");
        add.args(["target", "add", &target]);
        if steps.works(&format!("download {target}"), &mut add, DOWNLOAD_LIMIT)? {
            return Ok(Some(target));
        }
    }
    let stamp = project::short(&super::stamp::path());
    steps.note(&format!(
        "the plugin will be linked dynamically; remove {stamp} to try again"
    ));
    Ok(None)
}

pub(super) fn is_installed(target: &str) -> bool {
    let sysroot = command::output(Command::new("rustc").args(["--print", "sysroot"]));
    sysroot.is_ok_and(|root| {
        Path::new(root.trim())
            .join("lib/rustlib")
            .join(target)
            .join("lib")
            .exists()
    })
}
