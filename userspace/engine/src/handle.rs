//! The engine on a thread of its own, and how others speak to it.
//!
//! Every change goes through one queue of bounded length, so there is one writer and no lock. A caller that goes away
//! loses its answer, not the operation: what was queued is finished or rolled back (BEHAVIOURS A4). Knows no clock:
//! whoever asks says what time it is.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use kernel::{Kernel, Measured};
use model::{
    Attachment, AttachmentKey, Cidr, HairpinMode, IfName, Intent, NetnsPath, PortMapping, RangeSet,
    Record,
};
use planner::PodSide;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::Span;

use crate::cancel::{Cancel, Waiters};
use crate::{
    Attached, Collect, Collected, Engine, EngineError, Ports, Serve, Status, Tune, Uninstalled,
    Update,
};

/// Requests that may wait. A node starts some hundreds of pods at once at most; more are told to come again.
const QUEUE: usize = 256;

type Reply<T> = oneshot::Sender<Result<T, EngineError>>;

/// What waits, and the span of whoever asked: what the engine logs about it belongs there.
struct Queued {
    message: Message,
    span: Span,
}

enum Command {
    Add(Box<Intent>, u64, Cancel, Reply<Attachment>),
    Complete(Box<Intent>, Reply<Attachment>),
    Del(AttachmentKey, Reply<()>),
    Check(AttachmentKey, Option<BTreeSet<Cidr>>, Reply<Attachment>),
    Collect(Collect, Reply<Collected>),
    Chained(Chained),
    Attachments(Reply<Vec<Record>>),
    LookInside(NetnsPath, IfName, Reply<Option<PodSide>>),
    SetPodCidrs(Vec<RangeSet>, Reply<Update>),
    SetHairpinMode(HairpinMode, u64, Reply<Update>),
    Ports(Reply<Ports>),
    Measure(Reply<Measured>),
    NonMasquerade(Reply<BTreeSet<Cidr>>),
    SetNonMasquerade(BTreeSet<Cidr>, Reply<()>),
    Reconcile(u64),
    Sweep,
}

/// What plugins ask for that come later in a chain.
enum Chained {
    Serve(Box<Serve>, u64, Reply<Attachment>),
    Withdraw(Vec<AttachmentKey>, Reply<()>),
    CheckServed(Vec<AttachmentKey>, BTreeSet<PortMapping>, Reply<()>),
    SetLoopback(NetnsPath, bool, Reply<()>),
    Tune(Box<Tune>, Reply<()>),
    Untune(Box<Tune>, Reply<()>),
    CheckTuned(Box<Tune>, Reply<()>),
}

/// What waits in the queue.
enum Message {
    Command(Command),
    /// The last thing that an engine does.
    Uninstall(Attached, Farewell, Reply<Uninstalled>),
}

/// What is left to do when nobody uses kernel and records any more; fails with the reason.
type Farewell = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// Speaks to the engine. The thread ends when the last of these is gone and the queue is empty.
#[derive(Clone, Debug)]
pub struct Handle {
    commands: mpsc::Sender<Queued>,
    states: watch::Receiver<Arc<Status>>,
    waiting: Arc<Waiting>,
    adds: Arc<Waiters>,
}

