//! Steps in order.
//!
//! A plan is finished when it leaves this crate: nobody else adds a step, so whoever executes one knows that the
//! planner stands behind each line of it.

use std::fmt;

use crate::{EntryKey, Step};

/// What to do, in order. Made by this crate only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    steps: Vec<Step>,
}

impl Plan {
    /// The steps in the order of their execution.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// A plan of one step that needs no planning: it is asked for as it is, and has no part in any other decision.
    pub fn single(step: Step) -> Self {
        Self::of([step])
    }

    /// What undoes the first `done` steps: the last one first.
    pub fn undo(&self, done: usize) -> Vec<Step> {
        let done = self.steps.get(..done).unwrap_or(&self.steps);
        done.iter().rev().filter_map(Step::undo).collect()
    }

    /// The table entries that the plan writes or removes.
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
    /// One numbered line for each step, as a dry run shows it.
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
