//! What identifies the sources of a build: commit and time. Builds of equal sources are equal, so
//! nothing else of the checkout or the machine enters one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::UNIX_EPOCH;

use anyhow::{Context as _, Result};

use crate::{command, project};

/// Environment variable with the commit, for sources without a repository. The programs read it at
/// build time.
pub(crate) const COMMIT: &str = "VIADUCT_COMMIT";

/// Environment variable with the time of the sources, in seconds since 1970
/// (<https://reproducible-builds.org/specs/source-date-epoch/>).
pub(crate) const EPOCH: &str = "SOURCE_DATE_EPOCH";

/// Directory that stands for the sources of dependencies in messages of a build.
const DEPENDENCIES: &str = "/cargo";

/// Returns the commit of the checkout with 12 digits, and with `-dirty` if tracked files differ
/// from it: [`COMMIT`] if it is set, else git's. `None` where the sources are in no repository.
pub(crate) fn commit() -> Option<String> {
    if let Some(given) = given(COMMIT) {
        return Some(given);
    }
    // Sources that were unpacked inside of another repository have none of their own.
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != project::root().canonicalize().ok()? {
        return None;
    }
    let describe = ["describe", "--always", "--dirty", "--abbrev=12"];
    git(&[&describe[..], &["--exclude=*"]].concat())
}

/// Returns the time of the sources in seconds since 1970: [`EPOCH`] if it is set, else that of the
/// commit, else that at which the change log was written.
pub(crate) fn epoch() -> Result<u64> {
    let time = match given(EPOCH) {
        Some(given) => Some(given),
        None if given(COMMIT).is_none() && commit().is_some() => {
            git(&["log", "-1", "--format=%ct"])
        }
        None => None,
    };
    if let Some(time) = time {
        let parsed = time.parse();
        return parsed.with_context(|| format!("{EPOCH}: {time:?} is no number of seconds"));
    }
    let written = project::root()
        .join("CHANGELOG.md")
        .metadata()?
        .modified()?;
    Ok(written.duration_since(UNIX_EPOCH)?.as_secs())
}

/// Returns the compiler flags that replace the paths of this machine in the programs.
pub(crate) fn path_flags() -> Vec<String> {
    let mut paths = vec![(project::root().to_owned(), ".")];
    let target = project::target();
    if !target.starts_with(project::root()) {
        paths.push((target, "./target"));
    }
    let registries = cargo_home().join("registry/src");
    let entries = std::fs::read_dir(registries).into_iter().flatten();
    paths.extend(entries.flatten().map(|it| (it.path(), DEPENDENCIES)));
    paths.sort();
    let flag = |(from, to): &(PathBuf, _)| format!("--remap-path-prefix={}={to}", from.display());
    paths.iter().map(flag).collect()
}

/// Returns compiler flags for a target as a value of `cargo --config`.
pub(crate) fn flags_in_config(target: &str, flags: &[String]) -> String {
    // A string of TOML has the same escapes.
    let flags: Vec<String> = flags.iter().map(|flag| format!("{flag:?}")).collect();
    format!("target.{target}.rustflags=[{}]", flags.join(", "))
}

fn cargo_home() -> PathBuf {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    std::env::var_os("CARGO_HOME")
        .map_or_else(|| home.unwrap_or_default().join(".cargo"), PathBuf::from)
}

fn given(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn git(words: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    git.args(words).current_dir(project::root());
    let output = command::output(&mut git).ok()?;
    Some(output.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_replace_the_paths_of_the_checkout_and_of_dependencies() {
        let flags = path_flags();
        let root = project::root().display();
        assert!(
            flags.contains(&format!("--remap-path-prefix={root}=.")),
            "{flags:?}"
        );
        let dependencies = |it: &&String| it.ends_with("=/cargo");
        assert!(flags.iter().any(|it| dependencies(&it)), "{flags:?}");
    }

    #[test]
    fn the_time_of_the_sources_is_after_their_first_commit() {
        assert!(epoch().unwrap() > 1_700_000_000);
    }
}
