//! Runs other programs. Each command line is printed first, in a form that can be pasted into a
//! shell.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::project;

/// Prints and runs `command` with inherited input and output. Fails if it fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    say(command);
    let status = command
        .status()
        .with_context(|| format!("cannot start {}", shown(command)))?;
    if !status.success() {
        bail!("{} failed: {status}", name(command));
    }
    Ok(())
}

/// Runs `command` without printing it, and returns its output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", shown(command)))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{} failed: {}\n{}",
            shown(command),
            output.status,
            complaint.trim_end()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Prints and runs `command` with inherited error output, and returns its standard output.
pub(crate) fn shown_output(command: &mut Command) -> Result<String> {
    say(command);
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {}", shown(command)))?;
    if !output.status.success() {
        bail!("{} failed: {}", name(command), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Prints and runs `command`. Each line of its output is printed as it comes, and passed to `each`.
pub(crate) fn follow(command: &mut Command, mut each: impl FnMut(&str)) -> Result<ExitStatus> {
    say(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", shown(command)))?;
    let stdout = child.stdout.take().context("standard output is piped")?;
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        each(&line);
    }
    Ok(child.wait()?)
}

/// Returns the command line with the variables that it sets, quoted for a shell.
pub(crate) fn shown(command: &Command) -> String {
    let root = format!("{}/", project::root().display());
    let short = |word: &OsStr| quoted(&word.to_string_lossy().replace(&root, ""));
    let variables = command.get_envs().filter_map(|(name, value)| {
        let value = value.filter(|_| name != "PATH")?;
        Some(format!("{}={}", name.display(), short(value)))
    });
    let program = short(command.get_program());
    let arguments = command.get_args().map(short);
    variables
        .chain([program])
        .chain(arguments)
        .collect::<Vec<_>>()
        .join(" ")
}

fn say(command: &Command) {
    eprintln!("$ {}", shown(command));
}

/// Returns program and first argument, for error messages.
fn name(command: &Command) -> String {
    let program = command.get_program().display();
    let verb = command.get_args().next().unwrap_or_default().display();
    format!("{program} {verb}").trim_end().to_owned()
}

/// Returns `word` as a shell takes it for one word, quoted if necessary.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%*".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_a_shell_would_take_it() {
        let mut command = Command::new("cargo");
        command.args(["test", "--", "two words"]).env("CI", "true");
        assert_eq!(shown(&command), "CI=true cargo test -- 'two words'");
    }

    #[test]
    fn paths_are_shown_relative_to_the_checkout() {
        let mut command = Command::new(project::dist().join("bin/viaductd"));
        command.arg("--help");
        assert_eq!(shown(&command), "target/dist/bin/viaductd --help");
    }
}
