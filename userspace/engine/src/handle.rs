//! The engine on a thread of its own, and how others speak to it.
//!
//! Every change goes through one queue of bounded length, so there is one writer and no lock. What has begun is finished
//! or rolled back, although its caller goes away (behaviour A4); what would only make something for a caller that is
//! gone is not begun. Whoever does not get a turn in time is told to come again. Knows no clock: whoever asks says what
//! time it is.

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
use planner::PodSide;
use tokio::runtime::Builder;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc, oneshot, watch};
use tokio::time::sleep;
use tracing::Span;

use crate::operations::{Operation, Operations};
use crate::turn::{Turn, Waiters, WhileWanted};
use crate::worker::{Chained, Command, Message, Queued, Reply, Waiting, Worker};
use crate::{
    Attached, Change, Collect, Collected, Engine, EngineError, LimitChange, Ports, Report, Serve,
    Status, Tune, Uninstalled, Update,
};

/// ADDs that may wait. A node starts some hundreds of pods at once at most; more are told to come again.
const ADDS: usize = 256;
/// Requests that may wait. However many ADDs there are, DELs, which free what ADDs wait for, find room.
const QUEUE: usize = 2 * ADDS;
/// Reports that a listener may be behind before it misses some.
const REPORTS: usize = 64;
/// How long a request may wait for its turn: less than the minute after which a plugin gives up, so that it hears why.
const PATIENCE: Duration = Duration::from_secs(50);

/// Speaks to the engine. The thread ends when the last of these is gone and the queue is empty.
#[derive(Clone, Debug)]
pub struct Handle {
    commands: mpsc::Sender<Queued>,
    states: watch::Receiver<Arc<Status>>,
    reports: broadcast::Sender<Arc<Report>>,
    waiting: Arc<Waiting>,
    adds: Arc<Waiters>,
    places: Arc<Semaphore>,
    operations: Operations,
}

