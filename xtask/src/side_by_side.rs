//! Runs test binaries side by side: much of the time a namespaced test waits for the kernel or for
//! another program.
//!
//! Each binary's output is shown whole, when it ends. Binaries that measure rates or fill tables
//! run alone, after the others: what they state is about one node, not about a machine that they
//! share with other tests.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{PipeReader, Read as _, pipe};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::binaries::TestBinary;
use crate::rungs::Count;
use crate::{command, privilege, project};

/// Binaries that run alone.
const ALONE: [&str; 6] = [
    "fair_shares",
    "hostport_scale",
    "nat_load",
    "scale",
    "shaping",
    "unknown_addresses",
];

/// How binaries are run.
pub(crate) struct Conditions<'a> {
    /// As root, through sudo where needed.
    pub(crate) as_root: bool,
    pub(crate) variables: &'a [(&'a str, PathBuf)],
    /// Passed to each binary: a part of test names, `--nocapture`, …
    pub(crate) arguments: &'a [String],
}

/// What one binary has printed, and whether it succeeded.
struct Ended {
    output: String,
    is_good: bool,
}

/// Runs all of `binaries` and adds up what they count. The longest of the last run come first, so
/// that none of them is still running when the others have ended.
pub(crate) fn run(mut binaries: Vec<TestBinary>, conditions: &Conditions<'_>) -> Result<Count> {
    let times = Times::load();
    binaries.sort_by_key(|it| std::cmp::Reverse(times.of(&it.title())));
    let (alone, shared): (Vec<_>, Vec<_>) = binaries
        .into_iter()
        .partition(|it| ALONE.contains(&it.name.as_str()));
    let results = Results {
        count: Mutex::new(Count::of_nothing()),
        times: Mutex::new(times),
    };
    let seats = thread::available_parallelism()
        .map_or(2, usize::from)
        .max(2);
    for (seats, batch) in [(seats, shared), (1, alone)] {
        let queue = Mutex::new(batch.into_iter());
        thread::scope(|scope| {
            for _ in 0..seats {
                scope.spawn(|| results.work(&queue, conditions));
            }
        });
    }
    let times = results.times.into_inner();
    times.unwrap_or_else(PoisonError::into_inner).save()?;
    Ok(results
        .count
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner))
}

struct Results {
    count: Mutex<Count>,
    times: Mutex<Times>,
}

impl Results {
    /// Runs one binary after the other until the queue is empty.
    fn work(&self, queue: &Mutex<std::vec::IntoIter<TestBinary>>, conditions: &Conditions<'_>) {
        let next = || {
            let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.next()
        };
        while let Some(binary) = next() {
            let started = Instant::now();
            let ended = execute(&binary, conditions).unwrap_or_else(|error| Ended {
                output: format!("{error:#}\n"),
                is_good: false,
            });
            self.note(&binary, &ended, started.elapsed());
        }
    }

    /// Shows what a binary has printed, and adds its tests to the sum.
    fn note(&self, binary: &TestBinary, ended: &Ended, took: Duration) {
        let title = binary.title();
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that no two binaries' lines are mixed.
        println!("── {title} ({:.1} s)\n{}", took.as_secs_f32(), ended.output);
        for line in ended.output.lines() {
            count.read(line);
        }
        count.good &= ended.is_good;
        if !ended.is_good {
            count
                .failures
                .push(format!("── {title}\n{}", about_failures(&ended.output)));
        }
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.0.insert(title, took.as_millis());
    }
}

fn execute(binary: &TestBinary, conditions: &Conditions<'_>) -> Result<Ended> {
    let mut program = if conditions.as_root {
        privilege::as_root(&binary.program)?
    } else {
        Command::new(&binary.program)
    };
    let (reader, writer) = pipe()?;
    program
        .args(conditions.arguments)
        .current_dir(&binary.folder)
        .env("CARGO_MANIFEST_DIR", &binary.folder)
        .envs(
            conditions
                .variables
                .iter()
                .map(|(name, value)| (name, value)),
        )
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let mut child = program
        .spawn()
        .with_context(|| format!("cannot start {}", command::shown(&program)))?;
    // Its ends of the pipe: the output ends when the child's do.
    drop(program);
    let output = drain(reader)?;
    let status = child.wait()?;
    Ok(Ended {
        output,
        is_good: status.success(),
    })
}

