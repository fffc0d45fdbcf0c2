//! Drop events (`GET /v1/drops`): reports of the datapath, with the names of pods, for clients that
//! listen.
//!
//! The datapath reports only while the agent listens. It begins with the first client, and ends
//! [`GRACE`] after the last one. Until then it remembers the latest events, so that a client finds
//! what has just happened.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::{DropEvent, DropQuery};
use engine::{EngineError, Handle};
use futures_util::{Stream, stream};
use kernel::{DropReader, DropReport, ObserveError};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::{Instant, interval, sleep_until};

use super::owners::{Owners, SlotKey};
use crate::clock;
use crate::http::failure::Failure;

mod render;

/// Name that `viaductctl drops` prints where no pod is known.
const NO_POD: &str = "(node)";
/// Number of events that are remembered, and that a client may lag behind before it misses some.
const REMEMBERED: usize = 1024;
/// Time for which the agent goes on to listen after the last client.
const GRACE: Duration = Duration::from_mins(5);
/// Interval between two renewals of the datapath's permission to report.
const RENEWAL: Duration = Duration::from_secs(2);
/// Number of batches of reports that wait for names.
const QUEUED_BATCHES: usize = 4;

/// Reports of the datapath in batches; the datapath stops to report when it is dropped.
pub(crate) type Reports = mpsc::Receiver<Vec<DropReport>>;

type Listen = dyn Fn(watch::Receiver<Duration>) -> Result<Reports, ObserveError> + Send + Sync;

/// Drop events and their clients.
#[derive(Clone)]
pub(crate) struct DropEvents {
    listen: Arc<Listen>,
    handle: Handle,
    interval: watch::Sender<Duration>,
    state: Arc<Mutex<State>>,
    live: broadcast::Sender<Numbered>,
}

type Numbered = (u64, Arc<DropEvent>);

#[derive(Debug, Default)]
struct State {
    /// Number of the last event.
    last: u64,
    events: VecDeque<Numbered>,
    clients: usize,
    is_listening: bool,
    /// When the last client has gone.
    idle_since: Option<Instant>,
}

