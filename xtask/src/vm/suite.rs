//! The tests that need root, in a guest: the same binaries as on the host, and what came of them.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::iter::Chain;
use std::num::NonZero;
use std::slice::Chunks;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::guest::{Accelerator, Guest};
use super::ledger::{Entry, Ledger, Left};
use super::page::{self, Column};
use super::selection::Selection;
use super::stage::Stage;
use super::{Args, prepare};
use crate::binaries::{self, TestBinary};
use crate::rungs::{self, Count, SKIPPED};
use crate::{metadata, test};

/// Prefix of the line that announces a binary.
const BEGINS: &str = "── ";

/// The most binaries that a guest runs before it makes place for another: few, so that all guests
/// end at about the same time, and a guest that crashes takes few with it.
const CHUNK: usize = 3;

/// Binaries that take at least this many seconds have a guest of their own.
const LONG: u64 = 60;

/// Results of one kernel.
struct Outcome {
    kernel: String,
    sum: Entry,
    time: Duration,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let selection = Selection::of(args);
    let metadata = metadata::load()?;
    let mut names = binaries::netns_names(&metadata);
    names.extend(binaries::e2e_names(&metadata));
    selection.check(&names)?;
    let selected: Vec<String> = (names.iter())
        .filter(|name| selection.has(name))
        .cloned()
        .collect();
    let (kernels, accelerator) = prepare(&args.kernels)?;
    if args.results {
        let columns: Vec<Column> = kernels
            .iter()
            .map(|kernel| Column::new(kernel, Ledger::open(kernel)))
            .collect();
        return show(args, &names, &selected, &columns);
    }
    let mut stage = if args.staged {
        Stage::last()?
    } else {
        Stage::take(&rungs::root_tests(&metadata, &selected)?)?
    };
    stage.tests.retain(|it| selection.has(&it.name));
    let (mut outcomes, mut columns) = (Vec::new(), Vec::new());
    for kernel in &kernels {
        eprintln!("\n── kernel {} ──", kernel.name);
        let guest = Guest::alone(kernel, accelerator, Duration::from_mins(args.limit));
        let mut ledger = if args.filter.is_empty() {
            Ledger::open(kernel)
        } else {
            Ledger::of_this_run()
        };
        if !args.again && selection.is_everything() {
            ledger.clear();
        }
        outcomes.push(test_in(&guest, &mut ledger, &stage, args));
        columns.push(Column::new(kernel, ledger));
    }
    show(args, &names, &selected, &columns)?;
    println!("{}", table(&outcomes));
    let bad: Vec<&str> = outcomes
        .iter()
        .filter(|it| !it.sum.failed.is_empty())
        .map(|it| it.kernel.as_str())
        .collect();
    if !bad.is_empty() {
        bail!("failed: {}", bad.join(", "));
    }
    Ok(())
}

/// Prints the results of the selected binaries, and writes those of all where requested.
fn show(args: &Args, names: &[String], selected: &[String], columns: &[Column]) -> Result<()> {
    println!("\n{}", page::rows(selected, columns));
    if args.bless {
        page::write(names, columns)?;
    }
    Ok(())
}

fn test_in(guest: &Guest<'_>, ledger: &mut Ledger, stage: &Stage, args: &Args) -> Outcome {
    let started = Instant::now();
    let plan = plan(&stage.tests, ledger, args.again);
    let broken = Queue::new(&plan, ledger, args.per_boot).run_all(guest, stage, args);
    let (mut sum, missing) = ledger.sum(stage.tests.iter().map(|it| it.name.as_str()));
    let missing = missing.iter();
    sum.failed
        .extend(missing.map(|name| format!("{name}: it has not come to its end")));
    for error in broken {
        eprintln!("{error:#}");
        sum.failed.push("a guest itself".to_owned());
    }
    Outcome {
        kernel: guest.kernel.name.clone(),
        sum,
        time: started.elapsed(),
    }
}

/// State that guests share: the queue of binaries, and the results.
struct Queue<'a> {
    chunks: Mutex<Chain<Chunks<'a, Planned<'a>>, Chunks<'a, Planned<'a>>>>,
    ledger: Mutex<&'a mut Ledger>,
}

/// A binary, with all or some of its tests.
type Planned<'a> = (&'a TestBinary, Left);

