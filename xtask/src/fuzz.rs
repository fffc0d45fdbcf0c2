//! `fuzz`: runs the fuzz targets of `tests/fuzz`, by libFuzzer with the address sanitizer.
//!
//! The stable compiler has both, behind `RUSTC_BOOTSTRAP`, so neither a nightly nor cargo-fuzz is
//! needed. Inputs that reach new code are kept below `target/fuzz/corpus`; the committed corpus is
//! read only.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::{command, project, setup};

/// Seconds after which one input counts as a hang.
const HANG_SECONDS: u64 = 20;

/// What cargo-fuzz sets: coverage for libFuzzer, and the sanitizer.
const FLAGS: [&str; 7] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Zsanitizer=address",
    "-Ccodegen-units=1",
];

/// Arguments of `fuzz`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Minutes for each target
    #[arg(long, default_value_t = 1)]
    minutes: u64,
    /// Target to run, a file of `tests/fuzz/fuzz_targets` without its extension [default: all]
    target: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut names = targets()?;
    if let Some(only) = &args.target {
        ensure!(
            names.contains(only),
            "there is no target {only}, only {}",
            names.join(", ")
        );
        names.retain(|name| name == only);
    }
    build()?;
    let mut failed = 0;
    for name in &names {
        if let Err(error) = fuzz(name, args.minutes * 60) {
            eprintln!("{name}: {error:#}");
            failed += 1;
        }
    }
    ensure!(failed == 0, "{failed} of {} targets failed", names.len());
    Ok(())
}

/// Returns the names of all targets, in order.
fn targets() -> Result<Vec<String>> {
    let mut names: Vec<String> = fs::read_dir(sources().join("fuzz_targets"))?
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let is_source = path.extension().is_some_and(|it| it == "rs");
            Some(path.file_stem()?.to_str()?.to_owned()).filter(|_| is_source)
        })
        .collect();
    names.sort();
    Ok(names)
}

fn build() -> Result<()> {
    setup::ensure_fuzzing()?;
    lock()?;
    let mut cargo = Command::new("cargo");
    cargo
        .args(["build", "--release", "--manifest-path"])
        .arg(sources().join("Cargo.toml"))
        // Build scripts are compiled for the host, without the flags.
        .args(["--target", &target(), "--target-dir"])
        .arg(folder())
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", format!("--cfg fuzzing {}", FLAGS.join(" ")));
    command::run(&mut cargo)
}

/// Begins the lock file of the targets as a copy of the workspace's, so that the same versions are
/// tested. Cargo adds libFuzzer to it.
fn lock() -> Result<()> {
    let ours = project::root().join("Cargo.lock");
    let copy = sources().join("Cargo.lock");
    let changed = |path: &Path| path.metadata().and_then(|it| it.modified()).ok();
    if changed(&copy) < changed(&ours) {
        fs::copy(&ours, &copy).context("cannot copy Cargo.lock")?;
    }
    Ok(())
}

/// Runs one target. Inputs that it fails with are stored below `target/fuzz/artifacts`.
fn fuzz(name: &str, seconds: u64) -> Result<()> {
    let program = folder().join(target()).join("release").join(name);
    let found = folder().join("corpus").join(name);
    let artifacts = folder().join("artifacts").join(name);
    let seeds = sources().join("corpus").join(name);
    for each in [&found, &artifacts] {
        fs::create_dir_all(each)?;
    }
    ensure!(has_files(&seeds), "{} has no files", project::short(&seeds));
    let mut run = Command::new(program);
    run.arg(format!("-max_total_time={seconds}"))
        .arg(format!("-timeout={HANG_SECONDS}"))
        .args(["-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0"])
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        // The first folder is written to.
        .args([&found, &seeds])
        // Leaks are reported by ptrace, which a container may not permit; they are no fault here.
        .env("ASAN_OPTIONS", "detect_leaks=0:allocator_may_return_null=1");
    command::run(&mut run).with_context(|| {
        format!(
            "the input is in {}: mend the fault, and keep it as tests/fuzz/corpus/{name}/crash-…",
            project::short(&artifacts)
        )
    })
}

fn has_files(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut files| files.next().is_some())
}

fn sources() -> PathBuf {
    project::root().join("tests/fuzz")
}

fn folder() -> PathBuf {
    project::root().join("target/fuzz")
}

fn target() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fuzz_target_is_a_binary_with_a_corpus_and_documented() {
        let manifest = fs::read_to_string(sources().join("Cargo.toml")).unwrap();
        let readme = fs::read_to_string(sources().join("README.md")).unwrap();
        let names = targets().unwrap();
        assert!(names.len() >= 6, "{names:?}");
        for name in names {
            assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
            assert!(readme.contains(&format!("| `{name}` |")), "{name}");
            assert!(has_files(&sources().join("corpus").join(&name)), "{name}");
        }
    }
}