/// Starts a thread, lets `start` make the engine on it (a kernel belongs to the thread that opened it), and returns
/// when it has.
pub fn spawn<K, E, F>(start: F) -> Result<(Handle, JoinHandle<()>), E>
where
    K: Kernel + 'static,
    E: From<io::Error> + Send + 'static,
    F: FnOnce() -> Result<Engine<K>, E> + Send + 'static,
{
    let (commands, queue) = mpsc::channel(QUEUE);
    let (publish, states) = watch::channel(Arc::default());
    let reports = broadcast::Sender::new(REPORTS);
    let waiting = Arc::new(Waiting::default());
    let handle = Handle {
        commands,
        states,
        reports: reports.clone(),
        waiting: Arc::clone(&waiting),
        adds: Arc::default(),
        places: Arc::new(Semaphore::new(ADDS)),
        operations: Operations::default(),
    };
    let (report, started) = oneshot::channel();
    let clock = Builder::new_current_thread().enable_time().build()?;
    let name = thread::Builder::new().name("engine".to_owned());
    let thread = name.spawn(move || match start() {
        Ok(engine) => {
            let mut worker = Worker {
                engine,
                queue,
                clock,
                publish,
                reports,
                reported: None,
                waiting,
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
        Err(_) => Err(io::Error::other("the engine's thread died while it started").into()),
    }
}

impl Handle {
    /// Makes an attachment. `now` is in seconds since 1970.
    pub async fn add(&self, intent: Intent, now: u64) -> Result<Attachment, EngineError> {
        let place = self.place()?;
        let turn = self.adds.wait(&intent.key);
        let _wanted = WhileWanted(&turn);
        let add = |reply| Message::Command(Command::Add(Box::new(intent), now, reply));
        self.queue(&turn, Some(place), add).await
    }

    /// Gives a link that waits for them the addresses that another plugin gave.
    pub async fn complete(&self, intent: Intent) -> Result<Attachment, EngineError> {
        self.call(|reply| Command::Complete(Box::new(intent), reply))
            .await
    }

    /// Removes an attachment. An ADD for it that still waits is not begun any more (behaviour A3).
    pub async fn del(&self, key: AttachmentKey) -> Result<(), EngineError> {
        self.adds.cancel(&key);
        self.call(|reply| Command::Del(key, reply)).await
    }

    /// Compares an attachment with what was decided, and returns the decision.
    pub async fn check(&self, key: AttachmentKey) -> Result<Attachment, EngineError> {
        self.ask(|reply| Command::Check(key, None, reply)).await
    }

    /// As [`Handle::check`], but of the routes only those to `wanted` are looked for.
    pub async fn check_wanted(
        &self,
        key: AttachmentKey,
        wanted: BTreeSet<Cidr>,
    ) -> Result<Attachment, EngineError> {
        self.ask(|reply| Command::Check(key, Some(wanted), reply))
            .await
    }

    /// Removes what a runtime does not know any more.
    pub async fn collect(&self, collect: Collect) -> Result<Collected, EngineError> {
        self.call(|reply| Command::Collect(collect, reply)).await
    }

    /// Serves an interface that a plugin before us made. `now` is in seconds since 1970.
    pub async fn serve(&self, serve: Serve, now: u64) -> Result<Attachment, EngineError> {
        let place = self.place()?;
        let turn = Arc::default();
        let _wanted = WhileWanted(&turn);
        let serve = |reply| Command::Chained(Chained::Serve(Box::new(serve), now, reply));
        let message = |reply| Message::Command(serve(reply));
        self.queue(&turn, Some(place), message).await
    }

    /// Takes back the policy of what is under these keys.
    pub async fn open(&self, keys: Vec<AttachmentKey>) -> Result<(), EngineError> {
        self.call(|reply| Command::Chained(Chained::Open(keys, reply)))
            .await
    }

    /// Takes back the ports of what is under these keys.
    pub async fn withdraw(&self, keys: Vec<AttachmentKey>) -> Result<(), EngineError> {
        self.call(|reply| Command::Chained(Chained::Withdraw(keys, reply)))
            .await
    }

    /// Whether an interface is served under one of these keys, with these ports.
    pub async fn check_served(
        &self,
        keys: Vec<AttachmentKey>,
        ports: BTreeSet<PortMapping>,
        ingress: Option<IngressPolicy>,
    ) -> Result<(), EngineError> {
        self.ask(|reply| Command::Chained(Chained::CheckServed(keys, ports, ingress, reply)))
            .await
    }

    /// Sets a pod's loopback up or down.
    pub async fn set_loopback(&self, netns: NetnsPath, up: bool) -> Result<(), EngineError> {
        self.ask(|reply| Command::Chained(Chained::SetLoopback(netns, up, reply)))
            .await
    }

    /// Changes settings of a pod's interface.
    pub async fn tune(&self, tune: Tune) -> Result<(), EngineError> {
        self.ask(|reply| Command::Chained(Chained::Tune(Box::new(tune), reply)))
            .await
    }

    /// Whether a pod's interface has these settings.
    pub async fn check_tuned(&self, tune: Tune) -> Result<(), EngineError> {
        self.ask(|reply| Command::Chained(Chained::CheckTuned(Box::new(tune), reply)))
            .await
    }

    /// Puts settings of a pod's interface back.
    pub async fn untune(&self, tune: Tune) -> Result<(), EngineError> {
        self.call(|reply| Command::Chained(Chained::Untune(Box::new(tune), reply)))
            .await
    }

    /// What is remembered of every attachment.
    pub async fn attachments(&self) -> Result<Vec<Record>, EngineError> {
        self.ask(Command::Attachments).await
    }

    /// An interface in a namespace, whoever's it is; `None` when there is none.
    pub async fn look_inside(
        &self,
        netns: NetnsPath,
        ifname: IfName,
    ) -> Result<Option<PodSide>, EngineError> {
        self.ask(|reply| Command::LookInside(netns, ifname, reply))
            .await
    }

    /// Gives the agent's own network other pod CIDRs.
    pub async fn set_pod_cidrs(&self, ranges: Vec<RangeSet>) -> Result<Update, EngineError> {
        self.call(|reply| Command::SetPodCidrs(ranges, reply)).await
    }

    /// Gives the agent's own network another hairpin mode. `now` is in seconds since 1970.
    pub async fn set_hairpin_mode(
        &self,
        mode: HairpinMode,
        now: u64,
    ) -> Result<Update, EngineError> {
        self.call(|reply| Command::SetHairpinMode(mode, now, reply))
            .await
    }

    /// Gives an attachment other limits, and tells which it has now.
    pub async fn set_limits(
        &self,
        key: AttachmentKey,
        change: LimitChange,
    ) -> Result<Bandwidth, EngineError> {
        self.call(|reply| Command::SetLimits(key, change, reply))
            .await
    }

    /// Which ports of the node are published, and how they are held.
    pub async fn ports(&self) -> Result<Ports, EngineError> {
        self.ask(Command::Ports).await
    }

    /// Reads the counters.
    pub async fn measure(&self) -> Result<Measured, EngineError> {
        self.ask(Command::Measure).await
    }

    /// The prefixes to which pods keep their own address.
    pub async fn non_masquerade(&self) -> Result<BTreeSet<Cidr>, EngineError> {
        self.ask(Command::NonMasquerade).await
    }

    /// Sets the prefixes to which pods keep their own address.
    pub async fn set_non_masquerade(&self, prefixes: BTreeSet<Cidr>) -> Result<(), EngineError> {
        self.call(|reply| Command::SetNonMasquerade(prefixes, reply))
            .await
    }

    /// Goes by another configuration from now on. `now` is in seconds since 1970.
    pub async fn configure(&self, change: Change, now: u64) -> Result<(), EngineError> {
        self.call(|reply| Command::Configure(Box::new(change), now, reply))
            .await
    }

    /// Comes back when everything has been done that was asked for before: the engine lives.
    pub async fn pulse(&self) -> Result<(), EngineError> {
        self.ask(Command::Pulse).await
    }

    /// Asks for a comparison of all records with the kernel, soon. Asking twice is as asking once.
    pub fn reconcile(&self, now: u64) {
        self.ask_once(&self.waiting.reconcile, Command::Reconcile(now));
    }

    /// Asks for dead flows to be forgotten, soon. Asking twice is as asking once.
    pub fn sweep(&self) {
        self.ask_once(&self.waiting.sweep, Command::Sweep);
    }

    /// Takes everything off the node; `farewell` removes what the engine had open. The engine has ended then, unless
    /// it has refused or failed before `farewell`.
    pub async fn uninstall(
        &self,
        attached: Attached,
        farewell: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> Result<Uninstalled, EngineError> {
        let turn = Arc::default();
        let _wanted = WhileWanted(&turn);
        let uninstall = |reply| Message::Uninstall(attached, Box::new(farewell), reply);
        self.queue(&turn, None, uninstall).await
    }

    /// The state after the last change, without waiting for the one under way.
    pub fn status(&self) -> Arc<Status> {
        Arc::clone(&self.states.borrow())
    }

    /// What is asked for and not answered yet, in the order in which it was asked for.
    pub fn operations(&self) -> Vec<Operation> {
        self.operations.list()
    }

    /// Every comparison of records and kernel from now on.
    pub fn reports(&self) -> broadcast::Receiver<Arc<Report>> {
        self.reports.subscribe()
    }

    /// Asks for what is worth something only while somebody waits for the answer.
    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, EngineError> {
        let turn = Arc::default();
        let _wanted = WhileWanted(&turn);
        self.queue(&turn, None, |reply| Message::Command(command(reply)))
            .await
    }

    /// Asks for what is to be done even when nobody waits for the answer any more.
    async fn call<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, EngineError> {
        let turn = Arc::default();
        self.queue(&turn, None, |reply| Message::Command(command(reply)))
            .await
    }

    /// What has not begun in time is not answered any more; whether it is to be begun is for `turn` to say.
    async fn queue<T>(
        &self,
        turn: &Arc<Turn>,
        place: Option<OwnedSemaphorePermit>,
        message: impl FnOnce(Reply<T>) -> Message,
    ) -> Result<T, EngineError> {
        let (reply, mut answer) = oneshot::channel();
        let queued = self.queued(message(reply), Arc::clone(turn), place);
        self.commands
            .try_send(queued)
            .map_err(|error| match error {
                TrySendError::Full(_) => EngineError::Busy,
                TrySendError::Closed(_) => EngineError::Stopped,
            })?;
        let answered = tokio::select! {
            answered = &mut answer => answered,
            () = sleep(PATIENCE) => {
                if !turn.has_begun() {
                    return Err(EngineError::Overdue(PATIENCE));
                }
                answer.await
            }
        };
        answered.unwrap_or(Err(EngineError::Stopped))
    }

    fn place(&self) -> Result<OwnedSemaphorePermit, EngineError> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        place.map_err(|_| EngineError::Busy)
    }

    fn ask_once(&self, waiting: &AtomicBool, command: Command) {
        let is_waiting = waiting.swap(true, Ordering::AcqRel);
        let message = Message::Command(command);
        let queued = self.queued(message, Arc::default(), None);
        if !is_waiting && self.commands.try_send(queued).is_err() {
            waiting.store(false, Ordering::Release);
        }
    }

    fn queued(
        &self,
        message: Message,
        turn: Arc<Turn>,
        place: Option<OwnedSemaphorePermit>,
    ) -> Queued {
        let (verb, key) = message.title();
        Queued {
            entry: self.operations.open(verb, key),
            message,
            turn,
            span: Span::current(),
            place,
        }
    }
}