impl<'a> Queue<'a> {
    /// Makes the queue. `per_boot`: the number of binaries that a guest runs, long ones included.
    fn new(
        plan: &'a [Planned<'a>],
        ledger: &'a mut Ledger,
        per_boot: Option<NonZero<usize>>,
    ) -> Self {
        let is_alone = |it: &Planned<'_>| per_boot.is_none() && ledger.seconds(&it.0.name) >= LONG;
        let (long, short) = plan.split_at(plan.partition_point(is_alone));
        let chunk = per_boot.map_or(CHUNK, NonZero::get);
        Self {
            chunks: Mutex::new(long.chunks(1).chain(short.chunks(chunk))),
            ledger: Mutex::new(ledger),
        }
    }

    /// Runs everything in the requested number of guests at a time, and returns the errors of
    /// guests that failed.
    fn run_all(&self, guest: &Guest<'_>, stage: &Stage, args: &Args) -> Vec<anyhow::Error> {
        let threads = args.guests.unwrap_or_else(|| guest.accelerator.guests());
        thread::scope(|scope| {
            let start = |_| scope.spawn(|| self.run_guests(guest, stage, args));
            let threads: Vec<_> = (0..threads).map(start).collect();
            threads
                .into_iter()
                .map(thread::ScopedJoinHandle::join)
                .flat_map(Result::unwrap_or_default)
                .collect()
        })
    }

    /// Runs one guest after the other until the queue is empty.
    fn run_guests(&self, guest: &Guest<'_>, stage: &Stage, args: &Args) -> Vec<anyhow::Error> {
        let mut broken = Vec::new();
        while let Some(chunk) = self.next() {
            let script = script(stage, chunk, args, guest.accelerator);
            let mut reader = Reader::default();
            if let Err(error) = guest.run(&script, |line| self.note(&mut reader, line, chunk)) {
                broken.push(error);
            }
        }
        broken
    }

    fn next(&self) -> Option<&'a [Planned<'a>]> {
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        chunks.next()
    }

    /// Prints a line of a guest, and records results.
    fn note(&self, reader: &mut Reader, line: &str, chunk: &[Planned<'_>]) {
        let ended = reader.read(line);
        println!("{:>18} │ {line}", reader.binary);
        let Some((binary, entry)) = ended else {
            return;
        };
        let some = |it: &Planned<'_>| it.0.name == binary && it.1 != Left::All;
        let rest = chunk.iter().any(some);
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = ledger.record(&binary, entry, rest) {
            eprintln!("{error:#}");
        }
    }
}

/// Returns the binaries to run, longest first, so that no guest still runs a long one when the
/// others have ended.
fn plan<'a>(tests: &'a [TestBinary], ledger: &Ledger, again: bool) -> Vec<Planned<'a>> {
    let left = |it: &TestBinary| {
        if again {
            ledger.left(&it.name)
        } else {
            Left::All
        }
    };
    let mut plan: Vec<_> = tests
        .iter()
        .map(|it| (it, left(it)))
        .filter(|(_, left)| *left != Left::Nothing)
        .collect();
    plan.sort_by_key(|(test, _)| Reverse(ledger.seconds(&test.name)));
    plan
}

/// Reads what binaries print, one after the other.
#[derive(Default)]
struct Reader {
    binary: String,
    entry: Entry,
}

impl Reader {
    /// Parses a line. Returns the binary that ends with it, if one does.
    fn read(&mut self, line: &str) -> Option<(String, Entry)> {
        let line = test::without_colour(line);
        if let Some(name) = line.strip_prefix(BEGINS) {
            let name = name.split(' ').next().unwrap_or_default();
            name.clone_into(&mut self.binary);
            self.entry = Entry::default();
        }
        // With one test thread the line starts with the test's name.
        if let Some((_, skipped)) = line.split_once(SKIPPED) {
            self.entry.skipped.push(skipped.to_owned());
        }
        let failed = line.strip_prefix("test ");
        if let Some(test) = failed.and_then(|it| it.strip_suffix(" ... FAILED")) {
            self.entry.failed.push(test.to_owned());
        }
        let mut count = Count::default();
        count.read(&line);
        if !line.starts_with("test result: ") {
            return None;
        }
        self.entry.passed = count.passed;
        self.entry.seconds = seconds(&line);
        Some((self.binary.clone(), std::mem::take(&mut self.entry)))
    }
}

