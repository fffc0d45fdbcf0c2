//! The engine's thread: takes what waits, one after the other, and answers. Knows no caller.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kernel::{Kernel, Measured};
use model::{
    Attachment, AttachmentKey, Bandwidth, Cidr, HairpinMode, IfName, IngressPolicy, Intent,
    NetnsPath, PortMapping, RangeSet, Record,
};
use planner::PodSide;
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, broadcast, mpsc, oneshot, watch};
use tokio::time::timeout;
use tracing::Span;

use crate::chores::Chore;
use crate::operations::Entry;
use crate::turn::Turn;
use crate::{
    Attached, Change, Collect, Collected, Engine, EngineError, LimitChange, Ports, Report, Serve,
    Status, Tune, Uninstalled, Update,
};

pub(crate) type Reply<T> = oneshot::Sender<Result<T, EngineError>>;

/// What waits, and the span of whoever asked: what the engine logs about it belongs there.
pub(crate) struct Queued {
    pub(crate) message: Message,
    pub(crate) turn: Arc<Turn>,
    pub(crate) span: Span,
    /// The place of an ADD among those that may wait: given back when its turn has come.
    pub(crate) place: Option<OwnedSemaphorePermit>,
    /// Its place among what is told to people.
    pub(crate) entry: Entry,
}

pub(crate) enum Command {
    Add(Box<Intent>, u64, Reply<Attachment>),
    Complete(Box<Intent>, Reply<Attachment>),
    Del(AttachmentKey, Reply<()>),
    Check(AttachmentKey, Option<BTreeSet<Cidr>>, Reply<Attachment>),
    Collect(Collect, Reply<Collected>),
    Chained(Chained),
    Attachments(Reply<Vec<Record>>),
    LookInside(NetnsPath, IfName, Reply<Option<PodSide>>),
    SetPodCidrs(Vec<RangeSet>, Reply<Update>),
    SetHairpinMode(HairpinMode, u64, Reply<Update>),
    SetLimits(AttachmentKey, LimitChange, Reply<Bandwidth>),
    Ports(Reply<Ports>),
    Measure(Reply<Measured>),
    NonMasquerade(Reply<BTreeSet<Cidr>>),
    SetNonMasquerade(BTreeSet<Cidr>, Reply<()>),
    Configure(Box<Change>, u64, Reply<()>),
    Pulse(Reply<()>),
    Reconcile(u64),
    Sweep,
}

/// What plugins ask for that come later in a chain.
pub(crate) enum Chained {
    Serve(Box<Serve>, u64, Reply<Attachment>),
    Withdraw(Vec<AttachmentKey>, Reply<()>),
    Open(Vec<AttachmentKey>, Reply<()>),
    CheckServed(
        Vec<AttachmentKey>,
        BTreeSet<PortMapping>,
        Option<IngressPolicy>,
        Reply<()>,
    ),
    SetLoopback(NetnsPath, bool, Reply<()>),
    Tune(Box<Tune>, Reply<()>),
    Untune(Box<Tune>, Reply<()>),
    CheckTuned(Box<Tune>, Reply<()>),
}

/// What waits in the queue.
pub(crate) enum Message {
    Command(Command),
    /// The last thing that an engine does.
    Uninstall(Attached, Farewell, Reply<Uninstalled>),
}

/// What is asked for, in a word, and of which attachment.
pub(crate) type Title<'a> = (&'static str, Option<&'a AttachmentKey>);

impl Message {
    /// For people.
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
            Self::Collect(..) => ("GC", None),
            Self::Chained(chained) => chained.title(),
            Self::Attachments(_) => ("attachments", None),
            Self::LookInside(..) => ("inspect", None),
            Self::SetPodCidrs(..) => ("set pod CIDRs", None),
            Self::SetHairpinMode(..) => ("set hairpin mode", None),
            Self::SetLimits(key, ..) => ("limit", Some(key)),
            Self::Ports(_) => ("ports", None),
            Self::Measure(_) => ("counters", None),
            Self::NonMasquerade(_) => ("non-masquerade CIDRs", None),
            Self::SetNonMasquerade(..) => ("set non-masquerade CIDRs", None),
            Self::Configure(..) => ("reload", None),
            Self::Pulse(_) => ("pulse", None),
            Self::Reconcile(_) => ("reconcile", None),
            Self::Sweep => ("sweep", None),
        }
    }
}

impl Chained {
    fn title(&self) -> Title<'_> {
        match self {
            Self::Serve(serve, ..) => ("ADD", Some(&serve.adoption.key)),
            Self::Withdraw(keys, _) | Self::Open(keys, _) => ("DEL", keys.first()),
            Self::CheckServed(keys, ..) => ("CHECK", keys.first()),
            Self::SetLoopback(..) => ("loopback", None),
            Self::Tune(tune, _) | Self::Untune(tune, _) | Self::CheckTuned(tune, _) => {
                ("tuning", tune.keys.first())
            }
        }
    }
}

/// What is left to do when nobody uses kernel and records any more; fails with the reason.
pub(crate) type Farewell = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// What needs to wait in the queue once only, however often it is asked for.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) reconcile: AtomicBool,
    pub(crate) sweep: AtomicBool,
}

/// How long nobody asks before chores are done: whoever was answered just now is served by what would do them, and a
/// runtime that comes again at once finds nobody busy.
const QUIET: Duration = Duration::from_millis(10);

