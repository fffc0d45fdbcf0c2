//! Event log: numbers events, keeps the latest, streams them to subscribers, logs and counts them.
//! Log, API and metrics use the same words because all are made from the same event.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::{Event, EventOutcome};
use engine::{Degraded, Handle, Item, Outcome, Report};
use futures_util::{Stream, stream};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};

use crate::clock;

/// Number of events in the history.
const HISTORY_LENGTH: usize = 1024;
/// Maximum length of an event's subject, and of its message, in bytes.
const MAX_TEXT: usize = 4096;
/// Number of events that a subscriber may lag behind before it misses some.
const SUBSCRIBER_BUFFER: usize = 1024;

/// The event log.
#[derive(Debug)]
pub(crate) struct Events {
    past: Mutex<History>,
    live: broadcast::Sender<Arc<Event>>,
    counters: EventCounters,
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
#[derive(Clone, Debug)]
pub(crate) struct NewEvent {
    pub(crate) action: &'static str,
    pub(crate) subject: String,
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
            outcome,
            message: message.into(),
            duration: Duration::ZERO,
        }
    }
}

impl Events {
    /// Numbers, logs and counts an event, adds it to the history, and sends it to subscribers.
    pub(crate) fn emit(&self, news: NewEvent) {
        let (action, outcome) = (news.action, news.outcome.word());
        self.counters
            .get_or_create(&EventLabels { action, outcome })
            .inc();
        let mut past = self.past();
        past.last += 1;
        let event = Arc::new(Event {
            sequence: past.last,
            at: clock::now(),
            action: news.action.to_owned(),
            subject: shortened(news.subject),
            outcome: news.outcome,
            message: shortened(news.message),
            duration_us: u64::try_from(news.duration.as_micros()).unwrap_or(u64::MAX),
        });
        log(&event);
        if past.events.len() == HISTORY_LENGTH {
            past.events.pop_front();
        }
        past.events.push_back(Arc::clone(&event));
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
            seen: past.last - past.events.len() as u64,
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
        action: "gap".to_owned(),
        subject: "events".to_owned(),
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
        EventOutcome::Failed if action == "degraded" => {
            tracing::warn!(reason = subject, "agent degraded: {message}");
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

/// Emits an event for each difference that a reconciliation finds, and for each degradation that
/// begins or ends. Runs until the engine stops.
pub(crate) async fn follow_reports(handle: Handle, events: Arc<Events>) {
    let mut reports = handle.reports();
    let mut reported = Reported::default();
    let mut next = handle.status().last_reconcile.clone();
    loop {
        if let Some(report) = next.take() {
            let degraded = &handle.status().degraded;
            reported
                .changes(&report, degraded)
                .into_iter()
                .for_each(|event| events.emit(event));
        }
        next = match reports.recv().await {
            Ok(report) => Some(report),
            Err(RecvError::Lagged(_)) => None,
            Err(RecvError::Closed) => return,
        };
    }
}

/// Items and degradations of the previous report: one that persists is not emitted again.
#[derive(Debug, Default)]
struct Reported {
    items: Vec<Item>,
    /// Text by reason and [`identity`].
    degraded: Degradations,
}

impl Reported {
    /// Returns events for what is new in `report` and `degraded`, and for degradations that have
    /// ended.
    fn changes(&mut self, report: &Report, degraded: &[Degraded]) -> Vec<NewEvent> {
        let is_new = |item: &&Item| {
            matches!(item.outcome, Outcome::Repaired | Outcome::Removed)
                || !self.items.contains(item)
        };
        let mut all: Vec<NewEvent> = report.items.iter().filter(is_new).map(item_event).collect();
        self.items.clone_from(&report.items);
        let now = degraded
            .iter()
            .map(|one| ((one.reason().word(), identity(one)), one.to_string()))
            .collect();
        let before = std::mem::replace(&mut self.degraded, now);
        all.extend(without(&self.degraded, &before, EventOutcome::Failed));
        all.extend(without(&before, &self.degraded, EventOutcome::Repaired));
        all
    }
}

/// Degradations of one report, as [`Reported`] keeps them.
type Degradations = BTreeMap<(&'static str, String), String>;

/// Returns an event for each degradation of `all` that is not in `others`.
fn without(all: &Degradations, others: &Degradations, outcome: EventOutcome) -> Vec<NewEvent> {
    all.iter()
        .filter(|(key, _)| !others.contains_key(*key))
        .map(|((reason, _), text)| NewEvent::new("degraded", *reason, outcome, text.as_str()))
        .collect()
}

/// Returns what distinguishes two degradations of one reason: their text without the number of free
/// addresses, which changes with each pod.
fn identity(degraded: &Degraded) -> String {
    let mut same = degraded.clone();
    if let Degraded::PoolNearlyExhausted { left, .. } = &mut same {
        *left = 0;
    }
    same.to_string()
}

fn item_event(item: &Item) -> NewEvent {
    let outcome = match item.outcome {
        Outcome::Repaired => EventOutcome::Repaired,
        Outcome::Removed => EventOutcome::Removed,
        Outcome::LeftAlone => EventOutcome::LeftAlone,
        Outcome::Failed => EventOutcome::Failed,
    };
    NewEvent::new(
        "reconcile",
        item.subject.as_str(),
        outcome,
        item.message.as_str(),
    )
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use super::*;

    fn event(subject: &str) -> NewEvent {
        NewEvent {
            action: "add",
            subject: subject.to_owned(),
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

    #[test]
    fn a_lasting_degradation_is_one_event_and_its_end_another() {
        let failed = Item {
            subject: "veth1".to_owned(),
            outcome: Outcome::Failed,
            message: "it is a foreign link".to_owned(),
        };
        let report = Report {
            items: vec![failed],
            ..Report::default()
        };
        let mut reported = Reported::default();
        let mut changes =
            |report: &Report, degraded: &[Degraded]| -> Vec<(&'static str, EventOutcome)> {
                let events = reported.changes(report, degraded);
                events
                    .iter()
                    .map(|event| (event.action, event.outcome))
                    .collect()
            };
        let wrong = [
            ("reconcile", EventOutcome::Failed),
            ("degraded", EventOutcome::Failed),
        ];
        assert_eq!(changes(&report, &[Degraded::NoUplink]), wrong);
        assert_eq!(changes(&report, &[Degraded::NoUplink]), []);
        let few = |left| Degraded::PoolNearlyExhausted {
            network: "default".parse().unwrap(),
            range: model::Range::new("10.1.0.0/29".parse().unwrap(), None, None, None).unwrap(),
            left,
        };
        assert_eq!(changes(&report, &[Degraded::NoUplink, few(2)]), wrong[1..]);
        assert_eq!(changes(&report, &[Degraded::NoUplink, few(1)]), []);
        assert_eq!(
            changes(&report, &[Degraded::NoUplink]),
            [("degraded", EventOutcome::Repaired)]
        );
        let right = [("degraded", EventOutcome::Repaired)];
        assert_eq!(changes(&Report::default(), &[]), right);
    }
}
