//! The report: an HTML page, a Markdown document, and the raw samples in JSON.

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
use crate::goals::GoalResult;
use crate::row::{Row, system};

/// The results of one family.
pub(crate) struct Chapter {
    /// The family that was measured.
    pub(crate) family: &'static Family,
    /// Its rows, in order of measurement.
    pub(crate) rows: Vec<Row>,
}

impl Chapter {
    /// Returns the distinct subjects, in order of measurement.
    pub(crate) fn subjects(&self) -> Vec<String> {
        distinct(self.rows.iter().map(Row::subject))
    }

    /// Returns the distinct systems, in order of measurement.
    pub(crate) fn systems(&self) -> Vec<String> {
        distinct(self.rows.iter().map(|row| row.system.clone()))
    }

    /// Returns the row of a subject and a system.
    pub(crate) fn row(&self, subject: &str, system: &str) -> Option<&Row> {
        let mut rows = self.rows.iter();
        rows.find(|row| row.system == system && row.subject() == subject)
    }

    /// Returns the results of the family's goals that were measured.
    pub(crate) fn goal_results(&self) -> Vec<GoalResult> {
        self.family
            .goals
            .iter()
            .filter_map(|it| it.evaluate(&self.rows))
            .collect()
    }
}

/// The machine of the measurement.
pub(crate) struct Machine {
    /// Kernel release.
    pub(crate) kernel: String,
    /// CPU model.
    pub(crate) cpu: String,
    /// Number of CPUs.
    pub(crate) cpus: usize,
}

/// The results of one run.
pub(crate) struct Report {
    /// The machine of the measurement.
    pub(crate) machine: Machine,
    /// Whether the run was `--quick`.
    pub(crate) quick: bool,
    /// Duration of the run.
    pub(crate) took: Duration,
    /// The results of each family.
    pub(crate) chapters: Vec<Chapter>,
}

impl Report {
    /// Creates a report without results.
    pub(crate) fn new(quick: bool) -> Result<Self> {
        Ok(Self {
            machine: this_machine()?,
            quick,
            took: Duration::ZERO,
            chapters: Vec::new(),
        })
    }

    /// Writes `report.html`, `report.md` and `report.json` into `folder`.
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

    /// Describes kind and duration of the run and the machine, for a sentence.
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

/// Returns the system that Viaduct is compared with: the reference plugins, with nftables if that
/// was measured, or Docker's own driver.
pub(crate) fn comparison_system(systems: &[String]) -> Option<&str> {
    [system::NFT, system::LEGACY, system::DOCKER]
        .into_iter()
        .find(|name| systems.iter().any(|it| it == name))
}

/// Formats a number with three significant digits or all digits before the point, grouped by
/// commas.
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
