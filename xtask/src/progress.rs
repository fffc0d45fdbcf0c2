//! Progress of long steps: a spinner on a terminal, plain lines elsewhere.

use std::fs::File;
use std::io::{IsTerminal as _, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};

use crate::{command, project};

const LOOK_EVERY: Duration = Duration::from_millis(100);
const SPEAK_EVERY: Duration = Duration::from_secs(30);
/// Lines of a failed step's output that are shown.
const TAIL: u64 = 6 * 1024;

/// Whether steps without work are printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Voice {
    /// Print all steps.
    Full,
    /// Print only steps that have work.
    QuietIfDone,
}

/// The steps of one verb.
pub(crate) struct Steps {
    voice: Voice,
    terminal: bool,
}

impl Steps {
    pub(crate) fn new(voice: Voice) -> Self {
        Self {
            voice,
            terminal: std::io::stderr().is_terminal(),
        }
    }

    /// Prints a step that needs no work.
    pub(crate) fn already(&self, what: &str) {
        if self.voice == Voice::Full {
            eprintln!("  ✓ {what}");
        }
    }

    /// Prints a remark.
    #[expect(
        clippy::unused_self,
        reason = "all progress output of a verb is printed by its `Steps`"
    )]
    pub(crate) fn note(&self, what: &str) {
        eprintln!("  · {what}");
    }

    /// Runs `command` as the step `what`. Its output goes to a log, whose end is shown if it fails.
    pub(crate) fn run(&self, what: &str, command: &mut Command, limit: Duration) -> Result<()> {
        let (status, log) = self.attempt(what, command, limit)?;
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => bail!("{what}: {status}\n{}", tail(&log, TAIL)),
            None => bail!("{what}: no end after {limit:?}\n{}", tail(&log, TAIL)),
        }
    }

    /// Runs a step that may fail, and returns whether it succeeded.
    pub(crate) fn works(&self, what: &str, command: &mut Command, limit: Duration) -> Result<bool> {
        let (status, _) = self.attempt(what, command, limit)?;
        Ok(status.is_some_and(|status| status.success()))
    }

    fn attempt(
        &self,
        what: &str,
        command: &mut Command,
        limit: Duration,
    ) -> Result<(Option<ExitStatus>, PathBuf)> {
        let log = log_of(what)?;
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let started = Instant::now();
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {}", command::shown(command)))?;
        eprintln!("  $ {}", command::shown(command));
        let status = self.watch(what, child, &log, limit)?;
        let mark = if status.is_some_and(|status| status.success()) {
            '✓'
        } else {
            '✗'
        };
        eprintln!("  {mark} {what} ({:.0} s)", started.elapsed().as_secs_f32());
        Ok((status, log))
    }

    /// Waits for `child` at most `limit`. A child that takes longer is killed, and has no status.
    fn watch(
        &self,
        what: &str,
        mut child: Child,
        log: &Path,
        limit: Duration,
    ) -> Result<Option<ExitStatus>> {
        let spinner = self.spinner(what);
        let started = Instant::now();
        let mut spoken = started;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if started.elapsed() > limit {
                child.kill()?;
                child.wait()?;
                break None;
            }
            spinner.set_message(format!("{what}  {}", last_line(log)));
            spinner.tick();
            if !self.terminal && spoken.elapsed() > SPEAK_EVERY {
                spoken = Instant::now();
                eprintln!(
                    "    {:.0} s: {}",
                    started.elapsed().as_secs_f32(),
                    last_line(log)
                );
            }
            std::thread::sleep(LOOK_EVERY);
        };
        spinner.finish_and_clear();
        Ok(status)
    }

    fn spinner(&self, what: &str) -> ProgressBar {
        if !self.terminal {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template("  {spinner} {elapsed:>4} {wide_msg}");
        ProgressBar::new_spinner()
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
            .with_message(what.to_owned())
    }
}

fn log_of(what: &str) -> Result<PathBuf> {
    let folder = project::tools().join("log");
    std::fs::create_dir_all(&folder)?;
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = what.chars().map(plain).take(60).collect();
    Ok(folder.join(format!("{name}.log")))
}

fn last_line(log: &Path) -> String {
    let text = tail(log, 400);
    let line = text
        .rsplit(['\n', '\r'])
        .map(str::trim)
        .find(|line| !line.is_empty());
    line.unwrap_or_default().to_owned()
}

fn tail(log: &Path, length: u64) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let skip = file.metadata()?.len().saturating_sub(length);
        file.seek(SeekFrom::Start(skip))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_without_an_end_is_ended() {
        let mut hang = Command::new("sleep");
        let steps = Steps::new(Voice::Full);
        let works = steps.works("hang", hang.arg("60"), Duration::from_millis(300));
        assert!(works.is_ok_and(|works| !works));
    }

    #[test]
    fn a_failed_step_shows_what_it_said() {
        let mut shell = Command::new("sh");
        let steps = Steps::new(Voice::Full);
        let said = steps.run(
            "complain",
            shell.args(["-c", "echo no such luck; exit 3"]),
            Duration::from_mins(1),
        );
        assert!(said.is_err_and(|error| error.to_string().contains("no such luck")));
    }
}
