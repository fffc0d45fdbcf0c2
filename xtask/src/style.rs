//! What `fmt`, `clippy` and `rustdoc` say; shared by the verbs that ask them.

use std::process::Command;

use anyhow::Result;

use crate::command;

/// Formatting is rustfmt's business alone; the files that it would change are listed.
pub(crate) fn formatted() -> Result<()> {
    command::run(Command::new("cargo").args(["fmt", "--all", "--", "--check", "-l"]))
}

/// No lint stays unanswered.
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

/// Every link in the documentation leads somewhere.
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
