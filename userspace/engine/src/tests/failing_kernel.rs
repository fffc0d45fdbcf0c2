//! Kernel that fails or crashes the agent at a chosen call.
//!
//! A crash is a panic through the engine: nothing is undone and nothing is written after it, as
//! with `kill -9`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use kernel::fake::{Errno, Fake};
use kernel::{DatapathLog, Kernel, Measured, Observe, ObserveError, StepError};
use model::DatapathLogLevel;
use steps::{Question, Step, TrackedConnection};

/// Injected failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// No failure.
    Live,
    /// The call after this number of calls fails without an effect.
    Fail(usize),
    /// The agent crashes before the call after this number of calls.
    Die(usize),
}

#[derive(Clone)]
pub(super) struct FailingKernel {
    fake: Fake,
    fate: Arc<Mutex<Fate>>,
    calls: Arc<AtomicUsize>,
}

impl FailingKernel {
    pub(super) fn new(fake: Fake) -> Self {
        Self {
            fake,
            fate: Arc::new(Mutex::new(Fate::Live)),
            calls: Arc::default(),
        }
    }

    pub(super) fn meet(&self, fate: Fate) {
        *self.fate.lock().unwrap() = fate;
    }

    /// Cancels the injected failure; returns whether it had not happened yet.
    pub(super) fn live(&self) -> bool {
        let mut fate = self.fate.lock().unwrap();
        let was_waiting = *fate != Fate::Live;
        *fate = Fate::Live;
        was_waiting
    }

    /// Returns the number of observations and executed steps.
    pub(super) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    fn call(&self) -> Result<(), io::Error> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut fate = self.fate.lock().unwrap();
        match *fate {
            Fate::Live => {}
            Fate::Fail(0) => {
                *fate = Fate::Live;
                return Err(Errno::EIO.into());
            }
            Fate::Fail(left) => *fate = Fate::Fail(left - 1),
            Fate::Die(0) => {
                *fate = Fate::Live;
                drop(fate);
                resume_unwind(Box::new("the agent dies"));
            }
            Fate::Die(left) => *fate = Fate::Die(left - 1),
        }
        Ok(())
    }
}

/// Runs a part of the agent; `None` if it crashes.
pub(super) fn survive<T>(part: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(part)).ok()
}

impl<Q: Question> Observe<Q> for FailingKernel
where
    Fake: Observe<Q>,
{
    fn observe(&mut self, question: &Q) -> Result<Q::Answer, ObserveError> {
        let call = "observe".to_owned();
        self.call()
            .map_err(|source| ObserveError { call, source })?;
        self.fake.observe(question)
    }
}

impl Kernel for FailingKernel {
    fn datapath_log(&self) -> DatapathLog {
        self.fake.datapath_log()
    }

    fn set_datapath_log(&mut self, level: DatapathLogLevel) -> Result<(), ObserveError> {
        self.fake.set_datapath_log(level)
    }

    fn execute(&mut self, step: &Step) -> Result<(), StepError> {
        let call = step.to_string();
        self.call().map_err(|source| StepError { call, source })?;
        self.fake.execute(step)
    }

    fn measure(&mut self) -> Result<Measured, ObserveError> {
        self.fake.measure()
    }

    fn sent(
        &mut self,
        slots: &BTreeSet<u32>,
    ) -> Result<BTreeMap<u32, abi::Counters>, ObserveError> {
        self.fake.sent(slots)
    }

    fn translated_connections(
        &mut self,
        addresses: &BTreeSet<IpAddr>,
    ) -> Result<Vec<TrackedConnection>, ObserveError> {
        self.fake.translated_connections(addresses)
    }

    fn make_flow(&mut self, connection: &TrackedConnection) -> Result<bool, ObserveError> {
        self.fake.make_flow(connection)
    }
}
