//! Event log: numbers events, keeps the latest over restarts, streams them to subscribers, logs and
//! counts them.
//! Log, API and metrics use the same words because all are made from the same event.

pub(crate) mod file;
pub(crate) mod reports;

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::{Event, EventOutcome, PodView};
use futures_util::{Stream, stream};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};

use crate::clock;
use crate::telemetry::events::file::EventFile;

/// Number of events in the history.
const HISTORY_LENGTH: usize = 1024;
/// Maximum length of an event's subject, and of its message, in bytes.
const MAX_TEXT: usize = 4096;
/// Number of events that a subscriber may lag behind before it misses some.
const SUBSCRIBER_BUFFER: usize = 1024;

/// Action and subject of the event that stands for events that are missing.
const GAP: &str = "gap";
const EVENTS: &str = "events";

/// The event log.
#[derive(Debug)]
pub(crate) struct Events {
    past: Mutex<History>,
    live: broadcast::Sender<Arc<Event>>,
    counters: EventCounters,
    /// Where the history outlives the agent; `None` in tests, and if its thread cannot be started.
    file: Option<EventFile>,
}

/// Number of events by action and outcome.
pub(crate) type EventCounters = Family<EventLabels, Counter>;

/// Labels of the metric `viaduct_events`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct EventLabels {
    action: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Default)]
struct History {
    last: u64,
    /// Shared with subscribers: each of many would need a copy otherwise.
    events: VecDeque<Arc<Event>>,
}

/// An event without number and time, which [`Events::emit`] adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewEvent {
    pub(crate) action: &'static str,
    pub(crate) subject: String,
    /// Pod that the subject belongs to, if its name is known.
    pub(crate) pod: Option<PodView>,
    pub(crate) outcome: EventOutcome,
    pub(crate) message: String,
    pub(crate) duration: Duration,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            past: Mutex::default(),
            live: broadcast::Sender::new(SUBSCRIBER_BUFFER),
            counters: EventCounters::default(),
            file: None,
        }
    }
}

impl NewEvent {
    /// Returns an event without a duration.
    pub(crate) fn new(
        action: &'static str,
        subject: impl Into<String>,
        outcome: EventOutcome,
        message: impl Into<String>,
    ) -> Self {
        Self {
            action,
            subject: subject.into(),
            pod: None,
            outcome,
            message: message.into(),
            duration: Duration::ZERO,
        }
    }

    /// Returns the event with the name of the pod that it concerns.
    pub(crate) fn of_pod(self, pod: Option<PodView>) -> Self {
        Self { pod, ..self }
    }
}

impl Events {
    /// Goes on with the events that an earlier agent left in the state directory. Damage of their
    /// file is logged, and is an event.
    pub(crate) fn open(state_dir: &Path) -> Self {
        let (file, kept) = match EventFile::open(state_dir) {
            Ok((file, kept)) => (Some(file), kept),
            Err(error) => {
                tracing::warn!(%error, "events are not kept over a restart: no thread for their file");
                return Self::default();
            }
        };
        let events = Self {
            past: Mutex::new(History {
                last: kept.events.back().map_or(0, |event| event.sequence),
                events: kept.events,
            }),
            file,
            ..Self::default()
        };
        if let Some(damage) = kept.damage {
            events.emit(NewEvent::new(GAP, EVENTS, EventOutcome::Failed, damage));
        }
        events
    }

    /// Waits until all events are in their file.
    pub(crate) fn finish(&self) {
        if let Some(file) = &self.file {
            file.finish();
        }
    }

    /// Returns the file of the events.
    pub(crate) fn file(&self) -> Option<EventFile> {
        self.file.clone()
    }

