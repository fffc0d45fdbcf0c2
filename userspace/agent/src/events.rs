//! What happens, as values: kept for a while, sent to whoever listens, logged and counted. Nobody makes up words of
//! their own for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::{Event, EventOutcome};
use engine::{Degraded, Handle, Item, Outcome, Report};
use futures_util::Stream;
use futures_util::stream;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};

use crate::clock;

/// Events that are remembered for those who ask later.
const KEPT: usize = 1024;
/// Events that a listener may be behind before it misses some.
const BEHIND: usize = 1024;

/// Everything that has happened since the start, as far as it is remembered.
#[derive(Debug)]
pub(crate) struct Events {
    past: Mutex<Past>,
    live: broadcast::Sender<Event>,
    counted: Counted,
}

/// How many events there were of each kind.
pub(crate) type Counted = Family<Kind, Counter>;

/// What events are counted by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Kind {
    action: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Default)]
struct Past {
    last: u64,
    events: VecDeque<Event>,
}

/// An event that is about to be numbered and dated.
#[derive(Clone, Debug)]
pub(crate) struct News {
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
            live: broadcast::Sender::new(BEHIND),
            counted: Counted::default(),
        }
    }
}

impl News {
    /// Of what takes no time that anybody would ask for.
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
    /// Tells everybody.
    pub(crate) fn tell(&self, news: News) {
        let (action, outcome) = (news.action, news.outcome.word());
        self.counted.get_or_create(&Kind { action, outcome }).inc();
        let mut past = self.past();
        past.last += 1;
        let event = Event {
            sequence: past.last,
            at: clock::now(),
            action: news.action.to_owned(),
            subject: news.subject,
            outcome: news.outcome,
            message: news.message,
            duration_us: u64::try_from(news.duration.as_micros()).unwrap_or(u64::MAX),
        };
        log(&event);
        if past.events.len() == KEPT {
            past.events.pop_front();
        }
        past.events.push_back(event.clone());
        // Under the lock, so that who has asked for the past misses nothing. Most often nobody listens.
        let _listeners = self.live.send(event);
    }

