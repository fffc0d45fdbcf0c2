//! Measures the phases of ADD and DEL: one reading of the clock at the end of each.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

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
    running: Option<(Instant, PhaseTimes)>,
}

impl Stopwatch {
    /// Starts with a command that was queued at this time.
    pub(crate) fn start(&mut self, queued_at: Instant) {
        self.running = Some((queued_at, PhaseTimes::default()));
        self.end(Phase::Queue);
    }

    /// Ends a phase, which has the time since the end of the one before. Without a command that is
    /// measured, does nothing.
    pub(crate) fn end(&mut self, phase: Phase) {
        if let Some((since, times)) = &mut self.running {
            let now = Instant::now();
            *times[phase as usize].get_or_insert_default() += now.duration_since(*since);
            *since = now;
        }
    }

    /// Returns the times of all phases that have ended.
    pub(crate) fn finish(&mut self) -> PhaseTimes {
        self.running
            .take()
            .map(|(_, times)| times)
            .unwrap_or_default()
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
