//! Reports of reconciliations.

use std::time::Duration;

use model::PodName;

use crate::EngineError;
use crate::error::MAX_LISTED;
use crate::transaction::StepResult;

/// Subject of report items about the node itself: bridges, uplinks, sysctls and their table
/// entries.
pub const NODE: &str = "node";

/// Result of one reconciliation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Time of the reconciliation in seconds since 1970.
    pub finished_at: u64,
    /// Duration of the reconciliation.
    pub duration: Duration,
    /// Differences that were found; empty if there were none.
    pub items: Vec<Item>,
}

/// One difference between records and kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Attachment key, link name, `tables`, or [`NODE`].
    pub subject: String,
    /// Whether it was repaired.
    pub outcome: Outcome,
    /// The difference and the repair, or the error.
    pub message: String,
    /// Pod of an attachment, if its name is known.
    pub pod: Option<PodName>,
}

/// Result of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The kernel matches the record again.
    Repaired,
    /// The attachment had no pod any longer and was removed.
    Removed,
    /// The object may belong to other software and was not touched.
    LeftAlone,
    /// The repair failed; the next reconciliation tries again.
    Failed,
}

impl Report {
    /// Returns whether a repair has failed.
    pub fn has_failed(&self) -> bool {
        self.items.iter().any(Item::has_failed)
    }

    /// Returns success if no repair has failed, and otherwise an error with the first failure.
    pub(crate) fn finished(&self) -> Result<(), EngineError> {
        match self.items.iter().find(|item| item.has_failed()) {
            Some(failed) => Err(EngineError::Unfinished(failed.message.clone())),
            None => Ok(()),
        }
    }
}

impl Item {
    /// Returns whether the repair failed.
    pub fn has_failed(&self) -> bool {
        self.outcome == Outcome::Failed
    }

    pub(crate) fn log(&self) {
        let Self {
            subject,
            outcome,
            message,
            ..
        } = self;
        match outcome {
            Outcome::Repaired => tracing::info!(subject, "repaired: {message}"),
            Outcome::Removed => tracing::info!(subject, "removed: {message}"),
            Outcome::LeftAlone => tracing::warn!(subject, "left alone: {message}"),
            Outcome::Failed => tracing::error!(subject, "repair failed: {message}"),
        }
    }

    pub(crate) fn failed(subject: &str, message: String) -> Self {
        Self {
            subject: subject.to_owned(),
            outcome: Outcome::Failed,
            message,
            pod: None,
        }
    }

    /// Returns the item with the name of the pod that it concerns.
    pub(crate) fn of_pod(self, pod: Option<PodName>) -> Self {
        Self { pod, ..self }
    }

    pub(crate) fn repaired(subject: String, found: String, results: Vec<StepResult>) -> Self {
        let mut failures = crate::transaction::failures(results);
        if let Some(rest @ 1..) = failures.len().checked_sub(MAX_LISTED) {
            failures.truncate(MAX_LISTED);
            failures.push(format!("and {rest} more"));
        }
        if failures.is_empty() {
            Self {
                subject,
                outcome: Outcome::Repaired,
                message: found,
                pod: None,
            }
        } else {
            Self::failed(&subject, format!("{found}: {}", failures.join("; ")))
        }
    }
}

/// Returns one report item for each executed step.
pub(crate) fn steps(subject: &str, results: Vec<StepResult>) -> impl Iterator<Item = Item> {
    results.into_iter().map(|StepResult { step, failure }| {
        let outcome = match &failure {
            Some(_) => Outcome::Failed,
            None => Outcome::Repaired,
        };
        Item {
            subject: subject.to_owned(),
            outcome,
            message: failure.unwrap_or(step),
            pod: None,
        }
    })
}