/// Returns what the output of a failed binary says about its failed tests: from the heading that
/// test binaries print above it, or the last lines, of a binary that ended without one.
fn about_failures(output: &str) -> String {
    const LINES: usize = 80;
    let part = output
        .find("\nfailures:\n")
        .map_or(output, |at| &output[at + 1..]);
    let lines: Vec<&str> = part.trim_end().lines().collect();
    let shown = if part.len() < output.len() {
        &lines[..lines.len().min(LINES)]
    } else {
        &lines[lines.len().saturating_sub(LINES)..]
    };
    shown.join("\n")
}

fn drain(mut reader: PipeReader) -> Result<String> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Milliseconds that each binary took the last time.
#[derive(Default)]
struct Times(BTreeMap<String, u128>);

impl Times {
    fn path() -> PathBuf {
        project::target().join("test-times")
    }

    /// An unreadable file means that nothing is known.
    fn load() -> Self {
        Self::parse(&fs::read_to_string(Self::path()).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        Self(
            text.lines()
                .filter_map(|line| line.split_once('\t'))
                .filter_map(|(name, time)| Some((name.to_owned(), time.parse().ok()?)))
                .collect(),
        )
    }

    /// A binary that has never run comes first.
    fn of(&self, title: &str) -> u128 {
        self.0.get(title).copied().unwrap_or(u128::MAX)
    }

    fn save(&self) -> Result<()> {
        let mut text = String::new();
        for (name, time) in &self.0 {
            let _ = writeln!(text, "{name}\t{time}");
        }
        fs::write(Self::path(), text).context("cannot remember how long tests took")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str, folder: &std::path::Path) -> TestBinary {
        let (draft, program) = (folder.join("draft"), folder.join(name));
        fs::write(&draft, format!("#!/bin/sh\n{script}\n")).unwrap();
        // Another process writes the program: a child that a parallel test starts would inherit an
        // open file of this one, and a file that is open for writing is not executed (ETXTBSY).
        let mut install = Command::new("install");
        let installed = install
            .args(["-m", "755"])
            .args([&draft, &program])
            .status();
        assert!(installed.unwrap().success());
        TestBinary {
            package: "p".to_owned(),
            name: name.to_owned(),
            program,
            folder: folder.to_owned(),
        }
    }

    #[test]
    fn both_streams_of_a_binary_are_collected_and_its_exit_status_counts() {
        let folder = std::env::temp_dir().join(format!("xtask-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let conditions = Conditions {
            as_root: false,
            variables: &[("GREETING", PathBuf::from("hello"))],
            arguments: &["world".to_owned()],
        };
        let good = shell("good", "echo \"$GREETING $1\"; echo oops >&2", &folder);
        let ended = execute(&good, &conditions).unwrap();
        assert_eq!(ended.output, "hello world\noops\n");
        assert!(ended.is_good);
        let bad = shell("bad", "exit 3", &folder);
        assert!(!execute(&bad, &conditions).unwrap().is_good);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn of_a_failed_binary_the_part_about_its_failures_is_repeated() {
        let output = "test a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\nno\n";
        assert_eq!(
            about_failures(output),
            "failures:\n\n---- b stdout ----\nno"
        );
        let crashed: Vec<String> = (0..100).map(|line| line.to_string()).collect();
        let last = about_failures(&crashed.join("\n"));
        assert!(last.starts_with("20\n") && last.ends_with("\n99"), "{last}");
    }

    #[test]
    fn a_binary_without_a_known_time_comes_first() {
        let times = Times::parse("a\t5\nnonsense\nb\t7\n");
        assert_eq!(times.of("a"), 5);
        assert_eq!(times.of("c"), u128::MAX);
    }
}
