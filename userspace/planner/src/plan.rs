//! Plans: steps in the order of their execution.
//!
//! A plan is complete when it leaves this crate: no other crate can add a step, so the engine
//! executes only what the planner has decided.

use std::fmt;

use crate::{EntryKey, Step};

/// Steps in the order of their execution. Constructed by this crate only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    steps: Vec<Step>,
}

impl Plan {
    /// Returns the steps in the order of their execution.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns whether the plan has no step.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns a plan of one step that needs no planning, because it depends on no observation and
    /// no other step.
    pub fn single(step: Step) -> Self {
        Self::of([step])
    }

    /// Returns the steps that undo the first `done` steps, in reverse order of their execution.
    pub fn undo(&self, done: usize) -> Vec<Step> {
        let done = self.steps.get(..done).unwrap_or(&self.steps);
        done.iter().rev().filter_map(Step::undo).collect()
    }

    /// Returns the keys of the table entries that the plan writes or removes.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &EntryKey> {
        self.steps.iter().filter_map(Step::key)
    }

    pub(crate) fn push(&mut self, step: Step) {
        self.steps.push(step);
    }

    pub(crate) fn of(steps: impl IntoIterator<Item = Step>) -> Self {
        Self {
            steps: steps.into_iter().collect(),
        }
    }

    pub(crate) fn append(&mut self, other: Self) {
        self.steps.extend(other.steps);
    }
}

impl fmt::Display for Plan {
    /// Writes one numbered line per step, as a dry run shows it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing to do");
        }
        for (index, step) in self.steps.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{:>2}. {step}", index + 1)?;
        }
        Ok(())
    }
}
