//! Links of high-traffic pods that wait for the TCX fast path.

use std::collections::BTreeSet;

use model::IfName;

/// Links that wait for the fast path, and links that cannot have it.
#[derive(Debug, Default)]
pub(crate) struct TcxQueue {
    /// Links to attach it to, the next one last.
    pub(crate) waiting: Vec<IfName>,
    /// Links on which attaching has failed.
    pub(crate) failed: BTreeSet<IfName>,
}

impl TcxQueue {
    /// Returns whether a link waits.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}