/// The engine, and what it is asked for.
pub(crate) struct Worker<K> {
    pub(crate) engine: Engine<K>,
    pub(crate) queue: mpsc::Receiver<Queued>,
    /// For waiting with an end.
    pub(crate) clock: Runtime,
    pub(crate) publish: watch::Sender<Arc<Status>>,
    pub(crate) reports: broadcast::Sender<Arc<Report>>,
    /// The report that was sent last.
    pub(crate) reported: Option<Arc<Report>>,
    pub(crate) waiting: Arc<Waiting>,
}

impl<K: Kernel> Worker<K> {
    /// Until nobody can ask any more.
    pub(crate) fn run(mut self) {
        while let Some(next) = self.next() {
            let Queued {
                message,
                turn,
                span,
                place,
                entry,
            } = next;
            drop(place);
            let _asked = span.entered();
            if !turn.begin() {
                decline(message);
                continue;
            }
            entry.begin();
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

    /// What is asked for next. When nobody has asked for a while, chores are done.
    fn next(&mut self) -> Option<Queued> {
        while self.engine.has_chores() {
            let waited = self.clock.block_on(async {
                let next = self.queue.recv();
                timeout(QUIET, next).await
            });
            match waited {
                Ok(next) => return next,
                Err(_quiet) => self.do_chores(),
            }
        }
        self.queue.blocking_recv()
    }

    /// Until somebody asks, or there is none left to do now.
    fn do_chores(&mut self) {
        while self.queue.is_empty() {
            match self.engine.do_chore() {
                Some(Chore::Reconciled) => self.publish(),
                Some(Chore::Looked | Chore::Settled | Chore::Hastened) => {}
                None => return,
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
            Command::Collect(collect, reply) => {
                self.change(reply, |engine| Ok(engine.collect(&collect)));
            }
            Command::Chained(chained) => self.execute_chained(chained),
            Command::Attachments(reply) => answer(reply, Ok(self.engine.attachments())),
            Command::LookInside(netns, ifname, reply) => {
                answer(reply, self.engine.look_inside(netns, ifname));
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
            Command::Pulse(reply) => answer(reply, Ok(())),
            Command::Reconcile(now) => {
                self.waiting.reconcile.store(false, Ordering::Release);
                self.engine.reconcile(now);
                self.publish();
            }
            Command::Sweep => {
                self.waiting.sweep.store(false, Ordering::Release);
                self.engine.sweep();
                self.engine.look_for_busy();
                self.publish();
            }
        }
    }

    fn execute_chained(&mut self, chained: Chained) {
        match chained {
            Chained::Serve(serve, now, reply) => {
                self.change(reply, |engine| engine.serve(&serve, now));
            }
            Chained::Withdraw(keys, reply) => self.change(reply, |engine| engine.withdraw(&keys)),
            Chained::Open(keys, reply) => self.change(reply, |engine| engine.open(&keys)),
            Chained::CheckServed(keys, ports, ingress, reply) => {
                answer(reply, self.engine.check_served(&keys, &ports, ingress));
            }
            Chained::SetLoopback(netns, up, reply) => {
                answer(reply, self.engine.set_loopback(&netns, up));
            }
            Chained::Tune(tune, reply) => answer(reply, self.engine.tune(&tune)),
            Chained::CheckTuned(tune, reply) => answer(reply, self.engine.check_tuned(&tune)),
            Chained::Untune(tune, reply) => answer(reply, self.engine.untune(&tune)),
        }
    }

    /// A line of the log is written when the answer is given: nobody waits for whoever reads it.
    fn add(&mut self, intent: &Intent, now: u64, reply: Reply<Attachment>) {
        let mut attached = None;
        self.change(reply, |engine| {
            engine
                .add(intent, now)
                .inspect(|attachment| attached = Some(attachment.clone()))
        });
        if let Some(attachment) = attached {
            tell(&attachment);
        }
    }

    /// State is published before the answer is given: who has been answered sees the change.
    fn change<T>(
        &mut self,
        reply: Reply<T>,
        change: impl FnOnce(&mut Engine<K>) -> Result<T, EngineError>,
    ) {
        let result = change(&mut self.engine);
        self.publish();
        answer(reply, result);
    }

    /// Reports of comparisons are sent one by one: none is hidden by the next.
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
            // Nobody may listen.
            let _listeners = self.reports.send(report);
        }
    }
}

/// For people.
fn tell(attached: &Attachment) {
    let key = &attached.key;
    let addresses: Vec<_> = attached
        .addresses
        .iter()
        .map(|own| own.address.to_string())
        .collect();
    tracing::info!(%key, link = %attached.host_link(), ?addresses, slot = attached.slot, "attached");
}

/// A request that was withdrawn. Only an ADD may have somebody who still waits: a DEL has withdrawn it.
fn decline(message: Message) {
    if let Message::Command(Command::Add(intent, _, reply)) = message {
        tracing::info!(key = %intent.key, "not begun: it was withdrawn while it waited");
        answer(reply, Err(EngineError::Cancelled(intent.key)));
    }
}

fn answer<T>(reply: Reply<T>, result: Result<T, EngineError>) {
    if reply.send(result).is_err() {
        tracing::debug!("the client did not wait for the answer");
    }
}
