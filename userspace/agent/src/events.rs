//! What happens, as values: kept for a while, sent to whoever listens, logged and counted. Nobody makes up words of
//! their own for it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::{Event, EventOutcome};
use engine::{Handle, Item, Outcome};
use futures_util::Stream;
use futures_util::stream;
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
        }
    }
}

impl Events {
    /// Tells everybody.
    pub(crate) fn tell(&self, news: News) {
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
            past: past.events.clone(),
            live: follow.then(|| self.live.subscribe()),
            stop,
        };
        stream::unfold(listener, |mut listener| async {
            let event = listener.next().await?;
            let line = serde_json::to_string(&event).unwrap_or_default() + "\n";
            Some((Ok(line), listener))
        })
    }

    fn past(&self) -> MutexGuard<'_, Past> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Listener {
    past: VecDeque<Event>,
    live: Option<broadcast::Receiver<Event>>,
    stop: watch::Receiver<bool>,
}

impl Listener {
    async fn next(&mut self) -> Option<Event> {
        if let Some(event) = self.past.pop_front() {
            return Some(event);
        }
        let live = self.live.as_mut()?;
        loop {
            tokio::select! {
                received = live.recv() => match received {
                    Ok(event) => return Some(event),
                    // The sequence numbers say how many it has missed.
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return None,
                },
                _ = self.stop.wait_for(|stop| *stop) => return None,
            }
        }
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
    if event.outcome == EventOutcome::Failed && action != "reconcile" {
        tracing::warn!(action, subject, "failed: {message}");
    }
}

/// Tells of every comparison of records and kernel that was not without findings. Ends with the runtime.
pub(crate) async fn follow(handle: Handle, events: std::sync::Arc<Events>) {
    let mut states = handle.states();
    let mut told = None;
    loop {
        let report = states.borrow_and_update().last_reconcile.clone();
        if let Some(report) = report
            && told.as_ref() != Some(&report.items)
        {
            report
                .items
                .iter()
                .map(news)
                .for_each(|news| events.tell(news));
            told = Some(report.items.clone());
        }
        if states.changed().await.is_err() {
            return;
        }
    }
}

fn news(item: &Item) -> News {
    News {
        action: "reconcile",
        subject: item.subject.clone(),
        outcome: match item.outcome {
            Outcome::Repaired => EventOutcome::Repaired,
            Outcome::Removed => EventOutcome::Removed,
            Outcome::LeftAlone => EventOutcome::LeftAlone,
            Outcome::Failed => EventOutcome::Failed,
        },
        message: item.message.clone(),
        duration: Duration::ZERO,
    }
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
}
