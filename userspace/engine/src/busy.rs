//! The short way in front of busy pods' hooks: who gets it, a few at a time, when nobody waits for anything.
//!
//! To attach it keeps the lock of all links for an RCU grace period, so it is a chore, and nobody's ADD. Nothing depends on
//! it: what cannot be attached is not tried again until the next start.

use std::collections::BTreeSet;

use kernel::Kernel;
use model::IfName;
use planner::{Hook, Step};

use crate::Engine;
use crate::error::chain;

/// Most links of one look. With one every five seconds, the lock of all links is taken for one hundredth of the time at most.
const MOST: usize = 4;

/// Pods whose packets take the short way, and those that are to.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    /// Links that are to get it, the next one last.
    next: Vec<IfName>,
    /// Links that cannot have it.
    without: BTreeSet<IfName>,
}

impl Busy {
    /// Whether a link is to get it.
    pub(crate) fn is_due(&self) -> bool {
        !self.next.is_empty()
    }
}

impl<K: Kernel> Engine<K> {
    /// Looks which pods have become busy since the last look.
    pub(crate) fn look_for_busy(&mut self) {
        self.busy.next.clear();
        if !self.node.bypass {
            return;
        }
        let already: BTreeSet<IfName> = self.node.busy.union(&self.busy.without).cloned().collect();
        let links = planner::may_be_busy(self.store.records(), &already);
        match self.kernel.sent(&links.keys().copied().collect()) {
            Ok(sent) => {
                let mut next = planner::busiest(&links, &sent);
                next.truncate(MOST);
                next.reverse();
                self.busy.next = next;
            }
            Err(error) => tracing::warn!(error = chain(&error), "cannot tell which pods are busy"),
        }
    }

    /// Gives one link the short way, if one is due.
    pub(crate) fn hasten(&mut self) -> bool {
        let Some(link) = self.busy.next.pop() else {
            return false;
        };
        let _hasten = crash::verb("hasten");
        let attach = Step::Attach {
            link: link.clone(),
            hooks: BTreeSet::from([Hook::FromBusyPod]),
        };
        match self.kernel.execute(&attach) {
            Ok(()) => {
                tracing::info!(%link, "a busy pod's packets take the short way");
                self.node.busy.insert(link);
            }
            Err(error) if error.is_gone() => {}
            Err(error) => {
                tracing::warn!(%link, error = chain(&error), "a busy pod's packets cannot take the short way");
                self.busy.without.insert(link);
            }
        }
        true
    }
}
