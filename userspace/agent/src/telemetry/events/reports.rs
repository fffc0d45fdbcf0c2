//! Events of the engine's reports: repairs, and degradations that begin or end. One that persists
//! is one event, also over a restart of the agent, which logs it again: the log of each agent has
//! the degradations that it started with.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use api::{Event, EventOutcome};
use engine::{Degraded, Handle, Item, Outcome, Report};
use model::DegradedReason;
use tokio::sync::broadcast::error::RecvError;

use super::{Events, NewEvent, log_degradation};
use crate::http::names;

/// Action of repairs, and of differences that are not repaired.
const RECONCILE: &str = "reconcile";
/// Action of degradations.
const DEGRADED: &str = "degraded";

/// Emits an event for each difference that a reconciliation finds, and for each degradation that
/// begins or ends. Logs the degradations that have lasted since an earlier agent. Runs until the
/// engine stops.
pub(crate) async fn follow(handle: Handle, events: Arc<Events>) {
    let mut reports = handle.reports();
    let mut reported = Reported::of(&events.history());
    let mut inherited = reported.degraded.clone();
    let mut next = handle.status().last_reconcile.clone();
    loop {
        if let Some(report) = next.take() {
            let degraded = &handle.status().degraded;
            reported
                .changes(&report, degraded)
                .into_iter()
                .for_each(|event| events.emit(event));
            for ((reason, _), message) in reported.lasting_since(&std::mem::take(&mut inherited)) {
                log_degradation(reason, message);
            }
        }
        next = match reports.recv().await {
            Ok(report) => Some(report),
            Err(RecvError::Lagged(_)) => None,
            Err(RecvError::Closed) => return,
        };
    }
}

/// Returns the message of a degradation with this reason that began in an earlier agent and has not
/// ended.
pub(crate) fn lasting(events: &Events, reason: DegradedReason) -> Option<String> {
    let lasting = lasting_degradations(&events.history());
    let mut of_reason = lasting
        .into_iter()
        .filter(|((word, _), _)| word == reason.word());
    of_reason.next_back().map(|(_, message)| message)
}

/// Items and degradations of the previous report: one that persists is not emitted again.
#[derive(Debug, Default)]
struct Reported {
    items: Vec<NewEvent>,
    degraded: Degradations,
}

/// Messages of degradations, by reason and [`identity`].
type Degradations = BTreeMap<(String, String), String>;

impl Reported {
    /// Returns what earlier agents have reported.
    fn of(history: &VecDeque<Arc<Event>>) -> Self {
        let lasting = history.iter().filter(|event| {
            let lasts = matches!(
                event.outcome,
                EventOutcome::LeftAlone | EventOutcome::Failed
            );
            event.action == RECONCILE && lasts
        });
        let mut degraded = lasting_degradations(history);
        // It is no part of the engine's reports, which end with the engine.
        degraded.retain(|(reason, _), _| reason != DegradedReason::EngineStuck.word());
        Self {
            items: lasting.map(|event| as_new(event)).collect(),
            degraded,
        }
    }

    /// Returns events for what is new in `report` and `degraded`, and for degradations that have
    /// ended.
    fn changes(&mut self, report: &Report, degraded: &[Degraded]) -> Vec<NewEvent> {
        let items: Vec<NewEvent> = report.items.iter().map(item_event).collect();
        let is_new = |item: &&NewEvent| {
            let lasts = matches!(item.outcome, EventOutcome::LeftAlone | EventOutcome::Failed);
            !lasts || !self.items.contains(item)
        };
        let mut all: Vec<NewEvent> = items.iter().filter(is_new).cloned().collect();
        self.items = items;
        let now = degraded
            .iter()
            .map(|one| degradation(one.reason().word(), &one.to_string()))
            .collect();
        let before = std::mem::replace(&mut self.degraded, now);
        all.extend(without(&self.degraded, &before, EventOutcome::Failed));
        all.extend(without(&before, &self.degraded, EventOutcome::Repaired));
        all
    }

    /// Returns the degradations of the latest report that were there `before`.
    fn lasting_since<'a>(
        &'a self,
        before: &'a Degradations,
    ) -> impl Iterator<Item = (&'a (String, String), &'a String)> {
        self.degraded
            .iter()
            .filter(|(key, _)| before.contains_key(*key))
    }
}

/// Returns an event for each degradation of `all` that is not in `others`.
fn without(all: &Degradations, others: &Degradations, outcome: EventOutcome) -> Vec<NewEvent> {
    all.iter()
        .filter(|(key, _)| !others.contains_key(*key))
        .map(|((reason, _), text)| NewEvent::new(DEGRADED, reason.as_str(), outcome, text.as_str()))
        .collect()
}