    /// What is remembered, as lines of JSON; and, until `stop` becomes true, what happens from now on.
    pub(crate) fn lines(
        &self,
        follow: bool,
        stop: watch::Receiver<bool>,
    ) -> impl Stream<Item = Result<String, Infallible>> + use<> {
        let past = self.past();
        let listener = Listener {
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

    /// The last event of each subject, oldest first, as lines of JSON.
    pub(crate) fn last(&self) -> impl Stream<Item = Result<String, Infallible>> + use<> {
        let past = self.past();
        let by_subject: BTreeMap<&str, &Event> = past
            .events
            .iter()
            .map(|event| (event.subject.as_str(), event))
            .collect();
        let mut events: Vec<&Event> = by_subject.into_values().collect();
        events.sort_by_key(|event| event.sequence);
        let lines: Vec<_> = events.into_iter().map(|event| Ok(line(event))).collect();
        stream::iter(lines)
    }

    /// How many there were.
    pub(crate) fn counted(&self) -> Counted {
        self.counted.clone()
    }

    fn past(&self) -> MutexGuard<'_, Past> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn line(event: &Event) -> String {
    serde_json::to_string(event).unwrap_or_default() + "\n"
}

struct Listener {
    /// The number of the event that it got last.
    seen: u64,
    past: VecDeque<Event>,
    live: Option<broadcast::Receiver<Event>>,
    stop: watch::Receiver<bool>,
}

impl Listener {
    async fn next(&mut self) -> Option<Event> {
        let event = match self.past.pop_front() {
            Some(event) => event,
            None => self.next_live().await?,
        };
        let missed = event.sequence - self.seen - 1;
        if missed > 0 {
            self.seen = event.sequence - 1;
            let gap = gap(missed, &event);
            self.past.push_front(event);
            return Some(gap);
        }
        self.seen = event.sequence;
        Some(event)
    }

    async fn next_live(&mut self) -> Option<Event> {
        let live = self.live.as_mut()?;
        loop {
            tokio::select! {
                received = live.recv() => match received {
                    Ok(event) => return Some(event),
                    // The next event's number says how many.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return None,
                },
                _ = self.stop.wait_for(|stop| *stop) => return None,
            }
        }
    }
}

/// Stands for events that a listener was too slow for; it has the number of the last of them.
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

/// What the engine has said itself, in more detail, is not said again.
fn log(event: &Event) {
    let Event {
        action,
        subject,
        message,
        ..
    } = event;
    match event.outcome {
        _ if action == "reconcile" => {}
        EventOutcome::Failed => tracing::warn!(action, subject, "failed: {message}"),
        outcome @ (EventOutcome::Done
        | EventOutcome::Repaired
        | EventOutcome::Removed
        | EventOutcome::LeftAlone
        | EventOutcome::Other) => {
            tracing::debug!(action, subject, outcome = outcome.word(), "{message}");
        }
    }
}

/// Tells what comparisons of records and kernel find, and what does not work or does again. Ends with the runtime.
pub(crate) async fn follow(handle: Handle, events: std::sync::Arc<Events>) {
    let mut reports = handle.reports();
    let mut told = Told::default();
    let mut next = handle.status().last_reconcile.clone();
    loop {
        if let Some(report) = next.take() {
            let degraded = &handle.status().degraded;
            told.news(&report, degraded)
                .into_iter()
                .for_each(|news| events.tell(news));
        }
        next = match reports.recv().await {
            Ok(report) => Some(report),
            Err(RecvError::Lagged(_)) => None,
            Err(RecvError::Closed) => return,
        };
    }
}

/// What was told already: what stays as it is, is no news.
#[derive(Debug, Default)]
struct Told {
    items: Vec<Item>,
    degraded: BTreeSet<(&'static str, String)>,
}

impl Told {
    fn news(&mut self, report: &Report, degraded: &[Degraded]) -> Vec<News> {
        let is_new = |item: &&Item| {
            matches!(item.outcome, Outcome::Repaired | Outcome::Removed)
                || !self.items.contains(item)
        };
        let mut all: Vec<News> = report.items.iter().filter(is_new).map(news).collect();
        self.items.clone_from(&report.items);
        let now = degraded
            .iter()
            .map(|one| (one.reason(), one.to_string()))
            .collect();
        let before = std::mem::replace(&mut self.degraded, now);
        let of = |outcome| {
            move |(reason, text): &(&'static str, String)| {
                News::new("degraded", *reason, outcome, text.as_str())
            }
        };
        all.extend(
            self.degraded
                .difference(&before)
                .map(of(EventOutcome::Failed)),
        );
        all.extend(
            before
                .difference(&self.degraded)
                .map(of(EventOutcome::Repaired)),
        );
        all
    }
}

fn news(item: &Item) -> News {
    let outcome = match item.outcome {
        Outcome::Repaired => EventOutcome::Repaired,
        Outcome::Removed => EventOutcome::Removed,
        Outcome::LeftAlone => EventOutcome::LeftAlone,
        Outcome::Failed => EventOutcome::Failed,
    };
    News::new(
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

    fn news(subject: &str) -> News {
        News {
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
    async fn who_follows_hears_the_past_and_then_what_happens_until_the_agent_stops() {
        let events = Events::default();
        let (stop, stopped) = watch::channel(false);
        events.tell(news("first"));
        let mut lines = Box::pin(events.lines(true, stopped));
        assert_eq!(subject(lines.next().await).as_deref(), Some("1 first"));
        events.tell(news("second"));
        assert_eq!(subject(lines.next().await).as_deref(), Some("2 second"));
        stop.send_replace(true);
        assert_eq!(subject(lines.next().await), None);
    }

    #[tokio::test]
    async fn who_only_asks_gets_the_last_events_and_an_end() {
        let events = Events::default();
        let (_stop, stopped) = watch::channel(false);
        for number in 0..KEPT + 7 {
            events.tell(news(&number.to_string()));
        }
        let lines: Vec<_> = events.lines(false, stopped).collect().await;
        assert_eq!(lines.len(), KEPT);
        let first = lines.into_iter().next();
        assert_eq!(subject(first).as_deref(), Some("8 7"));
    }

    #[tokio::test]
    async fn who_is_too_slow_is_told_how_much_it_has_missed() {
        let events = Events::default();
        let (_stop, stopped) = watch::channel(false);
        events.tell(news("first"));
        let mut lines = Box::pin(events.lines(true, stopped));
        for number in 0..BEHIND + 5 {
            events.tell(news(&number.to_string()));
        }
        assert_eq!(subject(lines.next().await).as_deref(), Some("1 first"));
        let gap: Event = serde_json::from_str(&lines.next().await.unwrap().unwrap()).unwrap();
        assert_eq!((gap.action.as_str(), gap.sequence), ("gap", 6));
        assert_eq!(gap.message, "5 events were missed");
        assert_eq!(subject(lines.next().await).as_deref(), Some("7 5"));
        assert_eq!(subject(lines.next().await).as_deref(), Some("8 6"));
    }

    #[tokio::test]
    async fn the_last_event_of_each_subject_tells_how_it_is() {
        let events = Events::default();
        for name in ["a", "b", "a"] {
            events.tell(news(name));
        }
        let last: Vec<_> = events.last().collect().await;
        let subjects = last.into_iter().map(|line| subject(Some(line)).unwrap());
        assert_eq!(subjects.collect::<Vec<_>>(), ["2 b", "3 a"]);
    }

    #[test]
    fn what_stays_wrong_is_told_once_and_once_more_when_it_is_right() {
        let failed = Item {
            subject: "veth1".to_owned(),
            outcome: Outcome::Failed,
            message: "it is somebody else's".to_owned(),
        };
        let report = Report {
            items: vec![failed],
            ..Report::default()
        };
        let mut told = Told::default();
        let mut tell =
            |report: &Report, degraded: &[Degraded]| -> Vec<(&'static str, EventOutcome)> {
                let news = told.news(report, degraded);
                news.iter()
                    .map(|news| (news.action, news.outcome))
                    .collect()
            };
        let wrong = [
            ("reconcile", EventOutcome::Failed),
            ("degraded", EventOutcome::Failed),
        ];
        assert_eq!(tell(&report, &[Degraded::NoUplink]), wrong);
        assert_eq!(tell(&report, &[Degraded::NoUplink]), []);
        let right = [("degraded", EventOutcome::Repaired)];
        assert_eq!(tell(&Report::default(), &[]), right);
    }
}
