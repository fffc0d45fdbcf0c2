//! The engine's thread: executes queued requests one after the other and answers them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kernel::{Kernel, Measured};
use model::{
    Attachment, AttachmentKey, Bandwidth, Cidr, HairpinMode, IfName, IngressPolicy, Intent,
    InterfaceSettings, NetnsPath, PortMapping, RangeSet, Record,
};
use planner::NodeCondition;
use steps::PodSide;
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, broadcast, mpsc, oneshot, watch};
use tokio::time::timeout;
use tracing::Span;

use crate::background::{Background, BackgroundTask};
use crate::cancellation::RequestState;
use crate::operations::{OperationGuard, Operations};
use crate::{
    AttachedPods, ChainedUpdate, ConfigChange, Engine, EngineError, FirewallUpdate, GcResult,
    GcScope, LimitChange, Ports, Report, Status, Tune, Uninstalled, UpdateOutcome,
};

pub(crate) type Reply<T> = oneshot::Sender<Result<T, EngineError>>;

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
}

pub(crate) enum Command {
    Add(Box<Intent>, u64, Reply<Attachment>),
    Complete(Box<Intent>, Reply<Attachment>),
    Del(AttachmentKey, Reply<()>),
    Check(AttachmentKey, Option<BTreeSet<Cidr>>, Reply<Attachment>),
    Gc(GcScope, Reply<GcResult>),
    Chained(Chained),
    Attachments(Reply<Vec<Record>>),
    InspectInterface(NetnsPath, IfName, Reply<Option<PodSide>>),
    SetPodCidrs(Vec<RangeSet>, Reply<UpdateOutcome>),
    SetHairpinMode(HairpinMode, u64, Reply<UpdateOutcome>),
    SetLimits(AttachmentKey, LimitChange, Reply<Bandwidth>),
    Ports(Reply<Ports>),
    Measure(Reply<Measured>),
    NonMasquerade(Reply<BTreeSet<Cidr>>),
    SetNonMasquerade(BTreeSet<Cidr>, Reply<()>),
    Configure(Box<ConfigChange>, u64, Reply<()>),
    SetInstallation(Vec<NodeCondition>, Reply<()>),
    Pulse(Reply<()>),
    Reconcile(u64),
    Sweep,
}

/// Commands of chained plugins.
pub(crate) enum Chained {
    AdoptOrUpdate(Box<ChainedUpdate>, u64, Reply<Attachment>),
    UnpublishPorts(Vec<AttachmentKey>, Reply<()>),
    ClearIngressPolicy(Vec<AttachmentKey>, Reply<()>),
    Firewall(Box<FirewallUpdate>, Reply<()>),
    CheckAttachment(
        Vec<AttachmentKey>,
        BTreeSet<PortMapping>,
        Option<IngressPolicy>,
        Reply<()>,
    ),
    SetLoopback(NetnsPath, bool, Reply<()>),
    Tune(Box<Tune>, Reply<InterfaceSettings>),
    RestoreSettings(Box<Tune>, Reply<()>),
    CheckSettings(Box<Tune>, Reply<()>),
}

/// Content of a request.
pub(crate) enum Message {
    Command(Command),
    /// Removes everything and ends the engine.
    Uninstall(AttachedPods, Cleanup, Reply<Uninstalled>),
}

/// Name of a request for people, and its attachment.
pub(crate) type Title<'a> = (&'static str, Option<&'a AttachmentKey>);

impl Message {
    /// Returns the name of the request and its attachment.
    pub(crate) fn title(&self) -> Title<'_> {
        match self {
            Self::Command(command) => command.title(),
            Self::Uninstall(..) => ("uninstall", None),
        }
    }
}

impl Command {
    fn title(&self) -> Title<'_> {
        match self {
            Self::Add(intent, ..) | Self::Complete(intent, _) => ("ADD", Some(&intent.key)),
            Self::Del(key, _) => ("DEL", Some(key)),
            Self::Check(key, ..) => ("CHECK", Some(key)),
            Self::Gc(..) => ("GC", None),
            Self::Chained(chained) => chained.title(),
            Self::Attachments(_) => ("attachments", None),
            Self::InspectInterface(..) => ("inspect", None),
            Self::SetPodCidrs(..) => ("set pod CIDRs", None),
            Self::SetHairpinMode(..) => ("set hairpin mode", None),
            Self::SetLimits(key, ..) => ("limit", Some(key)),
            Self::Ports(_) => ("ports", None),
            Self::Measure(_) => ("counters", None),
            Self::NonMasquerade(_) => ("non-masquerade CIDRs", None),
            Self::SetNonMasquerade(..) => ("set non-masquerade CIDRs", None),
            Self::Configure(..) => ("reload", None),
            Self::SetInstallation(..) => ("installation", None),
            Self::Pulse(_) => ("pulse", None),
            Self::Reconcile(_) => ("reconcile", None),
            Self::Sweep => ("sweep", None),
        }
    }
}

impl Chained {
    fn title(&self) -> Title<'_> {
        match self {
            Self::AdoptOrUpdate(update, ..) => ("ADD", Some(&update.adoption.key)),
            Self::Firewall(update, _) => ("ADD", Some(&update.key)),
            Self::UnpublishPorts(keys, _) | Self::ClearIngressPolicy(keys, _) => {
                ("DEL", keys.first())
            }
            Self::CheckAttachment(keys, ..) => ("CHECK", keys.first()),
            Self::SetLoopback(..) => ("loopback", None),
            Self::Tune(tune, _) | Self::RestoreSettings(tune, _) | Self::CheckSettings(tune, _) => {
                ("tuning", tune.keys.first())
            }
        }
    }
}

