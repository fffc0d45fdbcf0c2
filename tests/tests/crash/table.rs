//! Selection of the crash points, and the table of their outcomes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

/// Splits a point at its last `#` into its name and the number of the effect.
fn number(point: &str) -> (&str, u32) {
    let (name, number) = point.rsplit_once('#').unwrap_or((point, "1"));
    (name, number.parse().unwrap_or(1))
}

/// Selects the first and the last effect of each step; all, or only the first, with
/// `VIADUCT_CRASH_POINTS`.
pub(crate) fn chosen(points: Vec<String>) -> Vec<String> {
    let wanted = std::env::var("VIADUCT_CRASH_POINTS").unwrap_or_default();
    let mut last = BTreeMap::new();
    for point in &points {
        let (name, number) = number(point);
        last.insert(name.to_owned(), number);
    }
    points
        .into_iter()
        .filter(|point| {
            let (name, number) = number(point);
            match wanted.as_str() {
                "all" => true,
                "first" => number == 1,
                _ => number == 1 || last.get(name) == Some(&number),
            }
        })
        .collect()
}

/// A table with one line for each crash point.
pub(crate) struct Table {
    text: String,
    started: Instant,
    count: usize,
}

impl Table {
    pub(crate) fn new() -> Self {
        Self {
            text: String::new(),
            started: Instant::now(),
            count: 0,
        }
    }

    /// Crashes at every selected point of a verb; `attempt` returns the outcome.
    pub(crate) fn verb(
        &mut self,
        verb: &str,
        points: Vec<String>,
        mut attempt: impl FnMut(&str) -> Result<&'static str>,
    ) -> Result<()> {
        ensure!(!points.is_empty(), "{verb} has no crash point");
        for point in chosen(points) {
            let outcome = attempt(&point).with_context(|| format!("{verb}, crash at {point}"))?;
            self.count += 1;
            writeln!(self.text, "  {verb:<10} {point:<36} {outcome}")?;
        }
        Ok(())
    }

    /// Writes the table to stderr. `print!` would show nothing for a successful test.
    pub(crate) fn show(&self) -> Result<()> {
        let took = self.started.elapsed().as_secs();
        let text = format!("{}{} crashes in {took} s\n", self.text, self.count);
        Ok(std::io::stderr().write_all(text.as_bytes())?)
    }
}
