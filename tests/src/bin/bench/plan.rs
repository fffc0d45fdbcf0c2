//! How much is measured, and how the measuring is shown.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

/// How much of a family is measured.
pub(crate) struct Plan {
    /// Fewer rounds, smaller sizes.
    pub(crate) quick: bool,
    rounds: Option<usize>,
    family: &'static str,
}

impl Plan {
    /// As many `rounds` of everything, where somebody has asked for a number.
    pub(crate) fn new(quick: bool, rounds: Option<usize>, family: &'static str) -> Self {
        Self {
            quick,
            rounds,
            family,
        }
    }

    /// One of two, by how much time there is.
    pub(crate) fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Rounds of what takes less than a second.
    pub(crate) fn rounds(&self) -> usize {
        self.pick(5, 15)
    }

    /// Rounds of what takes a fraction of that. The shorter a sample, the less becomes of the host between two systems of a
    /// round; and of many ratios the median cares little about those that were disturbed.
    pub(crate) fn short_rounds(&self) -> usize {
        self.pick(30, 90)
    }

    /// Measures each of `systems` once in each of `rounds`. Each round begins with another system, so that none of
    /// them always follows the same one, and none profits from an hour that was quiet.
    pub(crate) fn interleave<S>(
        &self,
        what: &str,
        rounds: usize,
        systems: &[S],
        mut measure: impl FnMut(&S) -> Result<()>,
    ) -> Result<()> {
        let rounds = self.rounds.unwrap_or(rounds);
        let bar = self.bar(what, rounds * systems.len());
        for round in 0..rounds {
            for turn in 0..systems.len() {
                measure(&systems[(round + turn) % systems.len()])?;
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// A bar with `steps`, on a terminal; elsewhere one line.
    pub(crate) fn bar(&self, what: &str, steps: usize) -> ProgressBar {
        let label = format!("{}: {what}", self.family);
        if !std::io::stderr().is_terminal() {
            say(&format!("   {label}, {steps} measurements"));
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template("   {msg:<48} {bar:30} {pos}/{len} {eta}");
        let bar = ProgressBar::new(steps as u64)
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
            .with_message(label);
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }
}

/// Tells whoever watches.
pub(crate) fn say(line: &str) {
    // Nobody watching is no reason to stop measuring.
    let _ = writeln!(std::io::stdout(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_begins_with_another_system() -> Result<()> {
        let mut order = Vec::new();
        let plan = Plan::new(true, None, "test");
        plan.interleave("letters", 2, &['a', 'b', 'c'], |letter| {
            order.push(*letter);
            Ok(())
        })?;
        assert_eq!(order, ['a', 'b', 'c', 'b', 'c', 'a']);
        Ok(())
    }
}
