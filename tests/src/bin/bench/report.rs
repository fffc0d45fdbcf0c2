//! The report: one page to look at, one table to quote, and the raw samples.

pub(crate) mod html;
pub(crate) mod markdown;
mod plot;
pub(crate) mod readme;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::families::Family;
use crate::promise::Kept;
use crate::row::{Row, system};

/// What one family gave.
pub(crate) struct Chapter {
    /// The family.
    pub(crate) family: &'static Family,
    /// Its rows.
    pub(crate) rows: Vec<Row>,
}

impl Chapter {
    /// The subjects, in the order in which they were met.
    pub(crate) fn subjects(&self) -> Vec<String> {
        distinct(self.rows.iter().map(Row::subject))
    }

    /// The systems, in the order in which they were met.
    pub(crate) fn systems(&self) -> Vec<String> {
        distinct(self.rows.iter().map(|row| row.system.clone()))
    }

    /// The row of a subject and a system.
    pub(crate) fn row(&self, subject: &str, system: &str) -> Option<&Row> {
        let mut rows = self.rows.iter();
        rows.find(|row| row.system == system && row.subject() == subject)
    }

    /// What came of the family's promises.
    pub(crate) fn kept(&self) -> Vec<Kept> {
        self.family
            .promises
            .iter()
            .filter_map(|it| it.judge(&self.rows))
            .collect()
    }
}

/// The machine that measured.
pub(crate) struct Machine {
    /// Kernel release.
    pub(crate) kernel: String,
    /// CPU model.
    pub(crate) cpu: String,
    /// Number of CPUs.
    pub(crate) cpus: usize,
}

/// Everything that was measured in one run.
pub(crate) struct Report {
    /// Where.
    pub(crate) machine: Machine,
    /// Whether it was a quick run.
    pub(crate) quick: bool,
    /// How long it took.
    pub(crate) took: Duration,
    /// What it gave.
    pub(crate) chapters: Vec<Chapter>,
}

impl Report {
    /// An empty one.
    pub(crate) fn new(quick: bool) -> Result<Self> {
        Ok(Self {
            machine: this_machine()?,
            quick,
            took: Duration::ZERO,
            chapters: Vec::new(),
        })
    }

    /// Writes page, table and samples.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        let files = [
            ("report.html", html::page(self)),
            ("report.md", markdown::document(self)),
            ("report.json", serde_json::to_string_pretty(&self.json())?),
        ];
        for (name, text) in files {
            let path = folder.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// One sentence about the run.
    pub(crate) fn circumstances(&self) -> String {
        let Machine { kernel, cpu, cpus } = &self.machine;
        let kind = if self.quick {
            "a quick run"
        } else {
            "a full run"
        };
        let minutes = self.took.as_secs_f64() / 60.0;
        format!("{kind} of {minutes:.0} minutes on {cpus} CPUs ({cpu}), kernel {kernel}")
    }

    fn json(&self) -> Value {
        let Machine { kernel, cpu, cpus } = &self.machine;
        let chapters = self.chapters.iter().map(|chapter| {
            let rows: Vec<_> = chapter.rows.iter().map(Row::json).collect();
            json!({ "family": chapter.family.name, "about": chapter.family.about, "rows": rows })
        });
        json!({
            "kernel": kernel,
            "cpu": cpu,
            "cpus": cpus,
            "quick": self.quick,
            "seconds": self.took.as_secs(),
            "families": chapters.collect::<Vec<_>>(),
        })
    }
}

/// The system that the others are compared with: the reference plugins, in tables that were measured.
pub(crate) fn yardstick(systems: &[String]) -> Option<&str> {
    [system::NFT, system::LEGACY]
        .into_iter()
        .find(|name| systems.iter().any(|it| it == name))
}

/// A number with as many digits as are worth reading.
pub(crate) fn number(value: f64) -> String {
    let digits = match value.abs() {
        large if large >= 100.0 => 0,
        middle if middle >= 10.0 => 1,
        small if small >= 0.1 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_once('.').unwrap_or((&text, ""));
    let mut grouped = String::new();
    for (place, digit) in whole.chars().rev().enumerate() {
        if place > 0 && place % 3 == 0 && digit != '-' {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let whole: String = grouped.chars().rev().collect();
    if rest.is_empty() {
        whole
    } else {
        format!("{whole}.{rest}")
    }
}

fn distinct(items: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

fn this_machine() -> Result<Machine> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let info = fs::read_to_string("/proc/cpuinfo")?;
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or_default()
        .trim_start_matches([' ', '\t', ':']);
    Ok(Machine {
        kernel: release.trim().to_owned(),
        cpu: model.trim().to_owned(),
        cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_grouped() {
        assert_eq!(number(1_234_567.8), "1,234,568");
        assert_eq!(number(12.345), "12.3");
        assert_eq!(number(0.1234), "0.12");
        assert_eq!(number(-1234.0), "-1,234");
        assert_eq!(number(-123.0), "-123");
    }
}