/// Removes pins and records after the engine has closed them; returns the reason of a failure.
pub(crate) type Cleanup = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// Requests that are queued at most once at a time: whether one waits.
#[derive(Debug, Default)]
pub(crate) struct QueuedOnce {
    pub(crate) reconcile: AtomicBool,
    pub(crate) sweep: AtomicBool,
}

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
    pub(crate) queued_once: Arc<QueuedOnce>,
    pub(crate) operations: Operations,
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
            } = next;
            drop(permit);
            let _entered = span.entered();
            if !state.start() {
                answer_cancelled(message);
                continue;
            }
            operation.set_running();
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
                Message::Command(command) => self.execute(command),
            }
        }
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
            match self
                .operations
                .in_background(|| engine.run_background_task())
            {
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

    fn execute(&mut self, command: Command) {
        match command {
            Command::Add(intent, now, reply) => self.add(&intent, now, reply),
            Command::Complete(intent, reply) => {
                self.change(reply, |engine| engine.complete(&intent));
            }
            Command::Del(key, reply) => self.change(reply, |engine| engine.del(&key)),
            Command::Check(key, wanted, reply) => {
                answer(reply, self.engine.check_wanted(&key, wanted.as_ref()));
            }
            Command::Gc(scope, reply) => {
                self.change(reply, |engine| Ok(engine.collect(&scope)));
            }
            Command::Chained(chained) => self.execute_chained(chained),
            Command::Attachments(reply) => answer(reply, Ok(self.engine.attachments())),
            Command::InspectInterface(netns, ifname, reply) => {
                answer(reply, self.engine.inspect_interface(netns, ifname));
            }
            Command::SetPodCidrs(ranges, reply) => {
                self.change(reply, |engine| engine.set_pod_cidrs(ranges));
            }
            Command::SetHairpinMode(mode, now, reply) => {
                self.change(reply, |engine| engine.set_hairpin_mode(mode, now));
            }
            Command::SetLimits(key, change, reply) => {
                answer(reply, self.engine.set_limits(&key, change));
            }
            Command::Ports(reply) => answer(reply, self.engine.ports()),
            Command::Measure(reply) => answer(reply, self.engine.measure()),
            Command::NonMasquerade(reply) => {
                answer(reply, Ok(self.engine.settings.non_masquerade.clone()));
            }
            Command::SetNonMasquerade(prefixes, reply) => {
                self.change(reply, |engine| engine.set_non_masquerade(prefixes));
            }
            Command::Configure(change, now, reply) => {
                self.change(reply, |engine| engine.configure(*change, now));
            }
            Command::SetInstallation(conditions, reply) => self.change(reply, |engine| {
                engine.conditions.set_installation(conditions);
                Ok(())
            }),
            Command::Pulse(reply) => answer(reply, Ok(())),
            Command::Reconcile(now) => {
                self.queued_once.reconcile.store(false, Ordering::Release);
                self.engine.reconcile(now);
                self.publish();
            }
            Command::Sweep => {
                self.queued_once.sweep.store(false, Ordering::Release);
                self.engine.sweep();
                self.engine.find_high_traffic_pods();
                self.publish();
            }
        }
    }

    fn execute_chained(&mut self, chained: Chained) {
        match chained {
            Chained::AdoptOrUpdate(update, now, reply) => {
                self.change(reply, |engine| engine.adopt_or_update(&update, now));
            }
            Chained::UnpublishPorts(keys, reply) => {
                self.change(reply, |engine| engine.unpublish_ports(&keys));
            }
            Chained::Firewall(update, reply) => {
                self.change(reply, |engine| engine.add_firewall(&update));
            }
            Chained::ClearIngressPolicy(keys, reply) => {
                self.change(reply, |engine| engine.clear_ingress_policy(&keys));
            }
            Chained::CheckAttachment(keys, ports, ingress, reply) => {
                answer(reply, self.engine.check_chained(&keys, &ports, ingress));
            }
            Chained::SetLoopback(netns, up, reply) => {
                answer(reply, self.engine.set_loopback(&netns, up));
            }
            Chained::Tune(tune, reply) => answer(reply, self.engine.tune(&tune)),
            Chained::CheckSettings(tune, reply) => answer(reply, self.engine.check_settings(&tune)),
            Chained::RestoreSettings(tune, reply) => {
                answer(reply, self.engine.restore_settings(&tune));
            }
        }
    }

    /// Answers before it logs: the runtime does not wait for the log.
    fn add(&mut self, intent: &Intent, now: u64, reply: Reply<Attachment>) {
        let mut attached = None;
        self.change(reply, |engine| {
            engine
                .add(intent, now)
                .inspect(|attachment| attached = Some(attachment.clone()))
        });
        if let Some(attachment) = attached {
            log_attached(&attachment);
        }
    }

    /// Publishes the status before it answers: a caller with an answer sees its change in the
    /// status.
    fn change<T>(
        &mut self,
        reply: Reply<T>,
        change: impl FnOnce(&mut Engine<K>) -> Result<T, EngineError>,
    ) {
        let result = change(&mut self.engine);
        self.engine.sync_forwarding();
        self.publish();
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
