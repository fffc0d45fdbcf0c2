//! Results of each test binary on a kernel, kept on disk. Failed binaries can be run again alone,
//! and binaries that a killed guest did not reach can be run later.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Value, json};

use super::kernel::Kernel;
use crate::project;

/// Results of one test binary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Number of passed tests, skipped ones included.
    pub(crate) passed: u64,
    /// Names of failed tests.
    pub(crate) failed: Vec<String>,
    /// Tests that this kernel cannot run, each with the missing feature.
    pub(crate) skipped: Vec<String>,
    /// Duration of all tests.
    pub(crate) seconds: u64,
}

impl Entry {
    /// Returns the number of tests that ran and passed.
    pub(crate) fn really_passed(&self) -> u64 {
        let skipped = u64::try_from(self.skipped.len()).unwrap_or(u64::MAX);
        self.passed.saturating_sub(skipped)
    }

    /// Returns the failed tests.
    pub(crate) fn failures(&self) -> &[String] {
        &self.failed
    }

    /// Returns the skipped tests.
    pub(crate) fn skips(&self) -> &[String] {
        &self.skipped
    }
}

/// All binaries that have come to their end on one kernel.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    file: Option<PathBuf>,
    entries: BTreeMap<String, Entry>,
    /// How long binaries took before.
    seconds: BTreeMap<String, u64>,
}

/// The part of a binary that remains to be run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Left {
    All,
    Only(Vec<String>),
    Nothing,
}

impl Ledger {
    /// Loads the ledger of `kernel`.
    pub(crate) fn open(kernel: &Kernel) -> Self {
        let image = kernel.image.file_name().unwrap_or_default();
        let name = format!("{}.ledger", image.to_string_lossy());
        let file = project::target().join("vm").join(name);
        let entries = parse(&fs::read_to_string(&file).unwrap_or_default());
        let seconds = entries.iter().map(|(name, it)| (name.clone(), it.seconds));
        Self {
            file: Some(file),
            seconds: seconds.collect(),
            entries,
        }
    }

    /// Returns a ledger that is not saved, for runs with a filter.
    pub(crate) fn of_this_run() -> Self {
        Self::default()
    }

    /// Drops all results but durations.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Seconds that a binary took in the last run, or the maximum if unknown.
    pub(crate) fn seconds(&self, binary: &str) -> u64 {
        self.seconds.get(binary).copied().unwrap_or(u64::MAX)
    }

    /// Says how long binaries took.
    #[cfg(test)]
    pub(crate) fn took<'a>(&mut self, seconds: impl IntoIterator<Item = (&'a str, u64)>) {
        let seconds = seconds.into_iter().map(|(name, it)| (name.to_owned(), it));
        self.seconds.extend(seconds);
    }

    /// Returns the part of a binary that remains to be run.
    pub(crate) fn left(&self, binary: &str) -> Left {
        match self.entries.get(binary) {
            None => Left::All,
            Some(entry) if entry.failed.is_empty() => Left::Nothing,
            Some(entry) => Left::Only(entry.failed.clone()),
        }
    }

    /// Returns the results of a binary, if it has come to its end.
    pub(crate) fn entry(&self, binary: &str) -> Option<&Entry> {
        self.entries.get(binary)
    }

    /// Records the results of a binary. `rest`: only its earlier failures were run.
    pub(crate) fn record(&mut self, binary: &str, mut entry: Entry, rest: bool) -> Result<()> {
        if let Some(before) = self.entries.remove(binary).filter(|_| rest) {
            entry.passed += before.passed;
            entry.skipped.extend(before.skipped);
            entry.seconds += before.seconds;
        }
        self.entries.insert(binary.to_owned(), entry);
        let Some(file) = &self.file else {
            return Ok(());
        };
        let entries = self.entries.iter().map(|(name, it)| {
            let entry = json!({
                "passed": it.passed, "failed": it.failed, "skipped": it.skipped, "seconds": it.seconds,
            });
            (name.clone(), entry)
        });
        let all = Value::Object(entries.collect());
        Ok(fs::write(file, serde_json::to_string_pretty(&all)?)?)
    }

    /// What came of `binaries` together, and which of them have not come to their end.
    pub(crate) fn sum<'a>(&self, binaries: impl Iterator<Item = &'a str>) -> (Entry, Vec<&'a str>) {
        let (mut sum, mut missing) = (Entry::default(), Vec::new());
        for binary in binaries {
            let Some(entry) = self.entries.get(binary) else {
                missing.push(binary);
                continue;
            };
            sum.passed += entry.passed;
            let failed = entry.failed.iter();
            sum.failed
                .extend(failed.map(|test| format!("{binary}: {test}")));
            sum.skipped.extend(entry.skipped.iter().cloned());
        }
        (sum, missing)
    }
}

/// An unreadable file counts as empty: everything is run again.
fn parse(text: &str) -> BTreeMap<String, Entry> {
    let Ok(Value::Object(entries)) = serde_json::from_str(text) else {
        return BTreeMap::new();
    };
    let words = |list: &Value| {
        let list = list.as_array().into_iter().flatten();
        list.filter_map(|word| word.as_str().map(str::to_owned))
            .collect()
    };
    entries
        .into_iter()
        .map(|(name, it)| {
            let entry = Entry {
                passed: it["passed"].as_u64().unwrap_or_default(),
                failed: words(&it["failed"]),
                skipped: words(&it["skipped"]),
                seconds: it["seconds"].as_u64().unwrap_or_default(),
            };
            (name, entry)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(passed: u64, failed: &[&str], skipped: &[&str]) -> Entry {
        let owned = |words: &[&str]| words.iter().map(ToString::to_string).collect();
        Entry {
            passed,
            failed: owned(failed),
            skipped: owned(skipped),
            seconds: 0,
        }
    }

    #[test]
    fn only_what_has_failed_or_was_not_reached_is_left() -> Result<()> {
        let folder = project::target().join("tmp");
        fs::create_dir_all(&folder)?;
        let file = folder.join(format!("ledger-{}", std::process::id()));
        let mut ledger = Ledger {
            file: Some(file.clone()),
            ..Ledger::default()
        };
        ledger.record("links", entry(3, &["a", "b"], &["c: no TCX"]), false)?;
        ledger.record("ports", entry(2, &[], &[]), false)?;
        assert_eq!(
            ledger.left("links"),
            Left::Only(vec!["a".into(), "b".into()])
        );
        assert_eq!(ledger.left("ports"), Left::Nothing);
        assert_eq!(ledger.left("flows"), Left::All);
        ledger.record("links", entry(1, &["b"], &[]), true)?;
        assert_eq!(parse(&fs::read_to_string(&file)?), ledger.entries);
        fs::remove_file(file)?;
        let (sum, missing) = ledger.sum(["links", "ports", "flows"].into_iter());
        assert_eq!(sum, entry(6, &["links: b"], &["c: no TCX"]));
        assert_eq!(missing, ["flows"]);
        Ok(())
    }

    #[test]
    fn a_file_that_makes_no_sense_knows_nothing() {
        assert!(parse("").is_empty());
        assert!(parse("[1, 2]").is_empty());
    }
}
