//! Watches objects of one kind without an end, whatever the API server does.
//!
//! kube's watcher lists and watches, follows bookmarks, resumes a watch that ended, and lists again
//! after compaction. Added here: which way of listing the server has, new credentials after a
//! refusal, delays between attempts, and what is logged.

use std::fmt::Debug;
use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::core::Status;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::connection::Credentials;
use crate::metrics::Metrics;

/// First minor version of Kubernetes 1 that knows the parameter of streamed lists. Older ones
/// ignore it, and never say where the list ends.
const STREAMING_SINCE: u32 = 27;
/// Objects in a page of a list.
const PAGE: u32 = 250;
/// Delays between attempts: they double, and a random part of up to a half is taken off, so that
/// the nodes of a cluster do not return at once.
const FIRST_DELAY: Duration = Duration::from_millis(500);
const LAST_DELAY: Duration = Duration::from_secs(30);
/// The longest delay that a server may request (`Retry-After`).
const LONGEST_REQUESTED: Duration = Duration::from_mins(2);
/// Time that a watch stays open before it has succeeded. It may have no event for days, and kube's
/// watcher does not say that it has begun.
const SETTLED: Duration = Duration::from_secs(1);
/// Failures in a row after which the credentials are read again.
const FAILURES_TO_RECONNECT: u32 = 5;

/// What is watched, and how.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) credentials: Credentials,
    /// Plural of the kind, for logs and metrics.
    pub(crate) what: &'static str,
    /// Field selector.
    pub(crate) fields: Option<String>,
    pub(crate) metrics: Metrics,
    /// Gets whether the server answers; `None` where no task needs it.
    pub(crate) answers: Option<watch::Sender<ApiServer>>,
}

/// Whether the API server answers as it should.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ApiServer {
    /// It has not been asked yet.
    #[default]
    Unknown,
    Answers,
    /// It does not, since then; with the first error of this kind.
    Fails {
        began: Instant,
        error: String,
    },
}

/// What follows a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recovery {
    /// The watcher goes on as it decides.
    Resume,
    /// A new watcher lists again.
    Relist,
    /// The credentials are read again, then as above.
    Reconnect,
}

impl Source {
    fn publish(&self, present: ApiServer) {
        if let Some(sender) = &self.answers {
            sender.send_if_modified(|before| {
                let is_new = *before != present;
                *before = present;
                is_new
            });
        }
    }
}

/// Calls `each` with all events. Events between `Init` and `InitDone` are those of a complete list.
pub(crate) async fn follow<K>(source: Source, mut each: impl FnMut(Event<K>))
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut outage = Outage::default();
    loop {
        let (mut server, mut is_streaming) = match connect(&source.credentials).await {
            Ok(connected) => connected,
            Err(error) => {
                let code = match error.downcast_ref() {
                    Some(kube::Error::Api(status)) => Some(status.code),
                    _ => None,
                };
                outage.failed(&source, code, &format!("{error:#}"));
                sleep(outage.delay(None)).await;
                continue;
            }
        };
        loop {
            let ended = run_watcher(
                &source,
                &mut server,
                &mut is_streaming,
                &mut outage,
                &mut each,
            );
            if ended.await == Recovery::Reconnect {
                break;
            }
        }
    }
}

/// A client of the API server, and what changes with each successful answer to it.
struct Server {
    client: Client,
    answers: watch::Receiver<()>,
}

/// Runs one watcher until it has to be replaced.
async fn run_watcher<K>(
    source: &Source,
    server: &mut Server,
    is_streaming: &mut bool,
    outage: &mut Outage,
    each: &mut impl FnMut(Event<K>),
) -> Recovery
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = config(source, *is_streaming);
    let mut events = pin!(watcher(Api::all(server.client.clone()), config));
    let mut is_listing = true;
    server.answers.mark_unchanged();
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = settled(&mut server.answers), if outage.began.is_some() => {
                outage.ended(source);
                continue;
            }
        };
        let Some(event) = event else {
            return Recovery::Relist;
        };
        let error = match event {
            Ok(event) => {
                if matches!(event, Event::Init) {
                    is_listing = true;
                    source.metrics.list_started(source.what);
                } else {
                    outage.ended(source);
                }
                is_listing &= !matches!(event, Event::InitDone);
                each(event);
                continue;
            }
            Err(error) => error,
        };
        let status = status(&error);
        outage.failed(source, status.map(|one| one.code), &describe(&error));
        let requested = status.and_then(requested_delay);
        sleep(outage.delay(requested)).await;
        if is_listing && *is_streaming && status.is_some_and(|one| matches!(one.code, 400 | 422)) {
            tracing::info!("this API server streams no lists: reading pages instead");
            *is_streaming = false;
            return Recovery::Relist;
        }
        match recovery(status.map(|one| one.code), outage.failures) {
            Recovery::Resume => {}
            ended @ (Recovery::Relist | Recovery::Reconnect) => return ended,
        }
        // What was answered before the failure.
        server.answers.mark_unchanged();
    }
}

/// Waits for a successful answer, and for the time in which the watch may still fail.
async fn settled(answers: &mut watch::Receiver<()>) {
    if answers.changed().await.is_err() {
        // The client has gone, so there will be no answer.
        pending::<()>().await;
    }
    sleep(SETTLED).await;
}