    /// Numbers, logs and counts an event, adds it to the history, and sends it to subscribers.
    pub(crate) fn emit(&self, news: NewEvent) {
        let (action, outcome) = (news.action, news.outcome.word());
        self.counters
            .get_or_create(&EventLabels { action, outcome })
            .inc();
        let mut past = self.past();
        past.last += 1;
        let at = clock::now();
        let event = Arc::new(Event {
            sequence: past.last,
            at,
            time: clock::rfc3339(at),
            action: news.action.to_owned(),
            subject: shortened(news.subject),
            pod: news.pod.map(|pod| PodView {
                namespace: shortened(pod.namespace),
                name: shortened(pod.name),
            }),
            outcome: news.outcome,
            message: shortened(news.message),
            duration_us: u64::try_from(news.duration.as_micros()).unwrap_or(u64::MAX),
        });
        log(&event);
        if past.events.len() == HISTORY_LENGTH {
            past.events.pop_front();
        }
        past.events.push_back(Arc::clone(&event));
        if let Some(file) = &self.file {
            file.append(Arc::clone(&event));
        }
        // Under the lock of the history, so that a new subscriber gets each event exactly once: in
        // the history or live. Sending fails if there is no subscriber.
        let _subscribers = self.live.send(event);
    }

    /// Streams the history as lines of JSON, and with `follow` also new events until `stop` is
    /// `true`.
    pub(crate) fn lines(
        &self,
        follow: bool,
        stop: watch::Receiver<bool>,
    ) -> impl Stream<Item = Result<String, Infallible>> + use<> {
        let past = self.past();
        let listener = Subscriber {
            // Numbers are missing behind an event if its file was damaged.
            seen: past.events.front().map_or(past.last, |it| it.sequence - 1),
            past: past.events.clone(),
            live: follow.then(|| self.live.subscribe()),
            stop,
        };
        stream::unfold(listener, |mut listener| async {
            let event = listener.next().await?;
            Some((Ok(line(&event)), listener))
        })
    }

    /// Streams the latest event of each subject, oldest first, as lines of JSON.
    pub(crate) fn last(&self) -> impl Stream<Item = Result<String, Infallible>> + use<> {
        let past = self.past();
        let by_subject: BTreeMap<&str, &Arc<Event>> = past
            .events
            .iter()
            .map(|event| (event.subject.as_str(), event))
            .collect();
        let mut events: Vec<Arc<Event>> = by_subject.into_values().cloned().collect();
        events.sort_by_key(|event| event.sequence);
        stream::iter(events.into_iter().map(|event| Ok(line(&event))))
    }

    /// Returns the past events, oldest first.
    fn history(&self) -> VecDeque<Arc<Event>> {
        self.past().events.clone()
    }

    /// Returns the counters of events.
    pub(crate) fn counters(&self) -> EventCounters {
        self.counters.clone()
    }

    fn past(&self) -> MutexGuard<'_, History> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shortens a text to [`MAX_TEXT`] bytes: an error may repeat a long part of its request.
fn shortened(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        text.push('…');
        text.shrink_to_fit();
    }
    text
}

fn line(event: &Event) -> String {
    serde_json::to_string(event).unwrap_or_default() + "\n"
}

struct Subscriber {
    /// Sequence number of the last event that was delivered.
    seen: u64,
    past: VecDeque<Arc<Event>>,
    live: Option<broadcast::Receiver<Arc<Event>>>,
    stop: watch::Receiver<bool>,
}

impl Subscriber {
    async fn next(&mut self) -> Option<Arc<Event>> {
        let event = match self.past.pop_front() {
            Some(event) => event,
            None => self.next_live().await?,
        };
        let missed = event.sequence - self.seen - 1;
        if missed > 0 {
            self.seen = event.sequence - 1;
            let gap = Arc::new(gap(missed, &event));
            self.past.push_front(event);
            return Some(gap);
        }
        self.seen = event.sequence;
        Some(event)
    }

    async fn next_live(&mut self) -> Option<Arc<Event>> {
        let live = self.live.as_mut()?;
        loop {
            tokio::select! {
                received = live.recv() => match received {
                    Ok(event) => return Some(event),
                    // The next event's sequence number gives the number of missed events.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return None,
                },
                _ = self.stop.wait_for(|stop| *stop) => return None,
            }
        }
    }
}

/// Returns the event that replaces missed events; it has the sequence number of the last of them.
fn gap(missed: u64, next: &Event) -> Event {
    Event {
        sequence: next.sequence - 1,
        at: next.at,
        time: next.time.clone(),
        action: GAP.to_owned(),
        subject: EVENTS.to_owned(),
        pod: None,
        outcome: EventOutcome::Failed,
        message: format!("{missed} events were missed"),
        duration_us: 0,
    }
}

