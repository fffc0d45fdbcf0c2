//! Executes plans, either up to the first failure with a rollback, or through to the end.
//!
//! A [`Transaction`] stops at the first failed step and can undo those before it. [`execute_all`]
//! goes on after failures and returns all of them. Neither depends on records or networks.

use std::borrow::Cow;

use kernel::{Kernel, StepError};
use model::ContainerId;
use planner::{Plan, PortRuntime};
use steps::{Step, TunnelStep};

use crate::EngineError;
use crate::error::chain;
use crate::phases::Stopwatch;

/// Steps that undo what was executed, in the order of execution.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    undo: Vec<Step>,
    /// Container whose runtime may have bound the ports to reserve.
    container: Option<ContainerId>,
    /// [`PortRuntime::binder`].
    binder: Option<u32>,
}

impl Transaction {
    /// Returns a transaction, for an attachment of this container if there is one.
    pub(crate) fn of(container: Option<&ContainerId>) -> Self {
        Self {
            container: container.cloned(),
            ..Self::default()
        }
    }

    /// Leaves ports to this process of the runtime as well, if it has bound them already.
    pub(crate) fn leave_bound_ports(&mut self, binder: Option<u32>) {
        self.binder = binder;
    }

    fn runtime(&self) -> Option<PortRuntime<'_>> {
        self.container.as_ref().map(|container| PortRuntime {
            container,
            binder: self.binder,
        })
    }

    /// Executes `plan` up to its first failure. `phases` records the steps.
    pub(crate) fn apply(
        &mut self,
        kernel: &mut impl Kernel,
        phases: &mut Stopwatch,
        plan: &Plan,
    ) -> Result<(), EngineError> {
        for step in plan.steps() {
            let done = phases
                .step(step, || execute_or_leave(kernel, step, self.runtime()))
                .map_err(|source| step_error(step, source))?;
            self.undo.extend(done.undo());
        }
        Ok(())
    }

    /// Undoes everything that was executed and returns what could not be undone, one line for each
    /// step.
    pub(crate) fn roll_back(self, kernel: &mut impl Kernel, phases: &mut Stopwatch) -> Vec<String> {
        // In reverse order: a later step may depend on an earlier one.
        self.undo
            .iter()
            .rev()
            .filter_map(|step| execute_step(kernel, phases, step, self.runtime()).failure)
            .collect()
    }
}

/// Executes a step, and returns it. A port that the runtime of the container has bound is left to
/// the runtime.
fn execute_or_leave<'a>(
    kernel: &mut impl Kernel,
    step: &'a Step,
    runtime: Option<PortRuntime<'_>>,
) -> Result<Cow<'a, Step>, StepError> {
    let Err(error) = kernel.execute(step) else {
        return Ok(Cow::Borrowed(step));
    };
    let leave = error
        .port_in_use()
        .zip(runtime)
        .and_then(|(in_use, runtime)| planner::leave_to_runtime(step, &in_use.processes, runtime));
    let Some(leave) = leave else {
        return Err(error);
    };
    kernel.execute(&leave)?;
    Ok(Cow::Owned(leave))
}

fn step_error(step: &Step, source: StepError) -> EngineError {
    match source.port_in_use() {
        Some(in_use) => EngineError::PortInUse(in_use.clone()),
        None => EngineError::Step {
            step: step.to_string(),
            source,
        },
    }
}

/// Result of one executed step.
#[derive(Clone, Debug)]
pub(crate) struct StepResult {
    /// The step, as the planner prints it.
    pub(crate) step: String,
    /// Error with its causes; `None` if the step succeeded.
    pub(crate) failure: Option<String>,
}

/// Executes every step of `plan`, also after failures. A removal whose object is already gone
/// succeeds.
pub(crate) fn execute_all(kernel: &mut impl Kernel, plan: &Plan) -> Vec<StepResult> {
    execute_all_of(kernel, plan, None)
}

/// Executes every step as [`execute_all`] does. `phases` records the steps.
pub(crate) fn execute_all_recorded(
    kernel: &mut impl Kernel,
    phases: &mut Stopwatch,
    plan: &Plan,
) -> Vec<StepResult> {
    plan.steps()
        .iter()
        .map(|step| execute_step(kernel, phases, step, None))
        .collect()
}

/// Executes every step as [`execute_all`] does, for an attachment of a container of `runtime`.
pub(crate) fn execute_all_of(
    kernel: &mut impl Kernel,
    plan: &Plan,
    runtime: Option<PortRuntime<'_>>,
) -> Vec<StepResult> {
    let phases = &mut Stopwatch::default();
    plan.steps()
        .iter()
        .map(|step| execute_step(kernel, phases, step, runtime))
        .collect()
}

/// Returns the failures among executed steps.
pub(crate) fn failures(results: Vec<StepResult>) -> Vec<String> {
    results
        .into_iter()
        .filter_map(|result| result.failure)
        .collect()
}

fn execute_step(
    kernel: &mut impl Kernel,
    phases: &mut Stopwatch,
    step: &Step,
    runtime: Option<PortRuntime<'_>>,
) -> StepResult {
    let executed = phases.step(step, || execute_or_leave(kernel, step, runtime));
    let failure = match executed {
        Err(error) if !(error.is_gone() && removes(step)) => Some(match error.port_in_use() {
            Some(in_use) => in_use.to_string(),
            None => format!("failed to {step}: {}", chain(&error)),
        }),
        Ok(_) | Err(_) => None,
    };
    StepResult {
        step: step.to_string(),
        failure,
    }
}

/// Returns whether the step removes something, so that a missing object fulfils its purpose.
fn removes(step: &Step) -> bool {
    matches!(
        step,
        Step::DeleteBridge { .. }
            | Step::RemoveAddress { .. }
            | Step::DeleteVeth { .. }
            | Step::Detach { .. }
            | Step::ReleasePort { .. }
            | Step::RemoveEntry { .. }
            | Step::Tunnel(TunnelStep::Delete(_))
    )
}
