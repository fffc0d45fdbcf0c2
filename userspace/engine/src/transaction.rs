//! Executing plans: forward with a way back, or through to the end.
//!
//! Applying stops at the first failure and can be undone; carrying out goes on and tells everything that failed. Knows
//! no record and no network.

use kernel::{Kernel, StepError};
use planner::{Plan, Step};

use crate::EngineError;
use crate::error::chain;

/// What undoes the steps that have been done, in the order in which they were done.
#[derive(Debug, Default)]
pub(crate) struct Done {
    undo: Vec<Step>,
}

impl Done {
    /// Executes `plan` up to its first failure.
    pub(crate) fn apply(
        &mut self,
        kernel: &mut impl Kernel,
        plan: &Plan,
    ) -> Result<(), EngineError> {
        for step in plan.steps() {
            kernel
                .execute(step)
                .map_err(|source| because(step, source))?;
            self.undo.extend(step.undo());
        }
        Ok(())
    }

    /// Undoes everything, the last first, and tells what could not be undone.
    pub(crate) fn roll_back(self, kernel: &mut impl Kernel) -> Vec<String> {
        let carried = self.undo.iter().rev().map(|step| carry(kernel, step));
        carried.filter_map(|carried| carried.failure).collect()
    }
}

fn because(step: &Step, source: StepError) -> EngineError {
    match source.port_in_use() {
        Some(in_use) => EngineError::PortInUse(in_use.clone()),
        None => EngineError::Step {
            step: step.to_string(),
            source,
        },
    }
}

/// A step that was tried.
#[derive(Clone, Debug)]
pub(crate) struct Carried {
    /// The step, as the planner prints it.
    pub(crate) step: String,
    /// Why it failed, if it did.
    pub(crate) failure: Option<String>,
}

/// Executes every step of `plan`, whatever becomes of the others. What was to be removed and is gone is done.
pub(crate) fn carry_out(kernel: &mut impl Kernel, plan: &Plan) -> Vec<Carried> {
    plan.steps()
        .iter()
        .map(|step| carry(kernel, step))
        .collect()
}

/// The failures among steps that were tried.
pub(crate) fn failures(carried: Vec<Carried>) -> Vec<String> {
    carried
        .into_iter()
        .filter_map(|carried| carried.failure)
        .collect()
}

fn carry(kernel: &mut impl Kernel, step: &Step) -> Carried {
    let failure = match kernel.execute(step) {
        Err(error) if !(error.is_gone() && removes(step)) => Some(match error.port_in_use() {
            Some(in_use) => in_use.to_string(),
            None => format!("failed to {step}: {}", chain(&error)),
        }),
        Ok(()) | Err(_) => None,
    };
    Carried {
        step: step.to_string(),
        failure,
    }
}

/// Whether the step's purpose is fulfilled when its object is not there.
fn removes(step: &Step) -> bool {
    matches!(
        step,
        Step::DeleteBridge { .. }
            | Step::RemoveAddress { .. }
            | Step::DeleteVeth { .. }
            | Step::Detach { .. }
            | Step::ReleasePort { .. }
            | Step::RemoveEntry { .. }
    )
}
