//! By which of our programs sockets of the node are asked: by those that an attachment needs, from the first one on.

use kernel::Kernel;
use model::Attachment;
use planner::SocketLink;

use crate::Engine;
use crate::transaction::{carry_out, failures};

impl<K: Kernel> Engine<K> {
    /// Attaches what `attachment` needs and the cgroup lacks, by the last look. Where that fails the attachment is served
    /// all the same, as it is without a cgroup; the next look tries again, and tells.
    pub(crate) fn ask_sockets(&mut self, attachment: &Attachment) {
        let needed = planner::needed_sockets([attachment], self.settings.shaper);
        let plan = planner::attach_sockets(&needed, &self.node.sockets);
        if plan.is_empty() {
            return;
        }
        let failures = failures(carry_out(&mut self.kernel, &plan));
        for failure in &failures {
            tracing::warn!(key = %attachment.key, "{failure}");
        }
        let known = &mut self.node.sockets;
        if failures.is_empty() {
            known
                .iter_mut()
                .filter(|(hook, _)| needed.contains(hook))
                .for_each(|(_, link)| *link = SocketLink::Attached);
        } else {
            // Not each ADD tries again.
            known.retain(|hook, _| !needed.contains(hook));
        }
    }
}