/// What needs to wait in the queue once only, however often it is asked for.
#[derive(Debug, Default)]
struct Waiting {
    reconcile: AtomicBool,
    sweep: AtomicBool,
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
    let waiting = Arc::new(Waiting::default());
    let handle = Handle {
        commands,
        states,
        waiting: Arc::clone(&waiting),
        adds: Arc::default(),
    };
    let (report, started) = oneshot::channel();
    let name = thread::Builder::new().name("engine".to_owned());
    let thread = name.spawn(move || match start() {
        Ok(engine) => {
            let worker = Worker {
                engine,
                queue,
                publish,
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
        let cancel = self.adds.wait(&intent.key);
        self.call(|reply| Command::Add(Box::new(intent), now, cancel, reply))
            .await
    }

    /// Gives a link that waits for them the addresses that another plugin gave.
    pub async fn complete(&self, intent: Intent) -> Result<Attachment, EngineError> {
        self.call(|reply| Command::Complete(Box::new(intent), reply))
            .await
    }

    /// Removes an attachment. An ADD for it that still waits is not begun any more (BEHAVIOURS A3).
    pub async fn del(&self, key: AttachmentKey) -> Result<(), EngineError> {
        self.adds.cancel(&key);
        self.call(|reply| Command::Del(key, reply)).await
    }

    /// Compares an attachment with what was decided, and returns the decision.
    pub async fn check(&self, key: AttachmentKey) -> Result<Attachment, EngineError> {
        self.call(|reply| Command::Check(key, None, reply)).await
    }

    /// As [`Handle::check`], but of the routes only those to `wanted` are looked for.
    pub async fn check_wanted(
        &self,
        key: AttachmentKey,
        wanted: BTreeSet<Cidr>,
    ) -> Result<Attachment, EngineError> {
        self.call(|reply| Command::Check(key, Some(wanted), reply))
            .await
    }

    /// Removes what a runtime does not know any more.
    pub async fn collect(&self, collect: Collect) -> Result<Collected, EngineError> {
        self.call(|reply| Command::Collect(collect, reply)).await
    }

    /// Serves an interface that a plugin before us made. `now` is in seconds since 1970.
    pub async fn serve(&self, serve: Serve, now: u64) -> Result<Attachment, EngineError> {
        self.call(|reply| Command::Chained(Chained::Serve(Box::new(serve), now, reply)))
            .await
    }

    /// Takes back what was served under these keys.
    pub async fn withdraw(&self, keys: Vec<AttachmentKey>) -> Result<(), EngineError> {
        self.call(|reply| Command::Chained(Chained::Withdraw(keys, reply)))
            .await
    }

    /// Whether an interface is served under one of these keys, with these ports.
    pub async fn check_served(
        &self,
        keys: Vec<AttachmentKey>,
        ports: BTreeSet<PortMapping>,
    ) -> Result<(), EngineError> {
        self.call(|reply| Command::Chained(Chained::CheckServed(keys, ports, reply)))
            .await
    }

    /// Sets a pod's loopback up or down.
    pub async fn set_loopback(&self, netns: NetnsPath, up: bool) -> Result<(), EngineError> {
        self.call(|reply| Command::Chained(Chained::SetLoopback(netns, up, reply)))
            .await
    }

    /// Changes settings of a pod's interface.
    pub async fn tune(&self, tune: Tune) -> Result<(), EngineError> {
        self.call(|reply| Command::Chained(Chained::Tune(Box::new(tune), reply)))
            .await
    }

    /// Whether a pod's interface has these settings.
    pub async fn check_tuned(&self, tune: Tune) -> Result<(), EngineError> {
        self.call(|reply| Command::Chained(Chained::CheckTuned(Box::new(tune), reply)))
            .await
    }

    /// Puts settings of a pod's interface back.
    pub async fn untune(&self, tune: Tune) -> Result<(), EngineError> {
        self.call(|reply| Command::Chained(Chained::Untune(Box::new(tune), reply)))
            .await
    }

    /// What is remembered of every attachment.
    pub async fn attachments(&self) -> Result<Vec<Record>, EngineError> {
        self.call(Command::Attachments).await
    }

    /// An interface in a namespace, whoever's it is; `None` when there is none.
    pub async fn look_inside(
        &self,
        netns: NetnsPath,
        ifname: IfName,
    ) -> Result<Option<PodSide>, EngineError> {
        self.call(|reply| Command::LookInside(netns, ifname, reply))
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

    /// Which ports of the node are published, and how they are held.
    pub async fn ports(&self) -> Result<Ports, EngineError> {
        self.call(Command::Ports).await
    }

    /// Reads the counters.
    pub async fn measure(&self) -> Result<Measured, EngineError> {
        self.call(Command::Measure).await
    }

    /// The prefixes to which pods keep their own address.
    pub async fn non_masquerade(&self) -> Result<BTreeSet<Cidr>, EngineError> {
        self.call(Command::NonMasquerade).await
    }

    /// Sets the prefixes to which pods keep their own address.
    pub async fn set_non_masquerade(&self, prefixes: BTreeSet<Cidr>) -> Result<(), EngineError> {
        self.call(|reply| Command::SetNonMasquerade(prefixes, reply))
            .await
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
        self.ask(|reply| Message::Uninstall(attached, Box::new(farewell), reply))
            .await
    }

    /// The state after the last change, without waiting for the one under way.
    pub fn status(&self) -> Arc<Status> {
        Arc::clone(&self.states.borrow())
    }

    /// The state, and when it changes.
    pub fn states(&self) -> watch::Receiver<Arc<Status>> {
        self.states.clone()
    }

    async fn call<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, EngineError> {
        self.ask(|reply| Message::Command(command(reply))).await
    }

    async fn ask<T>(&self, message: impl FnOnce(Reply<T>) -> Message) -> Result<T, EngineError> {
        let (reply, answer) = oneshot::channel();
        match self.commands.try_send(queued(message(reply))) {
            Ok(()) => answer.await.unwrap_or(Err(EngineError::Stopped)),
            Err(TrySendError::Full(_)) => Err(EngineError::Busy),
            Err(TrySendError::Closed(_)) => Err(EngineError::Stopped),
        }
    }

    fn ask_once(&self, waiting: &AtomicBool, command: Command) {
        let is_waiting = waiting.swap(true, Ordering::AcqRel);
        let message = Message::Command(command);
        if !is_waiting && self.commands.try_send(queued(message)).is_err() {
            waiting.store(false, Ordering::Release);
        }
    }
}

fn queued(message: Message) -> Queued {
    let span = Span::current();
    Queued { message, span }
}

struct Worker<K> {
    engine: Engine<K>,
    queue: mpsc::Receiver<Queued>,
    publish: watch::Sender<Arc<Status>>,
    waiting: Arc<Waiting>,
}

impl<K: Kernel> Worker<K> {
    fn run(mut self) {
        while let Some(Queued { message, span }) = self.queue.blocking_recv() {
            let _asked = span.entered();
            match message {
                Message::Uninstall(attached, farewell, reply) => {
                    match self.engine.uninstall(attached) {
                        Ok(done) => return self.end(done, farewell, reply),
                        failed => {
                            self.publish();
                            answer(reply, failed);
                        }
                    }
                }
                Message::Command(command) => self.execute(command),
            }
        }
    }

    /// Lets go of kernel and records before they are removed. What still waits is told that the agent is stopping.
    fn end(self, done: Uninstalled, farewell: Farewell, reply: Reply<Uninstalled>) {
        let _uninstall = crash::verb("uninstall");
        let Self { engine, queue, .. } = self;
        drop((engine, queue));
        let result = farewell().map_err(EngineError::Unfinished);
        answer(reply, result.map(|()| done));
    }

    /// State is published before the answer is given: who has been answered sees the change.
    fn execute(&mut self, command: Command) {
        match command {
            Command::Add(intent, now, cancel, reply) => {
                let result = self.add(&intent, now, &cancel);
                self.publish();
                answer(reply, result);
            }
            Command::Complete(intent, reply) => {
                let result = self.engine.complete(&intent);
                self.publish();
                answer(reply, result);
            }
            Command::Del(key, reply) => {
                let result = self.engine.del(&key);
                self.publish();
                answer(reply, result);
            }
            Command::Check(key, wanted, reply) => {
                answer(reply, self.engine.check_wanted(&key, wanted.as_ref()));
            }
            Command::Collect(collect, reply) => {
                let collected = self.engine.collect(&collect);
                self.publish();
                answer(reply, Ok(collected));
            }
            Command::Chained(chained) => self.execute_chained(chained),
            Command::Attachments(reply) => answer(reply, Ok(self.engine.attachments())),
            Command::LookInside(netns, ifname, reply) => {
                answer(reply, self.engine.look_inside(netns, ifname));
            }
            Command::SetPodCidrs(ranges, reply) => {
                let result = self.engine.set_pod_cidrs(ranges);
                self.publish();
                answer(reply, result);
            }
            Command::SetHairpinMode(mode, now, reply) => {
                let result = self.engine.set_hairpin_mode(mode, now);
                self.publish();
                answer(reply, result);
            }
            Command::Ports(reply) => answer(reply, self.engine.ports()),
            Command::Measure(reply) => answer(reply, self.engine.measure()),
            Command::NonMasquerade(reply) => {
                answer(reply, Ok(self.engine.settings.non_masquerade.clone()));
            }
            Command::SetNonMasquerade(prefixes, reply) => {
                let result = self.engine.set_non_masquerade(prefixes);
                self.publish();
                answer(reply, result);
            }
            Command::Reconcile(now) => {
                self.waiting.reconcile.store(false, Ordering::Release);
                self.engine.reconcile(now);
                self.publish();
            }
            Command::Sweep => {
                self.waiting.sweep.store(false, Ordering::Release);
                self.engine.sweep();
                self.publish();
            }
        }
    }

    fn add(
        &mut self,
        intent: &Intent,
        now: u64,
        cancel: &Cancel,
    ) -> Result<Attachment, EngineError> {
        if cancel.is_cancelled() {
            return Err(EngineError::Cancelled(intent.key.clone()));
        }
        self.engine.add(intent, now)
    }

    fn execute_chained(&mut self, chained: Chained) {
        match chained {
            Chained::Serve(serve, now, reply) => {
                let result = self.engine.serve(&serve, now);
                self.publish();
                answer(reply, result);
            }
            Chained::Withdraw(keys, reply) => {
                let result = self.engine.withdraw(&keys);
                self.publish();
                answer(reply, result);
            }
            Chained::CheckServed(keys, ports, reply) => {
                answer(reply, self.engine.check_served(&keys, &ports));
            }
            Chained::SetLoopback(netns, up, reply) => {
                answer(reply, self.engine.set_loopback(&netns, up));
            }
            Chained::Tune(tune, reply) => answer(reply, self.engine.tune(&tune)),
            Chained::CheckTuned(tune, reply) => answer(reply, self.engine.check_tuned(&tune)),
            Chained::Untune(tune, reply) => answer(reply, self.engine.untune(&tune)),
        }
    }

    fn publish(&self) {
        self.publish.send_replace(Arc::new(self.engine.status()));
    }
}

fn answer<T>(reply: Reply<T>, result: Result<T, EngineError>) {
    if reply.send(result).is_err() {
        tracing::debug!("the client did not wait for the answer");
    }
}