impl fmt::Debug for DropEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DropEvents")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl DropEvents {
    /// Makes events of the reports of `listen`, one of each pod and reason in `interval`.
    pub(crate) fn new(
        handle: Handle,
        interval: Duration,
        listen: impl Fn(watch::Receiver<Duration>) -> Result<Reports, ObserveError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self {
            listen: Arc::new(listen),
            handle,
            interval: watch::Sender::new(interval),
            state: Arc::default(),
            live: broadcast::Sender::new(REMEMBERED),
        }
    }

    /// Makes events of the reports of the datapath whose maps are pinned below `bpffs`.
    pub(crate) fn of_datapath(handle: Handle, interval: Duration, bpffs: &Path) -> Self {
        let reader = DropReader::new(bpffs);
        Self::new(handle, interval, move |interval| listen(&reader, interval))
    }

    /// Sets the interval, at once.
    pub(crate) fn set_interval(&self, interval: Duration) {
        self.interval.send_replace(interval);
    }

    /// Streams remembered events as lines of JSON, and new ones for as long as the query says, or
    /// until `stop` is `true`.
    pub(crate) fn lines(
        &self,
        query: DropQuery,
        stop: watch::Receiver<bool>,
    ) -> Result<impl Stream<Item = Result<String, Infallible>> + use<>, Failure> {
        let mut state = self.state();
        if !state.is_listening {
            let reports = (self.listen)(self.interval.subscribe()).map_err(EngineError::Observe)?;
            state.is_listening = true;
            tokio::spawn(self.clone().forward(reports));
        }
        state.clients += 1;
        state.idle_since = None;
        let end = Instant::now() + Duration::from_secs(query.seconds);
        let client = Client {
            seen: state.last - state.events.len() as u64,
            past: state.events.clone(),
            live: self.live.subscribe(),
            end: (!query.follow).then_some(end),
            query,
            stop,
            _guard: ClientGuard(Arc::clone(&self.state)),
        };
        Ok(stream::unfold(client, |mut client| async {
            let event = client.next().await?;
            Some((Ok(render::line(&event)), client))
        }))
    }

    /// Returns the last remembered event of a pod: by name, `namespace/name`, or prefix of its
    /// container ID. [`NO_POD`] is for packets of which no pod is known.
    pub(crate) fn last_of(&self, pod: &str) -> Option<Arc<DropEvent>> {
        let query = DropQuery {
            pod: Some(pod.to_owned()),
            ..DropQuery::default()
        };
        let state = self.state();
        let mut latest = state.events.iter().rev();
        latest
            .find(|(_, event)| match pod {
                NO_POD => event.container_id.is_none(),
                _ => render::matches(event, &query),
            })
            .map(|(_, event)| Arc::clone(event))
    }

    /// Forwards reports to the clients, until there have been none for [`GRACE`].
    async fn forward(self, mut reports: Reports) {
        let mut owners = Owners::default();
        let mut tick = interval(RENEWAL);
        loop {
            tokio::select! {
                batch = reports.recv() => {
                    let Some(batch) = batch else {
                        tracing::warn!(
                            "the datapath's reports of dropped packets have ended: the next client begins them again"
                        );
                        return self.state().forget();
                    };
                    self.publish(&batch, &mut owners).await;
                }
                _ = tick.tick() => {
                    let mut state = self.state();
                    if state.idle_since.is_some_and(|since| since.elapsed() >= GRACE) {
                        return state.forget();
                    }
                }
            }
        }
    }

    async fn publish(&self, batch: &[DropReport], owners: &mut Owners) {
        let reported = batch.iter().map(slot_key);
        owners.refresh(&self.handle, reported).await;
        let now = clock::now_ms();
        let mut state = self.state();
        for report in batch {
            let owner = owners.get(slot_key(report));
            state.last += 1;
            let event = (state.last, Arc::new(render::event(report, owner, now)));
            if state.events.len() == REMEMBERED {
                state.events.pop_front();
            }
            state.events.push_back(event.clone());
            // Under the lock, so that a new client gets each event once. Fails without a client.
            let _clients = self.live.send(event);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn slot_key(report: &DropReport) -> SlotKey {
    (report.record.pod, report.record.generation)
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Forgets the events: the agent does not listen any more.
    fn forget(&mut self) {
        self.events = VecDeque::new();
        self.is_listening = false;
        self.idle_since = None;
    }
}

/// Listens to the datapath, on the runtime of the caller.
fn listen(
    reader: &DropReader,
    mut interval: watch::Receiver<Duration>,
) -> Result<Reports, ObserveError> {
    let mut listener = reader.listen(*interval.borrow_and_update())?;
    let (sender, reports) = mpsc::channel(QUEUED_BATCHES);
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(RENEWAL);
        loop {
            let renewed = tokio::select! {
                batch = listener.next() => match batch {
                    Ok(batch) => match sender.send(batch).await {
                        Ok(()) => continue,
                        Err(_) => return,
                    },
                    Err(error) => Err(error),
                },
                () = sender.closed() => return,
                _ = tick.tick() => listener.renew(*interval.borrow_and_update()),
                Ok(()) = interval.changed() => listener.renew(*interval.borrow_and_update()),
            };
            if let Err(error) = renewed {
                tracing::warn!(%error, "cannot read the datapath's reports of dropped packets");
                return;
            }
        }
    });
    Ok(reports)
}

/// Counts a client for as long as its response lasts.
#[derive(Debug)]
struct ClientGuard(Arc<Mutex<State>>);

impl Drop for ClientGuard {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.clients -= 1;
        state.idle_since = (state.clients == 0).then(Instant::now);
    }
}

struct Client {
    /// Number of the last event that was looked at.
    seen: u64,
    past: VecDeque<Numbered>,
    live: broadcast::Receiver<Numbered>,
    query: DropQuery,
    /// When the response ends; `None` for one that does not.
    end: Option<Instant>,
    stop: watch::Receiver<bool>,
    _guard: ClientGuard,
}

impl Client {
    /// Returns the next event that the client has asked for, or one that says how many were missed.
    async fn next(&mut self) -> Option<Arc<DropEvent>> {
        loop {
            let (number, event) = match self.past.pop_front() {
                Some(event) => event,
                None => self.next_live().await?,
            };
            let missed = number - self.seen - 1;
            if missed > 0 {
                self.seen = number - 1;
                let gap = render::gap(missed, &event);
                self.past.push_front((number, event));
                return Some(Arc::new(gap));
            }
            self.seen = number;
            if render::matches(&event, &self.query) {
                return Some(event);
            }
        }
    }

    async fn next_live(&mut self) -> Option<Numbered> {
        loop {
            tokio::select! {
                received = self.live.recv() => match received {
                    Ok(event) => return Some(event),
                    // The next event's number gives the number of missed ones.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return None,
                },
                () = ended(self.end) => return None,
                _ = self.stop.wait_for(|stop| *stop) => return None,
            }
        }
    }
}

async fn ended(end: Option<Instant>) {
    match end {
        Some(end) => sleep_until(end).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
