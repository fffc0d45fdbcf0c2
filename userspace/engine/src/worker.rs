//! The engine's thread: executes queued requests one after the other and answers them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kernel::Kernel;
use model::Attachment;
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, broadcast, mpsc, watch};
use tokio::time::timeout;
use tracing::Span;

use crate::background::{Background, BackgroundTask};
use crate::cancellation::RequestState;
use crate::commands::{Command, Reply, Title};
use crate::operations::{OperationGuard, Operations};
use crate::phases::{Phase, PhaseListener};
use crate::trace::Recorder;
use crate::{AttachedPods, Engine, EngineError, Report, Status, Uninstalled};

/// Request in the queue.
pub(crate) struct Queued {
    pub(crate) message: Message,
    pub(crate) state: Arc<RequestState>,
    /// Tracing span of the caller; log lines of the execution belong to it.
    pub(crate) span: Span,
    /// Permit of an ADD to wait in the queue; released when the ADD starts.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
    /// Entry in the list of operations of `viaductctl status`.
    pub(crate) operation: OperationGuard,
    /// Recorder of the caller, if it traces the request.
    pub(crate) recorder: Option<Recorder>,
}

/// Content of a request.
pub(crate) enum Message {
    Command(Command),
    /// Removes everything and ends the engine.
    Uninstall(AttachedPods, Cleanup, Reply<Uninstalled>),
}

impl Message {
    /// Returns the name of the request and its attachment.
    pub(crate) fn title(&self) -> Title<'_> {
        match self {
            Self::Command(command) => command.title(),
            Self::Uninstall(..) => ("uninstall", None),
        }
    }
}

/// Removes pins and records after the engine has closed them; returns the reason of a failure.
pub(crate) type Cleanup = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// Time without requests after which background tasks run. A runtime that sends its next request at
/// once does not wait for them.
const IDLE_TIME: Duration = Duration::from_millis(10);

/// Engine with its queue of requests.
pub(crate) struct Worker<K> {
    pub(crate) engine: Engine<K>,
    pub(crate) background: Background,
    pub(crate) queue: mpsc::Receiver<Queued>,
    /// Runtime for waiting on the queue with a timeout.
    pub(crate) clock: Runtime,
    pub(crate) publish: watch::Sender<Arc<Status>>,
    pub(crate) reports: broadcast::Sender<Arc<Report>>,
    /// Report that was sent last.
    pub(crate) reported: Option<Arc<Report>>,
    pub(crate) operations: Operations,
    pub(crate) phases: PhaseListener,
}

impl<K: Kernel> Worker<K> {
    /// Executes requests until all handles are dropped or the node is uninstalled.
    pub(crate) fn run(mut self) {
        while let Some(next) = self.next_request() {
            let Queued {
                message,
                state,
                span,
                permit,
                operation,
                recorder,
            } = next;
            drop(permit);
            let _entered = span.entered();
            if !state.start() {
                answer_cancelled(message);
                continue;
            }
            let queued_at = operation.set_running();
            match message {
                Message::Uninstall(attached, cleanup, reply) => {
                    match self.engine.uninstall(attached) {
                        Ok(done) => return self.finish_uninstall(done, cleanup, reply),
                        failed => {
                            self.publish();
                            answer(reply, failed);
                        }
                    }
                }
                Message::Command(command) => match command.measured_as() {
                    Some(name) => {
                        self.engine.phases.start(queued_at, recorder);
                        self.execute_measured(name, command);
                    }
                    None => self.execute(command),
                },
            }
        }
    }

    /// Executes a command whose measurement has started, and reports its phases after its answer.
    fn execute_measured(&mut self, name: &'static str, command: Command) {
        self.execute(command);
        self.phases.report(name, &self.engine.phases.finish());
    }

    /// Returns the next request. Runs background tasks after [`IDLE_TIME`] without one.
    fn next_request(&mut self) -> Option<Queued> {
        while self.background == Background::WhenIdle && self.engine.has_background_tasks() {
            let waited = self.clock.block_on(async {
                let next = self.queue.recv();
                timeout(IDLE_TIME, next).await
            });
            match waited {
                Ok(next) => return next,
                Err(_elapsed) => self.run_background_tasks(),
            }
        }
        self.queue.blocking_recv()
    }