/// Logs an event. `reconcile` events are not logged here: the engine logs them in more detail.
fn log(event: &Event) {
    let Event {
        action,
        subject,
        message,
        ..
    } = event;
    match event.outcome {
        _ if action == "reconcile" => {}
        _ if action == GAP => tracing::warn!("{message}"),
        EventOutcome::Failed if action == "degraded" => {
            log_degradation(subject, message);
        }
        EventOutcome::Repaired if action == "degraded" => {
            tracing::info!(reason = subject, "degradation has ended: {message}");
        }
        EventOutcome::Failed => tracing::warn!(action, subject, "{action} failed: {message}"),
        outcome @ (EventOutcome::Done
        | EventOutcome::Repaired
        | EventOutcome::Removed
        | EventOutcome::LeftAlone
        | EventOutcome::Other) => {
            let outcome = outcome.word();
            tracing::debug!(action, subject, outcome, "{action} {outcome}: {message}");
        }
    }
}

/// Logs a degradation that has begun, or that an agent finds when it starts.
fn log_degradation(reason: &str, message: &str) {
    tracing::warn!(reason, "agent degraded: {message}");
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use super::*;

    fn event(subject: &str) -> NewEvent {
        NewEvent {
            action: "add",
            subject: subject.to_owned(),
            pod: None,
            outcome: EventOutcome::Done,
            message: String::new(),
            duration: Duration::from_millis(3),
        }
    }

    fn subject(line: Option<Result<String, Infallible>>) -> Option<String> {
        let event: Event = serde_json::from_str(&line?.unwrap()).unwrap();
        Some(format!("{} {}", event.sequence, event.subject))
    }

    #[tokio::test]
    async fn follow_streams_history_then_live_events_until_shutdown() {
        let events = Events::default();
        let (stop, stopped) = watch::channel(false);
        events.emit(event("first"));
        let mut lines = Box::pin(events.lines(true, stopped));
        assert_eq!(subject(lines.next().await).as_deref(), Some("1 first"));
        events.emit(event("second"));
        assert_eq!(subject(lines.next().await).as_deref(), Some("2 second"));
        stop.send_replace(true);
        assert_eq!(subject(lines.next().await), None);
    }

    #[tokio::test]
    async fn events_without_follow_stream_the_history_and_end() {
        let events = Events::default();
        let (_stop, stopped) = watch::channel(false);
        for number in 0..HISTORY_LENGTH + 7 {
            events.emit(event(&number.to_string()));
        }
        let lines: Vec<_> = events.lines(false, stopped).collect().await;
        assert_eq!(lines.len(), HISTORY_LENGTH);
        let first = lines.into_iter().next();
        assert_eq!(subject(first).as_deref(), Some("8 7"));
    }

    #[tokio::test]
    async fn a_slow_follower_gets_a_gap_event_with_the_number_missed() {
        let events = Events::default();
        let (_stop, stopped) = watch::channel(false);
        events.emit(event("first"));
        let mut lines = Box::pin(events.lines(true, stopped));
        for number in 0..SUBSCRIBER_BUFFER + 5 {
            events.emit(event(&number.to_string()));
        }
        assert_eq!(subject(lines.next().await).as_deref(), Some("1 first"));
        let gap: Event = serde_json::from_str(&lines.next().await.unwrap().unwrap()).unwrap();
        assert_eq!((gap.action.as_str(), gap.sequence), ("gap", 6));
        assert_eq!(gap.message, "5 events were missed");
        assert_eq!(subject(lines.next().await).as_deref(), Some("7 5"));
        assert_eq!(subject(lines.next().await).as_deref(), Some("8 6"));
    }

    #[tokio::test]
    async fn events_last_returns_the_latest_event_of_each_subject() {
        let events = Events::default();
        for name in ["a", "b", "a"] {
            events.emit(event(name));
        }
        let last: Vec<_> = events.last().collect().await;
        let subjects = last.into_iter().map(|line| subject(Some(line)).unwrap());
        assert_eq!(subjects.collect::<Vec<_>>(), ["2 b", "3 a"]);
    }
}
