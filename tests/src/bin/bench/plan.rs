//! Number of rounds and sizes, their interleaving, and the progress bar.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::company::Company;

/// Number of rounds and sizes for one family.
pub(crate) struct Plan {
    /// Fewer rounds, smaller sizes.
    pub(crate) quick: bool,
    /// Other software whose rules are on the nodes.
    pub(crate) company: Company,
    rounds: Option<usize>,
    family: &'static str,
}

impl Plan {
    /// Creates a plan; `rounds` overrides the number of rounds of each measurement.
    pub(crate) fn new(
        quick: bool,
        company: Company,
        rounds: Option<usize>,
        family: &'static str,
    ) -> Self {
        Self {
            quick,
            company,
            rounds,
            family,
        }
    }

    /// Returns `quick` in a quick run, and else `full`.
    pub(crate) fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Returns the number of rounds for samples of up to a second.
    pub(crate) fn rounds(&self) -> usize {
        self.pick(5, 15)
    }

    /// Returns the number of rounds for samples of tens of milliseconds. The host changes less
    /// between two systems of a round with short samples, and the median of many ratios tolerates
    /// disturbed ones.
    pub(crate) fn short_rounds(&self) -> usize {
        self.pick(30, 90)
    }

    /// Measures each of `systems` once in each of `rounds`. Each round starts with another system,
    /// so that none always runs after the same one, and a quiet hour favours none.
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

    /// Returns a progress bar with `steps` on a terminal. Elsewhere prints one line.
    pub(crate) fn bar(&self, what: &str, steps: usize) -> ProgressBar {
        let label = format!("{}: {what}", self.family);
        if !std::io::stderr().is_terminal() {
            print_line(&format!("   {label}, {steps} measurements"));
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

/// Prints a line to standard output.
pub(crate) fn print_line(line: &str) {
    // A closed output must not stop the measurement.
    let _ = writeln!(std::io::stdout(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_starts_with_another_system() -> Result<()> {
        let mut order = Vec::new();
        let plan = Plan::new(true, Company::Alone, None, "test");
        plan.interleave("letters", 2, &['a', 'b', 'c'], |letter| {
            order.push(*letter);
            Ok(())
        })?;
        assert_eq!(order, ['a', 'b', 'c', 'b', 'c', 'a']);
        Ok(())
    }
}
