//! Attaches the TCX fast path to pods with high traffic.
//!
//! The TCX program runs in front of a pod's `from_pod` hook and handles packets of flows that are
//! already cached. Attaching it holds the RTNL lock for an RCU grace period. So it is a background
//! task, and no ADD waits for it. The fast path is optional: a link on which it cannot be attached
//! keeps its hook, and is not tried again until the agent restarts.

use std::collections::BTreeSet;

use kernel::Kernel;
use model::IfName;
use steps::{Hook, Step};

use crate::Engine;
use crate::error::chain;

/// Links that one search may queue. With one search every five seconds, RTNL is held for at most
/// one hundredth of the time.
const MAX_PER_SEARCH: usize = 4;

impl<K: Kernel> Engine<K> {
    /// Queues the links of the pods that have become high-traffic since the last search, at most
    /// [`MAX_PER_SEARCH`].
    pub(crate) fn find_high_traffic_pods(&mut self) {
        self.attachments.tcx_queue.waiting.clear();
        if !self.node.bypass && !self.node.offload {
            return;
        }
        let excluded: BTreeSet<IfName> = self
            .node
            .tcx_links
            .union(&self.attachments.tcx_queue.failed)
            .cloned()
            .collect();
        let links = planner::tcx_fast_path_candidates(self.store.records(), &excluded);
        match self.kernel.sent(&links.keys().copied().collect()) {
            Ok(sent) => {
                let mut waiting = planner::high_traffic_links(&links, &sent);
                waiting.truncate(MAX_PER_SEARCH);
                waiting.reverse();
                self.attachments.tcx_queue.waiting = waiting;
            }
            Err(error) => tracing::warn!(
                error = chain(&error),
                "cannot read pod counters to find high-traffic pods; trying again at the next sweep"
            ),
        }
    }

    /// Attaches the fast path to the next link that waits. Returns whether there was one.
    pub(crate) fn attach_tcx_fast_path(&mut self) -> bool {
        let Some(link) = self.attachments.tcx_queue.waiting.pop() else {
            return false;
        };
        let _verb = crash::verb("tcx-fast-path");
        let attach = Step::Attach {
            link: link.clone(),
            hooks: BTreeSet::from([Hook::FromBusyPod]),
        };
        match self.kernel.execute(&attach) {
            Ok(()) => {
                tracing::info!(%link, "attached TCX fast path for high-traffic pod");
                self.node.tcx_links.insert(link);
            }
            // The pod was deleted since the search.
            Err(error) if error.is_gone() => {}
            Err(error) => {
                tracing::warn!(
                    %link,
                    error = chain(&error),
                    "cannot attach TCX fast path for high-traffic pod; its packets keep the from_pod hook"
                );
                self.attachments.tcx_queue.failed.insert(link);
            }
        }
        true
    }
}