/// Returns the degradations that have begun and not ended in `history`.
fn lasting_degradations(history: &VecDeque<Arc<Event>>) -> Degradations {
    let mut lasting = Degradations::new();
    for event in history.iter().filter(|event| event.action == DEGRADED) {
        let (key, message) = degradation(&event.subject, &event.message);
        if event.outcome == EventOutcome::Failed {
            lasting.insert(key, message);
        } else {
            lasting.remove(&key);
        }
    }
    lasting
}

/// Returns a degradation as [`Degradations`] has it.
fn degradation(reason: &str, message: &str) -> ((String, String), String) {
    let key = (reason.to_owned(), identity(reason, message));
    (key, message.to_owned())
}

/// Returns what distinguishes two degradations of one reason: their message without the number of
/// free addresses, which changes with each pod.
fn identity(reason: &str, message: &str) -> String {
    if reason != DegradedReason::PoolNearlyExhausted.word() {
        return message.to_owned();
    }
    let words = message.split(' ');
    let others: Vec<&str> = words.filter(|word| word.parse::<u64>().is_err()).collect();
    others.join(" ")
}

fn item_event(item: &Item) -> NewEvent {
    let outcome = match item.outcome {
        Outcome::Repaired => EventOutcome::Repaired,
        Outcome::Removed => EventOutcome::Removed,
        Outcome::LeftAlone => EventOutcome::LeftAlone,
        Outcome::Failed => EventOutcome::Failed,
    };
    NewEvent::new(
        RECONCILE,
        item.subject.as_str(),
        outcome,
        item.message.as_str(),
    )
    .of_pod(item.pod.as_ref().map(names::pod))
}

/// Returns the event as it was before it was numbered.
fn as_new(event: &Event) -> NewEvent {
    NewEvent::new(
        RECONCILE,
        event.subject.as_str(),
        event.outcome,
        event.message.as_str(),
    )
    .of_pod(event.pod.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lasting_degradation_is_one_event_and_its_end_another() {
        let failed = Item {
            subject: "veth1".to_owned(),
            outcome: Outcome::Failed,
            message: "it is a foreign link".to_owned(),
            pod: None,
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

    #[test]
    fn a_restarted_agent_repeats_no_lasting_event_and_reports_what_has_ended() {
        let item = |outcome| Item {
            subject: "veth1".to_owned(),
            outcome,
            message: "no record".to_owned(),
            pod: None,
        };
        let report = Report {
            items: vec![item(Outcome::LeftAlone), item(Outcome::Repaired)],
            ..Report::default()
        };
        let few = |left| Degraded::PoolNearlyExhausted {
            network: "7".parse().unwrap(),
            range: model::Range::new("10.1.0.0/29".parse().unwrap(), None, None, None).unwrap(),
            left,
        };
        let events = Events::default();
        let emit = |reported: &mut Reported, degraded: &[Degraded]| {
            let news = reported.changes(&report, degraded);
            let words: Vec<(String, &str)> = news
                .iter()
                .map(|it| (it.subject.clone(), it.outcome.word()))
                .collect();
            for event in news {
                events.emit(event);
            }
            words
        };
        let mut first = Reported::default();
        assert_eq!(emit(&mut first, &[Degraded::NoUplink, few(3)]).len(), 4);
        emit(&mut first, &[Degraded::NoUplink, few(2)]);
        let mut second = Reported::of(&events.history());
        let repaired = ("veth1".to_owned(), "repaired");
        let few_left = [few(1)];
        let no_uplink = ("no-uplink".to_owned(), "repaired");
        let inherited = second.degraded.clone();
        assert_eq!(emit(&mut second, &few_left), [repaired.clone(), no_uplink]);
        let logged: Vec<_> = second.lasting_since(&inherited).collect();
        assert_eq!(logged.len(), 1, "{logged:?}");
        assert_eq!(logged[0].0.0, "pool-nearly-exhausted");
        let mut third = Reported::of(&events.history());
        let no_uplink = ("no-uplink".to_owned(), "failed");
        let degraded = [few(1), Degraded::NoUplink];
        assert_eq!(emit(&mut third, &degraded), [repaired, no_uplink]);
        assert_eq!(lasting(&events, DegradedReason::EngineStuck), None);
        assert!(lasting(&events, DegradedReason::NoUplink).is_some());
    }
}
