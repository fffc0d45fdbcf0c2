//! A second build in a copy of the checkout, compared with the first: nothing but the sources, the
//! compilers and the commit may enter a package.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::{SUMS, fresh, same_sums};
use crate::{command, project, source};

/// Builds the packages in a copy, and compares their checksums with those in `folder`.
pub(super) fn compare(folder: &Path) -> Result<()> {
    let copy = fresh(&project::root().join("target/reproduce"))?;
    let listed = command::output(
        Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others"])
            .arg("--exclude-standard")
            .current_dir(project::root()),
    )?;
    let exists = |name: &&str| project::root().join(name).is_file();
    for name in listed.split('\0').filter(exists) {
        let to = copy.join(name);
        fs::create_dir_all(to.parent().context("a folder")?)?;
        fs::copy(project::root().join(name), to)?;
    }
    // The compilers are not part of the sources.
    fs::create_dir(copy.join("target"))?;
    symlink(project::tools(), copy.join("target/tools"))?;
    let mut again = Command::new("cargo");
    again.args(["xtask", "package"]).current_dir(&copy);
    again.env_remove("CARGO_TARGET_DIR");
    again.env(source::COMMIT, source::commit().unwrap_or_default());
    again.env(source::EPOCH, source::epoch()?.to_string());
    command::run(&mut again)?;
    let theirs = copy.join("target/package");
    same_sums(folder, &theirs)?;
    let count = fs::read_to_string(folder.join(SUMS))?.lines().count();
    println!("reproducible: {count} files are equal in two builds of the same sources");
    fs::remove_dir_all(&copy)?;
    Ok(())
}
