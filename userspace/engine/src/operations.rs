//! Lists the requests that the engine has not answered yet, for `viaductctl status`.
//!
//! Shows an operator which request runs and which ones wait behind it. Depends on no queue and
//! decides nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use model::AttachmentKey;

/// A request that waits or runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// CNI verb, such as `ADD`, or a word of the API, such as `limit`.
    pub verb: &'static str,
    /// Attachment that it concerns; `None` if it concerns the node or several attachments.
    pub key: Option<AttachmentKey>,
    /// Time since the request entered the queue.
    pub since: Duration,
    /// Whether the engine executes it now.
    pub runs: bool,
}

/// Work that the engine's thread has not ended for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckOperation {
    /// Verb as in [`Operation`], or `background task`.
    pub verb: &'static str,
    /// Attachment that it concerns, if it is one.
    pub key: Option<AttachmentKey>,
    /// Time since its start, or since it was queued if the thread does not start it.
    pub since: Duration,
    /// Function of the kernel that the thread waits in, as in `/proc/<pid>/wchan`, if it waits in
    /// one.
    pub waits_in: Option<String>,
}

/// All requests without an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Operations(Arc<Mutex<Unanswered>>);

#[derive(Debug, Default)]
struct Unanswered {
    last: u64,
    requests: BTreeMap<u64, Request>,
    /// Thread that executes the requests.
    thread: Option<kernel::ThreadId>,
    /// Start of the background task that runs.
    background: Option<Instant>,
}

#[derive(Debug)]
struct Request {
    verb: &'static str,
    key: Option<AttachmentKey>,
    queued_at: Instant,
    started_at: Option<Instant>,
}

impl Operations {
    /// Adds a request; dropping the returned guard removes it.
    pub(crate) fn register(
        &self,
        verb: &'static str,
        key: Option<&AttachmentKey>,
    ) -> OperationGuard {
        let mut unanswered = self.lock();
        unanswered.last += 1;
        let number = unanswered.last;
        let request = Request {
            verb,
            key: key.cloned(),
            queued_at: Instant::now(),
            started_at: None,
        };
        unanswered.requests.insert(number, request);
        OperationGuard {
            all: self.clone(),
            number,
        }
    }

    /// Returns the requests in the order in which they entered the queue.
    pub(crate) fn list(&self) -> Vec<Operation> {
        self.lock()
            .requests
            .values()
            .map(|request| Operation {
                verb: request.verb,
                key: request.key.clone(),
                since: request.queued_at.elapsed(),
                runs: request.started_at.is_some(),
            })
            .collect()
    }

    /// Records the calling thread as the one that executes the requests.
    pub(crate) fn set_thread(&self) {
        self.lock().thread = Some(kernel::ThreadId::current());
    }

    /// Runs a background task, which counts as work of the thread.
    pub(crate) fn in_background<T>(&self, work: impl FnOnce() -> T) -> T {
        self.lock().background = Some(Instant::now());
        let done = work();
        self.lock().background = None;
        done
    }

    /// Returns the work that the thread has not ended within `limit` of its start.
    pub(crate) fn stuck(&self, limit: Duration) -> Option<StuckOperation> {
        let unanswered = self.lock();
        let titled = |request: &Request, begun| Some((request.verb, request.key.clone(), begun));
        let requests = || unanswered.requests.values();
        let running = requests().find_map(|request| titled(request, request.started_at?));
        let background = unanswered.background;
        let background = background.map(|begun| ("background task", None, begun));
        // Without either, the thread should have taken the oldest request at once.
        let oldest = requests()
            .next()
            .and_then(|request| titled(request, request.queued_at));
        let (verb, key, begun) = running.or(background).or(oldest)?;
        let since = begun.elapsed();
        (since >= limit).then(|| StuckOperation {
            verb,
            key,
            since,
            waits_in: unanswered.thread.and_then(kernel::ThreadId::waits_in),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Unanswered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a request listed until it is answered.
#[derive(Debug)]
pub(crate) struct OperationGuard {
    all: Operations,
    number: u64,
}

impl OperationGuard {
    /// Marks the request as running. Returns the time at which it was queued.
    pub(crate) fn set_running(&self) -> Instant {
        let now = Instant::now();
        let mut unanswered = self.all.lock();
        let Some(request) = unanswered.requests.get_mut(&self.number) else {
            return now;
        };
        request.started_at = Some(now);
        request.queued_at
    }
}

impl Drop for OperationGuard {
    fn drop(&mut self) {
        self.all.lock().requests.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_or_a_background_task_that_does_not_end_is_stuck_after_the_limit() {
        let operations = Operations::default();
        let waiting = operations.register("ADD", None);
        let verb = |limit| operations.stuck(limit).map(|stuck| stuck.verb);
        assert_eq!(
            verb(Duration::ZERO),
            Some("ADD"),
            "the thread does not take it"
        );
        let in_task = operations.in_background(|| verb(Duration::ZERO));
        assert_eq!(in_task, Some("background task"), "it waits for the task");
        waiting.set_running();
        assert_eq!(verb(Duration::ZERO), Some("ADD"));
        assert_eq!(verb(Duration::from_hours(1)), None);
        drop(waiting);
        assert_eq!(verb(Duration::ZERO), None);
    }

    #[test]
    fn operations_are_listed_until_they_are_answered() {
        let operations = Operations::default();
        let (add, del) = (
            operations.register("ADD", None),
            operations.register("DEL", None),
        );
        add.set_running();
        let listed = |operations: &Operations| {
            operations
                .list()
                .into_iter()
                .map(|one| (one.verb, one.runs))
                .collect::<Vec<_>>()
        };
        assert_eq!(listed(&operations), [("ADD", true), ("DEL", false)]);
        drop(add);
        assert_eq!(listed(&operations), [("DEL", false)]);
        drop(del);
        assert_eq!(listed(&operations), []);
    }
}
