//! Runs the engine on a thread of its own, and sends it requests.
//!
//! All requests go through one queue of bounded length, so there is one writer and no lock.
//!
//! * A request that has started is finished or rolled back even if its caller goes away (behaviour
//!   A4).
//! * An ADD or a query whose caller goes away before the start is not executed.
//! * A request that does not start in time, or finds the queue full, fails with an error that means
//!   "try again".
//!
//! This module reads no clock: callers pass the time.

mod kept_networks;
mod migration;
mod refused_add;
mod tuning;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kernel::{Kernel, Measured};
use model::{
    Attachment, AttachmentKey, Bandwidth, Cidr, HairpinMode, IfName, IngressPolicy, Intent,
    NetnsPath, PortMapping, RangeSet, Record,
};
use planner::NodeCondition;
use steps::PodSide;
use tokio::runtime::Builder;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc, oneshot, watch};
use tokio::time::sleep;
use tracing::Span;

use crate::background::Background;
use crate::cancellation::{CancelOnDrop, PendingAdds, RequestState};
use crate::commands::{Command, Reply};
use crate::operations::{Operation, Operations};
use crate::phases::{Phase, PhaseListener};
use crate::trace::Recorder;
use crate::worker::{Message, Queued, Worker};
use crate::{
    AttachedPods, ChainedUpdate, ConfigChange, Degraded, Engine, EngineError, FirewallUpdate,
    GcResult, GcScope, LimitChange, Ports, Report, Status, Uninstalled, UpdateOutcome,
};

/// ADDs that may wait in the queue. A node starts at most some hundreds of pods at once; further
/// ADDs are refused with [`EngineError::QueueFull`].
const MAX_QUEUED_ADDS: usize = 256;
/// Requests that may wait in the queue. Twice the ADDs, so that DELs, which free addresses and
/// ports for ADDs, always find room.
const QUEUE_LENGTH: usize = 2 * MAX_QUEUED_ADDS;
/// Reports that a subscriber may fall behind before it loses some.
const REPORT_BUFFER: usize = 64;
/// Time that a request may wait in the queue. Shorter than the minute after which a plugin gives
/// up, so that the plugin gets the error.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(50);

/// Time after which running work counts as stuck. Requests take milliseconds, and reconciliations
/// of large nodes a second.
const STUCK_AFTER: Duration = Duration::from_secs(5);

/// Requests that are queued at most once at a time: whether one waits.
#[derive(Clone, Debug, Default)]
struct Waits {
    reconcile: Arc<AtomicBool>,
    sweep: Arc<AtomicBool>,
}

/// Client of the engine. The engine's thread ends when the last handle is dropped and the queue is
/// empty.
#[derive(Clone, Debug)]
pub struct Handle {
    commands: mpsc::Sender<Queued>,
    states: watch::Receiver<Arc<Status>>,
    reports: broadcast::Sender<Arc<Report>>,
    /// Whether a reconciliation, or a sweep, waits in the queue: at most one of each does.
    waits: Waits,
    is_default_wanted: Arc<AtomicBool>,
    adds: Arc<PendingAdds>,
    add_permits: Arc<Semaphore>,
    operations: Operations,
    phases: PhaseListener,
}

/// Starts the engine's thread and waits until `start` has made the engine there. A kernel belongs
/// to the thread that opened it.
pub fn spawn<K, E, F>(start: F) -> Result<(Handle, JoinHandle<()>), E>
where
    K: Kernel + 'static,
    E: From<io::Error> + Send + 'static,
    F: FnOnce() -> Result<Engine<K>, E> + Send + 'static,
{
    spawn_with(Background::WhenIdle, start)
}

