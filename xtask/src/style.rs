//! Runs rustfmt, clippy and rustdoc for the verbs that check style.

use std::process::Command;

use anyhow::Result;

use crate::command;

/// Fails if rustfmt would change a file, and lists those files.
pub(crate) fn formatted() -> Result<()> {
    command::run(Command::new("cargo").args(["fmt", "--all", "--", "--check", "-l"]))
}

/// Runs clippy; warnings are errors.
pub(crate) fn linted() -> Result<()> {
    let arguments = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--",
        "-D",
        "warnings",
    ];
    command::run(Command::new("cargo").args(arguments))
}

/// Builds the documentation; a broken link is an error.
pub(crate) fn documented() -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo
        .args([
            "doc",
            "--workspace",
            "--no-deps",
            "--document-private-items",
        ])
        .env("RUSTDOCFLAGS", "-D warnings");
    command::run(&mut cargo)
}