/// Parses the duration in a binary's closing line.
fn seconds(result: &str) -> u64 {
    let time = result.rsplit_once(" finished in ").map(|(_, time)| time);
    let whole = time.and_then(|time| time.split_once('.'));
    whole.and_then(|(whole, _)| whole.parse().ok()).unwrap_or(0)
}

/// Script that runs every binary, also after failures.
fn script(stage: &Stage, plan: &[Planned<'_>], args: &Args, accelerator: Accelerator) -> String {
    let (variables, told) = (stage.variables(), accelerator.variables());
    let threads = args
        .threads
        .map(|count| format!(" RUST_TEST_THREADS={count}"))
        .unwrap_or_default();
    let mut script = format!("{variables} {told}{threads}\nresult=0\n");
    // A kernel that loads a module for one request may refuse another one meanwhile.
    let _ = writeln!(script, "modprobe -a br_netfilter veth 2>/dev/null || :");
    for (test, left) in plan {
        let mut words = args.filter.clone();
        if let Left::Only(failed) = left {
            words.push("--exact".to_owned());
            words.extend(failed.iter().cloned());
        }
        let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let _ = writeln!(
            script,
            "echo; echo '{BEGINS}{name} ──'; cd '{folder}' && '{program}' {words} || result=1",
            name = test.name,
            folder = test.folder.display(),
            program = test.program.display(),
            words = words.join(" "),
        );
    }
    script.push_str("exit $result");
    script
}

fn table(outcomes: &[Outcome]) -> String {
    let mut text = format!(
        "{:<12} {:>7} {:>7} {:>8} {:>9}\n",
        "kernel", "passed", "failed", "skipped", "time"
    );
    for Outcome { kernel, sum, time } in outcomes {
        let passed = sum.really_passed();
        let _ = writeln!(
            text,
            "{kernel:<12} {passed:>7} {:>7} {:>8} {:>7.0} s",
            sum.failed.len(),
            sum.skipped.len(),
            time.as_secs_f32()
        );
    }
    for Outcome { kernel, sum, .. } in outcomes {
        for skipped in &sum.skipped {
            let _ = writeln!(text, "{kernel}: skipped {skipped}");
        }
        for failed in &sum.failed {
            let _ = writeln!(text, "{kernel}: FAILED {failed}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_longest_is_run_first_and_alone() {
        let mut ledger = Ledger::of_this_run();
        let test = |name: &str| TestBinary {
            package: String::new(),
            name: name.to_owned(),
            program: name.into(),
            folder: "/".into(),
        };
        let tests = ["a", "b", "c", "d", "e", "new"].map(test);
        ledger.took([("a", 5), ("b", 900), ("c", 4), ("d", 3), ("e", 60)]);
        let plan = plan(&tests, &ledger, false);
        let name = |it: &Planned<'_>| it.0.name.clone();
        let mut chunks = |per_boot| -> Vec<Vec<String>> {
            let table = Queue::new(&plan, &mut ledger, per_boot);
            std::iter::from_fn(|| table.next())
                .map(|it| it.iter().map(name).collect())
                .collect()
        };
        assert_eq!(
            chunks(None),
            [vec!["new"], vec!["b"], vec!["e"], vec!["a", "c", "d"]]
        );
        assert_eq!(
            chunks(NonZero::new(4)),
            [vec!["new", "b", "e", "a"], vec!["c", "d"]]
        );
    }

    #[test]
    fn what_was_not_run_is_told_apart() {
        let mut reader = Reader::default();
        let ended: Vec<_> = [
            "── links (1 of 2)",
            "test a ... ok",
            "skipped: b: this kernel has no such thing",
            "test c ... \u{1b}[31mFAILED\u{1b}[m",
            "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 71.20s",
            "── ports (2 of 2)",
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s",
        ]
        .into_iter()
        .filter_map(|line| reader.read(line))
        .collect();
        let links = Entry {
            passed: 2,
            failed: vec!["c".to_owned()],
            skipped: vec!["b: this kernel has no such thing".to_owned()],
            seconds: 71,
        };
        assert_eq!(ended[0], ("links".to_owned(), links.clone()));
        assert_eq!((ended[1].0.as_str(), ended[1].1.passed), ("ports", 1));
        let outcome = Outcome {
            kernel: "6.1".to_owned(),
            sum: links,
            time: Duration::from_secs(1),
        };
        assert!(table(&[outcome]).contains("      1       1        1"));
    }
}