/// Starts the engine's thread as [`spawn`] does; `background` states when it runs background tasks.
pub fn spawn_with<K, E, F>(background: Background, start: F) -> Result<(Handle, JoinHandle<()>), E>
where
    K: Kernel + 'static,
    E: From<io::Error> + Send + 'static,
    F: FnOnce() -> Result<Engine<K>, E> + Send + 'static,
{
    let (commands, queue) = mpsc::channel(QUEUE_LENGTH);
    let (publish, states) = watch::channel(Arc::default());
    let reports = broadcast::Sender::new(REPORT_BUFFER);
    let is_default_wanted = Arc::new(AtomicBool::default());
    let handle = Handle {
        commands,
        states,
        reports: reports.clone(),
        waits: Waits::default(),
        is_default_wanted: Arc::clone(&is_default_wanted),
        adds: Arc::default(),
        add_permits: Arc::new(Semaphore::new(MAX_QUEUED_ADDS)),
        operations: Operations::default(),
        phases: PhaseListener::default(),
    };
    let (operations, phases) = (handle.operations.clone(), handle.phases.clone());
    let (report, started) = oneshot::channel();
    let clock = Builder::new_current_thread().enable_time().build()?;
    let name = thread::Builder::new().name("engine".to_owned());
    let thread = name.spawn(move || match start() {
        Ok(mut engine) => {
            engine.choices.is_default_wanted = is_default_wanted;
            operations.set_thread();
            let mut worker = Worker {
                engine,
                background,
                queue,
                clock,
                publish,
                reports,
                reported: None,
                operations,
                phases,
            };
            worker.publish();
            if report.send(Ok(())).is_ok() {
                worker.run();
            }
        }
        Err(error) => drop(report.send(Err(error))),
    })?;
    match started.blocking_recv() {
        Ok(result) => result.map(|()| (handle, thread)),
        Err(_) => Err(io::Error::other("the engine's thread panicked while it started").into()),
    }
}

