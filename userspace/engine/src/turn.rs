//! The turn of a request that waits in the queue, and who may take it away before it has come.
//!
//! A runtime may give up on an ADD, or send the DEL, while the ADD still waits (behaviours A3, A4): to execute it all
//! the same would be work for nobody, and an attachment for a moment. What has begun is never broken off. Knows no
//! queue: whoever executes a request asks first.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use model::AttachmentKey;

const WAITS: u8 = 0;
const BEGUN: u8 = 1;
const WITHDRAWN: u8 = 2;

/// Whether a request waits, is begun, or will never be.
#[derive(Debug, Default)]
pub(crate) struct Turn(AtomicU8);

impl Turn {
    /// The turn has come; `false` when the request was withdrawn before.
    pub(crate) fn begin(&self) -> bool {
        self.leave(BEGUN)
    }

    /// Nobody wants the request executed any more; `false` when it is begun, and then it is finished.
    pub(crate) fn withdraw(&self) -> bool {
        self.leave(WITHDRAWN)
    }

    /// Whether the turn has come.
    pub(crate) fn has_begun(&self) -> bool {
        self.0.load(Ordering::Acquire) == BEGUN
    }

    fn leave(&self, to: u8) -> bool {
        let left = self
            .0
            .compare_exchange(WAITS, to, Ordering::AcqRel, Ordering::Acquire);
        left.is_ok()
    }
}

/// Withdraws a request when whoever waits for its answer does so no more.
pub(crate) struct WhileWanted<'a>(pub(crate) &'a Turn);

impl Drop for WhileWanted<'_> {
    fn drop(&mut self) {
        self.0.withdraw();
    }
}

/// The ADDs that wait, by attachment.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Mutex<BTreeMap<AttachmentKey, Vec<Weak<Turn>>>>);

impl Waiters {
    /// Another ADD waits.
    pub(crate) fn wait(&self, key: &AttachmentKey) -> Arc<Turn> {
        let turn = Arc::default();
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that wait no more are forgotten here, so that there are never more than fit the queue.
        waiting.retain(|_, turns| {
            turns.retain(|turn| turn.strong_count() > 0);
            !turns.is_empty()
        });
        let of_key = waiting.entry(key.clone()).or_default();
        of_key.push(Arc::downgrade(&turn));
        turn
    }

    /// Cancels the ADDs that wait for this attachment.
    pub(crate) fn cancel(&self, key: &AttachmentKey) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let turns = waiting.remove(key).unwrap_or_default();
        for turn in turns.iter().filter_map(Weak::upgrade) {
            turn.withdraw();
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
    fn a_del_cancels_the_adds_of_its_own_attachment_that_came_before_it() {
        let waiters = Waiters::default();
        let before = [waiters.wait(&key("a")), waiters.wait(&key("a"))];
        let other = waiters.wait(&key("b"));
        waiters.cancel(&key("a"));
        let after = waiters.wait(&key("a"));
        assert!(before.iter().all(|turn| !turn.begin()));
        assert!(other.begin() && after.begin());
    }

    #[test]
    fn what_has_begun_cannot_be_withdrawn() {
        let turn = Turn::default();
        assert!(turn.begin());
        assert!(!turn.withdraw());
        drop(WhileWanted(&turn));
        assert!(!turn.begin(), "nothing is executed twice");
    }

    #[test]
    fn adds_that_wait_no_more_are_forgotten() {
        let waiters = Waiters::default();
        for container in ["a", "b", "c"] {
            drop(waiters.wait(&key(container)));
        }
        let _waits = waiters.wait(&key("d"));
        assert_eq!(waiters.0.lock().unwrap().len(), 1);
    }
}