fn config(source: &Source, is_streaming: bool) -> watcher::Config {
    let mut config = watcher::Config::default().page_size(PAGE);
    config.field_selector.clone_from(&source.fields);
    if is_streaming {
        config.streaming_lists()
    } else {
        config
    }
}

/// Returns a client, and whether its server knows streamed lists.
async fn connect(credentials: &Credentials) -> anyhow::Result<(Server, bool)> {
    let (client, answers) = credentials.observed_client().await?;
    let is_streaming = match client.apiserver_version().await {
        Ok(version) => is_streaming_version(&version.major, &version.minor),
        // A server that does not say which version it is.
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => false,
        Err(error) => return Err(error.into()),
    };
    Ok((Server { client, answers }, is_streaming))
}

fn is_streaming_version(major: &str, minor: &str) -> bool {
    // Distributions append a sign: `33+`.
    let digits = minor.trim_end_matches(|c: char| !c.is_ascii_digit());
    major == "1"
        && digits
            .parse::<u32>()
            .is_ok_and(|one| one >= STREAMING_SINCE)
}

/// Returns the server's own words, if the error has them.
fn status(error: &watcher::Error) -> Option<&Status> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status),
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => None,
    }
}

fn requested_delay(status: &Status) -> Option<Duration> {
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}

/// Returns the error with its causes.
fn describe(error: &watcher::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(one) = cause {
        // Some errors print their cause themselves.
        let words = one.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = one.source();
    }
    text
}

fn recovery(code: Option<u16>, failures: u32) -> Recovery {
    match code {
        Some(401) => Recovery::Reconnect,
        Some(410) => Recovery::Relist,
        _ if failures >= FAILURES_TO_RECONNECT => Recovery::Reconnect,
        _ => Recovery::Resume,
    }
}

/// A time in which the server does not answer as it should.
#[derive(Debug, Default)]
struct Outage {
    began: Option<Instant>,
    failures: u32,
    /// What was logged last.
    code: Option<u16>,
}

impl Outage {
    /// Counts a failure. The first one of an outage is logged, and each one of another kind.
    fn failed(&mut self, source: &Source, code: Option<u16>, error: &str) {
        source.metrics.api_failed(source.what, code);
        let is_new = self.began.is_none() || self.code != code;
        let began = *self.began.get_or_insert_with(Instant::now);
        self.failures = self.failures.saturating_add(1);
        self.code = code;
        // After compaction the list is read again, as intended.
        if is_new && code != Some(410) {
            tracing::warn!(what = source.what, %error, "watch failed: the last known state stays in effect");
            let error = format!("{}: {error}", source.what);
            source.publish(ApiServer::Fails { began, error });
        } else {
            tracing::debug!(what = source.what, %error, "watch failed");
        }
    }

    fn ended(&mut self, source: &Source) {
        source.metrics.api_reached(source.what);
        if let Some(began) = self.began.take() {
            let seconds = began.elapsed().as_secs();
            tracing::info!(what = source.what, seconds, "watch resumed");
        }
        source.publish(ApiServer::Answers);
        self.failures = 0;
    }

    fn delay(&self, requested: Option<Duration>) -> Duration {
        let doubled = FIRST_DELAY.saturating_mul(1 << self.failures.saturating_sub(1).min(10));
        let longest = doubled.min(LAST_DELAY);
        let own = longest.mul_f64(1.0 - fastrand::f64() / 2.0);
        own.max(requested.unwrap_or_default().min(LONGEST_REQUESTED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_streamed_from_the_version_that_says_where_they_end() {
        for (major, minor, expected) in [
            ("1", "36", true),
            ("1", "27+", true),
            ("1", "26", false),
            ("1", "20", false),
            ("2", "40", false),
            ("1", "", false),
        ] {
            assert_eq!(
                is_streaming_version(major, minor),
                expected,
                "{major}.{minor}"
            );
        }
    }

    #[test]
    fn a_refused_token_is_read_again_and_an_expired_version_listed_again() {
        assert_eq!(recovery(Some(401), 1), Recovery::Reconnect);
        assert_eq!(recovery(Some(410), 1), Recovery::Relist);
        for code in [None, Some(403), Some(429), Some(500)] {
            assert_eq!(recovery(code, 1), Recovery::Resume);
            assert_eq!(recovery(code, FAILURES_TO_RECONNECT), Recovery::Reconnect);
        }
    }

    #[test]
    fn delays_grow_to_half_a_minute_and_respect_the_servers_request() {
        let after = |failures| Outage {
            failures,
            ..Outage::default()
        };
        for failures in [1, 3, 8, u32::MAX] {
            let delay = after(failures).delay(None);
            assert!(delay >= FIRST_DELAY / 2 && delay <= LAST_DELAY, "{delay:?}");
        }
        assert!(after(20).delay(None) >= LAST_DELAY / 2);
        let requested = Duration::from_secs(45);
        assert_eq!(after(1).delay(Some(requested)), requested);
        assert_eq!(after(1).delay(Some(Duration::MAX)), LONGEST_REQUESTED);
    }
}