    /// Runs background tasks until a request arrives or none is left.
    fn run_background_tasks(&mut self) {
        while self.queue.is_empty() {
            let engine = &mut self.engine;
            let begun = Instant::now();
            let done = self
                .operations
                .in_background(|| engine.run_background_task());
            if done == Some(BackgroundTask::Verified) {
                self.phases
                    .report_one("add", Phase::Verify, begun.elapsed());
            }
            match done {
                Some(BackgroundTask::Reconciled) => self.publish(),
                Some(
                    BackgroundTask::Verified
                    | BackgroundTask::Compacted
                    | BackgroundTask::TcxAttached
                    | BackgroundTask::PortsChecked,
                ) => {}
                None => return,
            }
        }
    }

    /// Closes kernel and records, and then runs `cleanup`, which removes them. Requests that still
    /// wait get [`EngineError::Stopped`].
    fn finish_uninstall(self, done: Uninstalled, cleanup: Cleanup, reply: Reply<Uninstalled>) {
        let _uninstall = crash::verb("uninstall");
        let Self { engine, queue, .. } = self;
        drop((engine, queue));
        let result = cleanup().map_err(EngineError::Unfinished);
        answer(reply, result.map(|()| done));
    }

    /// Executes an ADD as [`Worker::change`] does. Answers before it logs: the runtime does not
    /// wait for the log.
    pub(crate) fn add(
        &mut self,
        reply: Reply<Attachment>,
        add: impl FnOnce(&mut Engine<K>) -> Result<Attachment, EngineError>,
    ) {
        let mut attached = None;
        self.change(reply, |engine| {
            add(engine).inspect(|attachment| attached = Some(attachment.clone()))
        });
        if let Some(attachment) = attached {
            log_attached(&attachment);
        }
    }

    /// Executes a request that leaves the status as it is.
    pub(crate) fn query<T>(
        &mut self,
        reply: Reply<T>,
        query: impl FnOnce(&mut Engine<K>) -> Result<T, EngineError>,
    ) {
        answer(reply, query(&mut self.engine));
    }

    /// Executes a request of the agent itself, which waits for no answer, and publishes the status.
    pub(crate) fn run_unasked(&mut self, _: Reply<()>, run: impl FnOnce(&mut Engine<K>)) {
        run(&mut self.engine);
        self.publish();
    }

    /// Publishes the status before it answers: a caller with an answer sees its change in the
    /// status.
    pub(crate) fn change<T>(
        &mut self,
        reply: Reply<T>,
        change: impl FnOnce(&mut Engine<K>) -> Result<T, EngineError>,
    ) {
        let result = change(&mut self.engine);
        self.engine.sync_forwarding();
        self.publish();
        self.engine.phases.end(Phase::Publish);
        answer(reply, result);
    }

    /// Publishes the status, and sends a new report to its subscribers. Unlike the status, no
    /// report replaces another.
    pub(crate) fn publish(&mut self) {
        let status = self.engine.status();
        let report = status.last_reconcile.clone();
        self.publish.send_replace(Arc::new(status));
        let is_new = |new: &Arc<Report>| {
            let reported = self.reported.as_ref();
            reported.is_none_or(|old| !Arc::ptr_eq(old, new))
        };
        if let Some(report) = report.filter(is_new) {
            self.reported = Some(Arc::clone(&report));
            // An error means that there is no subscriber.
            let _subscribers = self.reports.send(report);
        }
    }
}

fn log_attached(attached: &Attachment) {
    let key = &attached.key;
    let addresses: Vec<_> = attached
        .addresses
        .iter()
        .map(|own| own.address.to_string())
        .collect();
    tracing::info!(
        %key,
        link = %attached.host_link(),
        ?addresses,
        slot = attached.slot,
        "attached pod interface"
    );
}

/// Answers a cancelled request. Only an ADD that a DEL has cancelled may still have a caller.
fn answer_cancelled(message: Message) {
    if let Message::Command(Command::Add(intent, _, reply)) = message {
        tracing::info!(key = %intent.key, "ADD cancelled while it waited in the queue");
        answer(reply, Err(EngineError::Cancelled(intent.key)));
    }
}

fn answer<T>(reply: Reply<T>, result: Result<T, EngineError>) {
    if reply.send(result).is_err() {
        tracing::debug!("caller went away before the answer");
    }
}
