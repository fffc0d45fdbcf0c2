//! ADDs that wait in the queue, and how a DEL keeps them from being begun.
//!
//! A runtime may give up on an ADD and send the DEL while the ADD still waits (BEHAVIOURS A3): to execute it all the
//! same would be work for nobody, and an attachment for a moment. Knows no queue: whoever executes an ADD asks first.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use model::AttachmentKey;

/// Says to one ADD whether it has been cancelled. The ADD waits for as long as this lives.
#[derive(Debug)]
pub(crate) struct Cancel(Arc<AtomicBool>);

impl Cancel {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The ADDs that wait, by attachment.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Mutex<BTreeMap<AttachmentKey, Vec<Weak<AtomicBool>>>>);

impl Waiters {
    /// Another ADD waits.
    pub(crate) fn wait(&self, key: &AttachmentKey) -> Cancel {
        let flag = Arc::new(AtomicBool::new(false));
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that wait no more are forgotten here, so that there are never more than fit the queue.
        waiting.retain(|_, flags| {
            flags.retain(|flag| flag.strong_count() > 0);
            !flags.is_empty()
        });
        let of_key = waiting.entry(key.clone()).or_default();
        of_key.push(Arc::downgrade(&flag));
        Cancel(flag)
    }

    /// Cancels the ADDs that wait for this attachment.
    pub(crate) fn cancel(&self, key: &AttachmentKey) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let flags = waiting.remove(key).unwrap_or_default();
        for flag in flags.iter().filter_map(Weak::upgrade) {
            flag.store(true, Ordering::Release);
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

    /// BEHAVIOURS A3
    #[test]
    fn a_del_cancels_the_adds_of_its_own_attachment_that_came_before_it() {
        let waiters = Waiters::default();
        let before = [waiters.wait(&key("a")), waiters.wait(&key("a"))];
        let other = waiters.wait(&key("b"));
        waiters.cancel(&key("a"));
        let after = waiters.wait(&key("a"));
        assert!(before.iter().all(Cancel::is_cancelled));
        assert!(!other.is_cancelled() && !after.is_cancelled());
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
