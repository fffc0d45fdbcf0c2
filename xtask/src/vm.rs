//! `vm`: the tests that need root, on other kernels, in virtual machines.
//!
//! A kernel is a series of Debian's, such as `6.1`, or the path of an image. The tests are those of the host: the same
//! binaries, and the same list. A test that a kernel cannot pass says which feature is missing, and is counted apart.

pub(crate) mod guest;
pub(crate) mod kernel;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::progress::{Steps, Voice};
use crate::rungs::{self, Count, RootTest};
use crate::setup::{self, Scope};
use crate::{project, test};
use guest::{Accelerator, Guest};
use kernel::Kernel;

/// How a test says that it was not run: the words, its name, and the missing feature.
const SKIPPED: &str = "skipped: ";

/// Memory of a guest in MiB.
pub(crate) const MEMORY: u32 = 4096;

/// How long a guest that does nothing may take.
const TRIAL: Duration = Duration::from_secs(30);

/// Arguments of `vm`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Series of Debian's kernels, such as 6.1, or paths of images
    #[arg(required = true, value_name = "KERNEL")]
    kernels: Vec<String>,
    /// Minutes after which a guest is given up
    #[arg(long, default_value_t = 60)]
    limit: u64,
    /// Passed on to the test binaries: a part of test names, `--nocapture`, …
    #[arg(last = true)]
    filter: Vec<String>,
}

/// What came of one kernel.
#[derive(Default)]
struct Outcome {
    count: Count,
    skipped: Vec<String>,
    failed: Vec<String>,
    time: Duration,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    setup::ensure(Scope::Everything)?;
    let steps = Steps::new(Voice::Full);
    setup::ensure_guests(&steps)?;
    let kernels: Vec<Kernel> = args
        .kernels
        .iter()
        .map(|word| Kernel::get(word, &steps))
        .collect::<Result<_>>()?;
    let tests = rungs::root_tests()?;
    let accelerator = accelerator(&kernels[0])?;
    steps.note(&format!("guests run by {}", accelerator.name()));
    let mut outcomes = Vec::new();
    for kernel in &kernels {
        eprintln!("\n── kernel {} ──", kernel.name);
        let guest = Guest {
            kernel,
            accelerator,
            memory: MEMORY,
            limit: Duration::from_mins(args.limit),
        };
        outcomes.push((kernel.name.as_str(), test_in(&guest, &tests, &args.filter)));
    }
    println!("\n{}", table(&outcomes));
    let bad = |outcome: &Outcome| !outcome.failed.is_empty();
    let bad: Vec<&str> = outcomes
        .iter()
        .filter(|(_, it)| bad(it))
        .map(|(name, _)| *name)
        .collect();
    if !bad.is_empty() {
        bail!("failed: {}", bad.join(", "));
    }
    Ok(())
}

/// KVM, where a guest by KVM comes to its end: that there is a device proves nothing.
pub(crate) fn accelerator(kernel: &Kernel) -> Result<Accelerator> {
    if !std::path::Path::new("/dev/kvm").exists() {
        return Ok(Accelerator::Tcg);
    }
    let remembered = project::target().join("vm/accelerator");
    if let Ok(known) = std::fs::read_to_string(&remembered) {
        return Ok(if known == "kvm" {
            Accelerator::Kvm
        } else {
            Accelerator::Tcg
        });
    }
    let trial = Guest {
        kernel,
        accelerator: Accelerator::Kvm,
        memory: 512,
        limit: TRIAL,
    };
    let works = trial.run("true", |_| {}).is_ok_and(|status| status == 0);
    std::fs::write(remembered, if works { "kvm" } else { "tcg" })?;
    Ok(if works {
        Accelerator::Kvm
    } else {
        Accelerator::Tcg
    })
}

fn test_in(guest: &Guest<'_>, tests: &[RootTest], filter: &[String]) -> Outcome {
    let started = Instant::now();
    let mut outcome = Outcome::default();
    let script = script(tests, filter, guest.accelerator.patience());
    let ended = guest.run(&script, |line| {
        println!("{line}");
        outcome.read(line);
    });
    match ended {
        Ok(0) => {}
        Ok(status) if outcome.failed.is_empty() => {
            outcome
                .failed
                .push(format!("the list of tests ended with {status}"));
        }
        Ok(_) => {}
        Err(error) => {
            eprintln!("{error:#}");
            outcome.failed.push("the guest itself".to_owned());
        }
    }
    outcome.time = started.elapsed();
    outcome
}

impl Outcome {
    fn read(&mut self, line: &str) {
        let line = test::without_colour(line);
        self.count.read(&line);
        // A single thread of tests has begun the line with the test's name.
        if let Some((_, skipped)) = line.split_once(SKIPPED) {
            self.skipped.push(skipped.to_owned());
        }
        if let Some(test) = line
            .strip_prefix("test ")
            .and_then(|it| it.strip_suffix(" ... FAILED"))
        {
            self.failed.push(test.to_owned());
        }
    }
}

/// Runs every binary, whatever came of those before it.
fn script(tests: &[RootTest], filter: &[String], patience: u32) -> String {
    let mut script = format!(
        "export VIADUCT_DIST='{}' VIADUCT_DATAPATH_OBJECT='{}' VIADUCT_TEST_PATIENCE={patience}\nresult=0\n",
        project::dist().display(),
        project::bpf_object().display(),
    );
    let filter: Vec<String> = filter.iter().map(|word| format!("'{word}'")).collect();
    let _ = writeln!(script, "modprobe -a br_netfilter 2>/dev/null || :");
    for (number, test) in (1..).zip(tests) {
        let _ = writeln!(
            script,
            "echo; echo '── {name} ({number} of {all})'; cd '{folder}' && '{program}' {filter} || result=1",
            name = test.name,
            all = tests.len(),
            folder = test.folder.display(),
            program = test.program.display(),
            filter = filter.join(" "),
        );
    }
    script.push_str("exit $result");
    script
}

fn table(outcomes: &[(&str, Outcome)]) -> String {
    let mut text = format!(
        "{:<12} {:>7} {:>7} {:>8} {:>9}\n",
        "kernel", "passed", "failed", "skipped", "time"
    );
    for (name, it) in outcomes {
        // A test that was skipped has ended well, as far as its binary knows.
        let passed = it.count.passed.saturating_sub(it.skipped.len() as u64);
        let _ = writeln!(
            text,
            "{name:<12} {passed:>7} {:>7} {:>8} {:>7.0} s",
            it.failed.len(),
            it.skipped.len(),
            it.time.as_secs_f32()
        );
    }
    for (name, it) in outcomes {
        for skipped in &it.skipped {
            let _ = writeln!(text, "{name}: skipped {skipped}");
        }
        for failed in &it.failed {
            let _ = writeln!(text, "{name}: FAILED {failed}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_run_is_told_apart() {
        let mut outcome = Outcome::default();
        for line in [
            "test a ... ok",
            "skipped: b: this kernel has no such thing",
            "test c ... \u{1b}[31mFAILED\u{1b}[m",
            "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s",
        ] {
            outcome.read(line);
        }
        assert_eq!(outcome.failed, ["c"]);
        assert_eq!(outcome.skipped, ["b: this kernel has no such thing"]);
        assert!(table(&[("6.1", outcome)]).contains("      1       1        1"));
    }
}
