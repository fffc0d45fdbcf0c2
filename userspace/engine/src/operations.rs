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

/// All requests without an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Operations(Arc<Mutex<Unanswered>>);

#[derive(Debug, Default)]
struct Unanswered {
    last: u64,
    requests: BTreeMap<u64, Request>,
}

#[derive(Debug)]
struct Request {
    verb: &'static str,
    key: Option<AttachmentKey>,
    queued_at: Instant,
    runs: bool,
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
            runs: false,
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
                runs: request.runs,
            })
            .collect()
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
    /// Marks the request as running.
    pub(crate) fn set_running(&self) {
        if let Some(request) = self.all.lock().requests.get_mut(&self.number) {
            request.runs = true;
        }
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
