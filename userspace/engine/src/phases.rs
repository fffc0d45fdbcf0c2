//! Measures the phases of ADD and DEL: one reading of the clock at the end of each.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use kernel::StepError;
use steps::Step;

use crate::error::chain;
use crate::trace::{Recorder, TimeSpan, TracedPhase, TracedStep};

/// A phase of an ADD or DEL. One that occurs several times counts once, with its whole time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Waiting in the queue, behind other requests.
    Queue,
    /// ADD: observing the network, and making or repairing it.
    Network,
    /// Observing the namespace and the links of the attachment.
    Observe,
    /// Choosing addresses and planning the steps.
    Plan,
    /// Writing the record and the reservations of ports.
    Record,
    /// Executing the steps.
    Apply,
    /// Undoing the steps of a failed command.
    Undo,
    /// Updating the filter tables and the status before the answer.
    Publish,
    /// ADD: comparing the attachment with its record, after the answer.
    Verify,
}

impl Phase {
    /// All phases, in their order.
    pub const ALL: [Self; 9] = [
        Self::Queue,
        Self::Network,
        Self::Observe,
        Self::Plan,
        Self::Record,
        Self::Apply,
        Self::Undo,
        Self::Publish,
        Self::Verify,
    ];

    /// Returns the name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Network => "network",
            Self::Observe => "observe",
            Self::Plan => "plan",
            Self::Record => "record",
            Self::Apply => "apply",
            Self::Undo => "undo",
            Self::Publish => "publish",
            Self::Verify => "verify",
        }
    }
}

/// Time of each phase of a command. A phase that the command did not have is `None`.
pub(crate) type PhaseTimes = [Option<Duration>; Phase::ALL.len()];

/// Measures the command that the engine executes, between `start` and `finish`.
#[derive(Debug, Default)]
pub(crate) struct Stopwatch {
    running: Option<Running>,
}

/// Measurement of a command.
#[derive(Debug)]
struct Running {
    /// End of the phase before.
    since: Instant,
    times: PhaseTimes,
    /// `None` if the command is not traced.
    trace: Option<Trace>,
}

/// What is recorded of a command so far.
#[derive(Debug)]
struct Trace {
    recorder: Recorder,
    phases: Vec<TracedPhase>,
    /// Steps since the end of the phase before.
    steps: Vec<TracedStep>,
}

impl Stopwatch {
    /// Starts with a command that was queued at this time. With a recorder, it is traced.
    pub(crate) fn start(&mut self, queued_at: Instant, recorder: Option<Recorder>) {
        self.running = Some(Running {
            since: queued_at,
            times: PhaseTimes::default(),
            trace: recorder.map(|recorder| Trace {
                recorder,
                phases: Vec::new(),
                steps: Vec::new(),
            }),
        });
        self.end(Phase::Queue);
    }

    /// Returns the recorder of the command, if it is traced.
    pub(crate) fn recorder(&self) -> Option<Recorder> {
        let trace = self.running.as_ref()?.trace.as_ref()?;
        Some(trace.recorder.clone())
    }

    /// Executes a step, and records it if the command is traced.
    pub(crate) fn step<T>(
        &mut self,
        step: &Step,
        execute: impl FnOnce() -> Result<T, StepError>,
    ) -> Result<T, StepError> {
        let Some(trace) = self.running.as_mut().and_then(|it| it.trace.as_mut()) else {
            return execute();
        };
        let begun = Instant::now();
        let result = execute();
        trace.steps.push(TracedStep {
            name: step.name(),
            text: step.to_string(),
            span: TimeSpan::since(begun),
            failure: result.as_ref().err().map(|error| chain(error)),
        });
        result
    }

    /// Ends a phase, which has the time since the end of the one before. Without a command that is
    /// measured, does nothing.
    pub(crate) fn end(&mut self, phase: Phase) {
        self.end_with(phase, None);
    }

    /// Ends a phase that has failed.
    pub(crate) fn fail(&mut self, phase: Phase, failure: impl FnOnce() -> String) {
        let is_traced = self.running.as_ref().is_some_and(|it| it.trace.is_some());
        self.end_with(phase, is_traced.then(failure));
    }

    fn end_with(&mut self, phase: Phase, failure: Option<String>) {
        let Some(running) = &mut self.running else {
            return;
        };
        let span = TimeSpan::since(running.since);
        *running.times[phase as usize].get_or_insert_default() +=
            span.ended.duration_since(span.begun);
        running.since = span.ended;
        if let Some(trace) = &mut running.trace {
            trace.phases.push(TracedPhase {
                phase,
                span,
                steps: std::mem::take(&mut trace.steps),
                failure,
            });
        }
    }

    /// Returns the times of all phases that have ended, and hands a traced command to its
    /// recorder.
    pub(crate) fn finish(&mut self) -> PhaseTimes {
        let Some(Running { times, trace, .. }) = self.running.take() else {
            return PhaseTimes::default();
        };
        if let Some(trace) = trace {
            trace.recorder.record(trace.phases);
        }
        times
    }
}

type Listen = dyn Fn(&'static str, Phase, Duration) + Send + Sync;

/// The listener of measured phases, if there is one.
#[derive(Clone, Default)]
pub(crate) struct PhaseListener(Arc<OnceLock<Box<Listen>>>);

impl PhaseListener {
    /// Sets the listener; later ones are ignored.
    pub(crate) fn set(&self, listen: Box<Listen>) {
        let _first = self.0.set(listen);
    }

    /// Reports the phases of a command.
    pub(crate) fn report(&self, command: &'static str, times: &PhaseTimes) {
        for (phase, time) in Phase::ALL.into_iter().zip(times) {
            if let Some(time) = time {
                self.report_one(command, phase, *time);
            }
        }
    }

    /// Reports one phase of a command.
    pub(crate) fn report_one(&self, command: &'static str, phase: Phase, time: Duration) {
        if let Some(listen) = self.0.get() {
            listen(command, phase, time);
        }
    }
}

impl fmt::Debug for PhaseListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PhaseListener")
    }
}
