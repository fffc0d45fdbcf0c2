//! The datapath log: records that programs write become lines of the agent's log, with the names of
//! pods, under the target [`DATAPATH`].
//!
//! A thread of the kernel crate reads the records. A task names the pods and logs. A flood is
//! bounded: the agent logs some records of each second and counts the others, and beyond a number
//! of those it stops reading, so that the ring buffer loses the rest.

mod budget;
mod line;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine::Handle;
use kernel::{DatapathLog, DatapathLogRecord, follow_datapath_log};
use model::DatapathLogLevel;
use tokio::sync::{mpsc, oneshot};
use tokio::time::interval;

use self::budget::{Budget, Decision};
use super::log::DATAPATH;
use super::owners::Owners;

/// Records that wait for the names of their pods.
const QUEUED: usize = 512;
/// Interval between two reports of suppressed lines.
const SUPPRESSED_INTERVAL: Duration = Duration::from_secs(1);

/// Reads the datapath log of the current programs, while it is not off.
#[derive(Debug)]
pub(crate) struct DatapathLogReader {
    handle: Handle,
    reading: Mutex<Option<Reading>>,
}

/// A thread that reads. It ends when this is dropped.
#[derive(Debug)]
struct Reading {
    program: u32,
    _stop: oneshot::Sender<()>,
}

impl DatapathLogReader {
    pub(crate) fn new(handle: Handle) -> Self {
        Self {
            handle,
            reading: Mutex::default(),
        }
    }

    /// Reads the log of the programs that are current now, and no other. To be called after each
    /// change of its level, inside of a tokio runtime.
    pub(crate) fn follow(&self) {
        let DatapathLog { level, program } = self.handle.status().datapath_log;
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        if level == DatapathLogLevel::Off {
            *reading = None;
            return;
        }
        if reading.as_ref().is_some_and(|it| it.program == program) {
            return;
        }
        *reading = None;
        match self.read(program) {
            Ok(stop) => {
                *reading = Some(Reading {
                    program,
                    _stop: stop,
                });
            }
            Err(error) => {
                let error = engine::EngineError::from(error);
                tracing::warn!(%error, "the datapath log is not shown");
            }
        }
    }

    fn read(&self, program: u32) -> Result<oneshot::Sender<()>, kernel::ObserveError> {
        let (stop, stopped) = oneshot::channel();
        let (sender, records) = mpsc::channel(QUEUED);
        let suppressed = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&suppressed);
        let budget = Mutex::new(Budget::new(Instant::now()));
        follow_datapath_log(program, stopped, move |record| {
            let decision = budget
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .decide(Instant::now());
            let is_sent = decision == Decision::Log && sender.try_send(record).is_ok();
            if !is_sent {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            if let Decision::Wait(time) = decision {
                std::thread::sleep(time);
            }
        })?;
        tokio::spawn(write(self.handle.clone(), records, suppressed));
        Ok(stop)
    }
}

/// Logs records until the thread that reads them has ended, and how many were suppressed.
async fn write(
    handle: Handle,
    mut records: mpsc::Receiver<DatapathLogRecord>,
    suppressed: Arc<AtomicU64>,
) {
    let mut owners = Owners::default();
    let mut tick = interval(SUPPRESSED_INTERVAL);
    loop {
        tokio::select! {
            record = records.recv() => {
                let Some(record) = record else {
                    return report(&suppressed);
                };
                let key = (record.slot, record.generation);
                owners.refresh(&handle, [key].into_iter()).await;
                line::log(&record, owners.get(key));
            }
            _ = tick.tick() => report(&suppressed),
        }
    }
}

fn report(suppressed: &AtomicU64) {
    let lines = suppressed.swap(0, Ordering::Relaxed);
    if lines > 0 {
        tracing::warn!(
            target: DATAPATH,
            lines,
            "lines suppressed, or more: the datapath logs faster than the agent"
        );
    }
}
