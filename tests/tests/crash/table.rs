//! Which points are tried, and the table of what came of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

/// What is behind the last `#` of a point.
fn number(point: &str) -> (&str, u32) {
    let (name, number) = point.rsplit_once('#').unwrap_or((point, "1"));
    (name, number.parse().unwrap_or(1))
}

/// Of the effects of one step, the first and the last; all of them, or the first alone, where that is asked for.
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

/// One line for each point.
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

    /// Tries every point of a verb; the outcome is what `attempt` tells.
    pub(crate) fn verb(
        &mut self,
        verb: &str,
        points: Vec<String>,
        mut attempt: impl FnMut(&str) -> Result<&'static str>,
    ) -> Result<()> {
        ensure!(!points.is_empty(), "{verb} has no crash point");
        for point in chosen(points) {
            let outcome = attempt(&point).with_context(|| format!("{verb}, death at {point}"))?;
            self.count += 1;
            writeln!(self.text, "  {verb:<10} {point:<36} {outcome}")?;
        }
        Ok(())
    }

    /// Not by `print!`: a test that succeeds would show nothing.
    pub(crate) fn show(&self) -> Result<()> {
        let took = self.started.elapsed().as_secs();
        let text = format!("{}{} crashes in {took} s\n", self.text, self.count);
        Ok(std::io::stderr().write_all(text.as_bytes())?)
    }
}
