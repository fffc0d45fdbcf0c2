//! Cancels requests that wait in the queue and that no caller needs any longer.
//!
//! A runtime may give up on an ADD, or send the DEL, while the ADD still waits (behaviours A3, A4).
//! Executing it would make an attachment without an owner. A request that has started is never
//! interrupted. This module does not depend on the queue: the worker calls [`RequestState::start`]
//! before it executes a request.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use model::AttachmentKey;

const WAITING: u8 = 0;
const STARTED: u8 = 1;
const CANCELLED: u8 = 2;

/// State of a request: waiting, started or cancelled. Only a waiting request can change its state.
#[derive(Debug, Default)]
pub(crate) struct RequestState(AtomicU8);

impl RequestState {
    /// Marks the request as started; `false` if it was cancelled before.
    pub(crate) fn start(&self) -> bool {
        self.change(STARTED)
    }

    /// Cancels the request; `false` if it has started, and then it is finished.
    pub(crate) fn cancel(&self) -> bool {
        self.change(CANCELLED)
    }

    /// Returns whether the request has started.
    pub(crate) fn has_started(&self) -> bool {
        self.0.load(Ordering::Acquire) == STARTED
    }

    fn change(&self, to: u8) -> bool {
        self.0
            .compare_exchange(WAITING, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

/// Cancels a request when its caller drops the future that waits for the answer.
pub(crate) struct CancelOnDrop<'a>(pub(crate) &'a RequestState);

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// ADDs that wait in the queue, by attachment.
#[derive(Debug, Default)]
pub(crate) struct PendingAdds(Mutex<BTreeMap<AttachmentKey, Vec<Weak<RequestState>>>>);

impl PendingAdds {
    /// Registers an ADD and returns its state.
    pub(crate) fn register(&self, key: &AttachmentKey) -> Arc<RequestState> {
        let state = Arc::default();
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Answered ADDs are removed here, so that the map never has more entries than the queue.
        pending.retain(|_, states| {
            states.retain(|state| state.strong_count() > 0);
            !states.is_empty()
        });
        pending
            .entry(key.clone())
            .or_default()
            .push(Arc::downgrade(&state));
        state
    }

    /// Cancels the ADDs of this attachment that wait.
    pub(crate) fn cancel(&self, key: &AttachmentKey) {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let states = pending.remove(key).unwrap_or_default();
        for state in states.iter().filter_map(Weak::upgrade) {
            state.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(container: &str) -> AttachmentKey {
        AttachmentKey {
            network: "net".parse().unwrap(),
            container_id: container.parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        }
    }

    /// behaviour A3
    #[test]
    fn a_del_cancels_earlier_adds_of_the_same_attachment() {
        let pending = PendingAdds::default();
        let before = [pending.register(&key("a")), pending.register(&key("a"))];
        let other = pending.register(&key("b"));
        pending.cancel(&key("a"));
        let after = pending.register(&key("a"));
        assert!(before.iter().all(|state| !state.start()));
        assert!(other.start() && after.start());
    }

    #[test]
    fn a_started_request_cannot_be_cancelled() {
        let state = RequestState::default();
        assert!(state.start());
        assert!(!state.cancel());
        drop(CancelOnDrop(&state));
        assert!(!state.start(), "nothing is executed twice");
    }

    #[test]
    fn answered_adds_are_removed_from_the_pending_adds() {
        let pending = PendingAdds::default();
        for container in ["a", "b", "c"] {
            drop(pending.register(&key(container)));
        }
        let _pending = pending.register(&key("d"));
        assert_eq!(pending.0.lock().unwrap().len(), 1);
    }
}
