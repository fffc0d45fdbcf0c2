//! Traces of ADD and DEL: each phase with its steps, and when they began and ended.
//!
//! A request is traced if its task has a recorder ([`traced`]). Without one, the engine reads no
//! clock for its steps.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::phases::Phase;

/// A phase of a traced command. A phase that occurs several times is recorded each time.
#[derive(Clone, Debug)]
pub struct TracedPhase {
    /// The phase.
    pub phase: Phase,
    /// Its time.
    pub span: TimeSpan,
    /// Steps that were executed in it, in their order.
    pub steps: Vec<TracedStep>,
    /// Reason why the phase failed, if it did.
    pub failure: Option<String>,
}

/// An executed step of a traced command.
#[derive(Clone, Debug)]
pub struct TracedStep {
    /// Kind of the step, such as `create veth`.
    pub name: &'static str,
    /// The step, as the planner prints it.
    pub text: String,
    /// Its time.
    pub span: TimeSpan,
    /// Error with its causes; `None` if the step succeeded.
    pub failure: Option<String>,
}

/// From when to when something was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeSpan {
    /// When it began.
    pub begun: Instant,
    /// When it ended.
    pub ended: Instant,
}

impl TimeSpan {
    /// Returns the time from `begun` until now.
    pub(crate) fn since(begun: Instant) -> Self {
        let ended = Instant::now();
        Self { begun, ended }
    }
}

/// Receives the phases of traced commands, on the engine's thread. It must not block.
pub trait TraceRecorder: Send + Sync {
    /// Records phases of a command: all of them after its answer, and its verification later.
    fn record(&self, phases: Vec<TracedPhase>);
}

/// The recorder of a command.
#[derive(Clone)]
pub(crate) struct Recorder(Arc<dyn TraceRecorder>);

tokio::task_local! {
    static CURRENT: Recorder;
}

/// Executes `future`. The engine records the ADDs and DELs that it requests with `recorder`.
pub async fn traced<F: Future>(recorder: Arc<dyn TraceRecorder>, future: F) -> F::Output {
    CURRENT.scope(Recorder(recorder), future).await
}

impl Recorder {
    /// Returns the recorder of the calling task, if it has one.
    pub(crate) fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// See [`TraceRecorder::record`].
    pub(crate) fn record(&self, phases: Vec<TracedPhase>) {
        self.0.record(phases);
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorder")
    }
}
