//! What the engine is asked for and has not answered yet: what waits, and what runs. For people who want to know why
//! nothing happens. Knows no queue and decides nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use model::AttachmentKey;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What is asked for: a verb of CNI, or a word of the API.
    pub verb: &'static str,
    /// Of which attachment; `None` where it is about the node, or about several.
    pub key: Option<AttachmentKey>,
    /// How long ago.
    pub since: Duration,
    /// Whether it has begun.
    pub runs: bool,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Operations(Arc<Mutex<Open>>);

#[derive(Debug, Default)]
struct Open {
    last: u64,
    requests: BTreeMap<u64, Request>,
}

#[derive(Debug)]
struct Request {
    verb: &'static str,
    key: Option<AttachmentKey>,
    asked: Instant,
    runs: bool,
}

impl Operations {
    /// Another one waits, until what is returned is dropped.
    pub(crate) fn open(&self, verb: &'static str, key: Option<&AttachmentKey>) -> Entry {
        let mut open = self.lock();
        open.last += 1;
        let number = open.last;
        let request = Request {
            verb,
            key: key.cloned(),
            asked: Instant::now(),
            runs: false,
        };
        open.requests.insert(number, request);
        Entry {
            all: self.clone(),
            number,
        }
    }

    /// What runs and what waits, in the order in which it was asked for.
    pub(crate) fn list(&self) -> Vec<Operation> {
        let open = self.lock();
        open.requests
            .values()
            .map(|request| Operation {
                verb: request.verb,
                key: request.key.clone(),
                since: request.asked.elapsed(),
                runs: request.runs,
            })
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of them, as long as it is not answered.
#[derive(Debug)]
pub(crate) struct Entry {
    all: Operations,
    number: u64,
}

impl Entry {
    /// Its turn has come.
    pub(crate) fn begin(&self) {
        if let Some(request) = self.all.lock().requests.get_mut(&self.number) {
            request.runs = true;
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.all.lock().requests.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_told_until_it_is_answered() {
        let operations = Operations::default();
        let (add, del) = (operations.open("ADD", None), operations.open("DEL", None));
        add.begin();
        let told = |operations: &Operations| {
            operations
                .list()
                .into_iter()
                .map(|one| (one.verb, one.runs))
                .collect::<Vec<_>>()
        };
        assert_eq!(told(&operations), [("ADD", true), ("DEL", false)]);
        drop(add);
        assert_eq!(told(&operations), [("DEL", false)]);
        drop(del);
        assert_eq!(told(&operations), []);
    }
}