impl Handle {
    /// Sets the listener of the phases of ADD (`add`) and DEL (`del`). The engine's thread calls it
    /// after the answer, once for each phase that a command had, with its time.
    pub fn set_phase_listener(
        &self,
        listen: impl Fn(&'static str, Phase, Duration) + Send + Sync + 'static,
    ) {
        self.phases.set(Box::new(listen));
    }

    /// Makes an attachment; `now` is in seconds since 1970.
    pub async fn add(&self, intent: Intent, now: u64) -> Result<Attachment, EngineError> {
        let permit = self.add_permit()?;
        let state = self.adds.register(&intent.key);
        let _cancel = CancelOnDrop(&state);
        let add = |reply| Message::Command(Command::Add(Box::new(intent), now, reply));
        self.enqueue(&state, Some(permit), add).await
    }

    /// Executes the second phase of an ADD: assigns the addresses that a foreign IPAM plugin
    /// allocated.
    pub async fn complete(&self, intent: Intent) -> Result<Attachment, EngineError> {
        self.execute(|reply| Command::Complete(Box::new(intent), reply))
            .await
    }

    /// Removes an attachment and cancels ADDs for it that wait in the queue (behaviour A3).
    pub async fn del(&self, key: AttachmentKey) -> Result<(), EngineError> {
        self.adds.cancel(&key);
        self.execute(|reply| Command::Del(key, reply)).await
    }

    /// Compares an attachment with its record and returns the recorded attachment.
    pub async fn check(&self, key: AttachmentKey) -> Result<Attachment, EngineError> {
        self.query(|reply| Command::Check(key, None, reply)).await
    }

    /// Compares as [`Handle::check`] does, but only the routes to `wanted`.
    pub async fn check_wanted(
        &self,
        key: AttachmentKey,
        wanted: BTreeSet<Cidr>,
    ) -> Result<Attachment, EngineError> {
        self.query(|reply| Command::Check(key, Some(wanted), reply))
            .await
    }

    /// Removes attachments that a runtime does not list (CNI GC).
    pub async fn collect(&self, scope: GcScope) -> Result<GcResult, EngineError> {
        self.execute(|reply| Command::Gc(scope, reply)).await
    }

    /// Executes a request of a chained plugin: adopts or updates an interface. `now` is in seconds
    /// since 1970.
    pub async fn adopt_or_update(
        &self,
        update: ChainedUpdate,
        now: u64,
    ) -> Result<Attachment, EngineError> {
        let permit = self.add_permit()?;
        let state = Arc::default();
        let _cancel = CancelOnDrop(&state);
        let command = |reply| Command::AdoptOrUpdate(Box::new(update), now, reply);
        let message = |reply| Message::Command(command(reply));
        self.enqueue(&state, Some(permit), message).await
    }

    /// See [`Engine::add_firewall`].
    pub async fn add_firewall(&self, update: FirewallUpdate) -> Result<(), EngineError> {
        self.execute(|reply| Command::AddFirewall(Box::new(update), reply))
            .await
    }

    /// Clears the ingress policy of the attachments with these keys.
    pub async fn clear_ingress_policy(&self, keys: Vec<AttachmentKey>) -> Result<(), EngineError> {
        self.execute(|reply| Command::ClearIngressPolicy(keys, reply))
            .await
    }

    /// Unpublishes the ports and removes the limits of the attachments with these keys.
    pub async fn unpublish_ports(&self, keys: Vec<AttachmentKey>) -> Result<(), EngineError> {
        self.execute(|reply| Command::UnpublishPorts(keys, reply))
            .await
    }

    /// Returns an error unless an attachment with one of these keys publishes these ports and has
    /// this ingress policy.
    pub async fn check_chained(
        &self,
        keys: Vec<AttachmentKey>,
        ports: BTreeSet<PortMapping>,
        ingress: Option<IngressPolicy>,
    ) -> Result<(), EngineError> {
        self.query(|reply| Command::CheckChained(keys, ports, ingress, reply))
            .await
    }

    /// Sets the loopback interface of a pod up or down.
    pub async fn set_loopback(&self, netns: NetnsPath, up: bool) -> Result<(), EngineError> {
        self.query(|reply| Command::SetLoopback(netns, up, reply))
            .await
    }

    /// Returns the records of all attachments, in any state.
    pub async fn attachments(&self) -> Result<Vec<Record>, EngineError> {
        self.query(Command::Attachments).await
    }

    /// Returns the state of any interface in a namespace, ours or foreign; `None` if there is none
    /// of this name.
    pub async fn inspect_interface(
        &self,
        netns: NetnsPath,
        ifname: IfName,
    ) -> Result<Option<PodSide>, EngineError> {
        self.query(|reply| Command::InspectInterface(netns, ifname, reply))
            .await
    }

    /// Replaces the pod CIDRs of the default network.
    pub async fn set_pod_cidrs(&self, ranges: Vec<RangeSet>) -> Result<UpdateOutcome, EngineError> {
        self.execute(|reply| Command::SetPodCidrs(ranges, reply))
            .await
    }

    /// Sets the hairpin mode of the default network; `now` is in seconds since 1970.
    pub async fn set_hairpin_mode(
        &self,
        mode: HairpinMode,
        now: u64,
    ) -> Result<UpdateOutcome, EngineError> {
        self.execute(|reply| Command::SetHairpinMode(mode, now, reply))
            .await
    }

    /// Changes the bandwidth limits of an attachment and returns the new ones.
    pub async fn set_limits(
        &self,
        key: AttachmentKey,
        change: LimitChange,
    ) -> Result<Bandwidth, EngineError> {
        self.execute(|reply| Command::SetLimits(key, change, reply))
            .await
    }

    /// Returns the published ports of the node and their reservations.
    pub async fn ports(&self) -> Result<Ports, EngineError> {
        self.query(Command::Ports).await
    }

    /// Reads the counters of the datapath.
    pub async fn measure(&self) -> Result<Measured, EngineError> {
        self.query(Command::Measure).await
    }

    /// Returns the non-masquerade CIDRs.
    pub async fn non_masquerade(&self) -> Result<BTreeSet<Cidr>, EngineError> {
        self.query(Command::NonMasquerade).await
    }

    /// Replaces the non-masquerade CIDRs.
    pub async fn set_non_masquerade(&self, prefixes: BTreeSet<Cidr>) -> Result<(), EngineError> {
        self.execute(|reply| Command::SetNonMasquerade(prefixes, reply))
            .await
    }

    /// Applies the changed values of the configuration; `now` is in seconds since 1970.
    pub async fn configure(&self, change: ConfigChange, now: u64) -> Result<(), EngineError> {
        self.execute(|reply| Command::Configure(Box::new(change), now, reply))
            .await
    }

    /// Returns after all earlier requests: the engine is alive.
    pub async fn pulse(&self) -> Result<(), EngineError> {
        self.query(Command::Pulse).await
    }

    /// Queues a reconciliation, unless one waits already.
    pub fn reconcile(&self, now: u64) {
        self.enqueue_once(&self.waits.reconcile, |waits, reply| {
            Command::Reconcile(now, waits, reply)
        });
    }

    /// Queues a sweep of expired flows, unless one waits already.
    pub fn sweep(&self) {
        self.enqueue_once(&self.waits.sweep, Command::Sweep);
    }

    /// Records that something needs the default network: without a pod CIDR the agent is degraded
    /// from now on. Returns once the status says so. `now` is in seconds since 1970.
    pub async fn want_default_network(&self, now: u64) {
        if !self.is_default_wanted.swap(true, Ordering::AcqRel) {
            self.reconcile(now);
            // An engine that has stopped has no status.
            let _stopped = self.pulse().await;
        }
    }

    /// Replaces the conditions of the CNI installation, which are part of the status.
    pub async fn set_installation(
        &self,
        conditions: Vec<NodeCondition>,
    ) -> Result<(), EngineError> {
        self.execute(|reply| Command::SetInstallation(conditions, reply))
            .await
    }

    /// Uninstalls Viaduct from the node. Afterwards `cleanup` removes the pins and records that the
    /// engine had open.
    ///
    /// The engine ends, unless the uninstall was refused or failed before `cleanup`.
    pub async fn uninstall(
        &self,
        attached: AttachedPods,
        cleanup: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> Result<Uninstalled, EngineError> {
        let state = Arc::default();
        let _cancel = CancelOnDrop(&state);
        let uninstall = |reply| Message::Uninstall(attached, Box::new(cleanup), reply);
        self.enqueue(&state, None, uninstall).await
    }

    /// Returns the status after the last finished request, without waiting for the running one.
    pub fn status(&self) -> Arc<Status> {
        Arc::clone(&self.states.borrow())
    }

    /// Returns the status as [`Handle::status`] does, with a degradation if the engine is stuck
    /// since.
    pub fn live_status(&self) -> Arc<Status> {
        let status = self.status();
        match self.stuck() {
            None => status,
            Some(stuck) => {
                let mut status = Status::clone(&status);
                status.degraded.push(stuck);
                Arc::new(status)
            }
        }
    }

    /// Returns a degradation if the engine does not end its work: requests behind it wait.
    pub fn stuck(&self) -> Option<Degraded> {
        self.operations
            .stuck(STUCK_AFTER)
            .map(Degraded::EngineStuck)
    }

    /// Returns the requests without an answer, in the order of the queue.
    pub fn operations(&self) -> Vec<Operation> {
        self.operations.list()
    }

    /// Subscribes to the reports of reconciliations.
    pub fn reports(&self) -> broadcast::Receiver<Arc<Report>> {
        self.reports.subscribe()
    }

    /// Sends a request that is not executed if its caller goes away before the start.
    async fn query<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, EngineError> {
        let state = Arc::default();
        let _cancel = CancelOnDrop(&state);
        self.enqueue(&state, None, |reply| Message::Command(command(reply)))
            .await
    }

    /// Sends a request that is executed even if its caller goes away.
    pub(crate) async fn execute<T>(
        &self,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, EngineError> {
        let state = Arc::default();
        self.enqueue(&state, None, |reply| Message::Command(command(reply)))
            .await
    }

    /// Queues a request and waits for its answer. Gives up if the request has not started within
    /// [`QUEUE_TIMEOUT`]; the request is then executed only if `state` is not cancelled.
    async fn enqueue<T>(
        &self,
        state: &Arc<RequestState>,
        permit: Option<OwnedSemaphorePermit>,
        message: impl FnOnce(Reply<T>) -> Message,
    ) -> Result<T, EngineError> {
        let (reply, mut answer) = oneshot::channel();
        let queued = self.queued(message(reply), Arc::clone(state), permit);
        self.commands
            .try_send(queued)
            .map_err(|error| match error {
                TrySendError::Full(_) => EngineError::QueueFull,
                TrySendError::Closed(_) => EngineError::Stopped,
            })?;
        let answered = tokio::select! {
            answered = &mut answer => answered,
            () = sleep(QUEUE_TIMEOUT) => {
                if !state.has_started() {
                    return Err(EngineError::QueueTimeout(QUEUE_TIMEOUT));
                }
                answer.await
            }
        };
        answered.unwrap_or(Err(EngineError::Stopped))
    }

    fn add_permit(&self) -> Result<OwnedSemaphorePermit, EngineError> {
        let permit = Arc::clone(&self.add_permits).try_acquire_owned();
        permit.map_err(|_| EngineError::QueueFull)
    }

    fn enqueue_once(
        &self,
        waiting: &Arc<AtomicBool>,
        command: impl FnOnce(Arc<AtomicBool>, Reply<()>) -> Command,
    ) {
        let is_waiting = waiting.swap(true, Ordering::AcqRel);
        let (reply, _) = oneshot::channel();
        let message = Message::Command(command(Arc::clone(waiting), reply));
        let queued = self.queued(message, Arc::default(), None);
        if !is_waiting && self.commands.try_send(queued).is_err() {
            waiting.store(false, Ordering::Release);
        }
    }

    fn queued(
        &self,
        message: Message,
        state: Arc<RequestState>,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Queued {
        let (verb, key) = message.title();
        Queued {
            operation: self.operations.register(verb, key),
            message,
            state,
            span: Span::current(),
            recorder: Recorder::current(),
            permit,
        }
    }
}
