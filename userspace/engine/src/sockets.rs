//! Attaches cgroup socket programs when the first attachment that needs them appears.
//!
//! Every socket of the node runs these programs, so they are not attached before a hostport or a
//! limit needs them (decision 79).

use kernel::Kernel;
use model::Attachment;
use steps::SocketHookState;

use crate::Engine;
use crate::transaction::{execute_all, failures};

impl<K: Kernel> Engine<K> {
    /// Attaches the programs that `attachment` needs and that were missing at the last observation.
    /// A failure is logged and the ADD goes on: the pod is served as on a node without a cgroup,
    /// and the next reconciliation tries again and reports it.
    pub(crate) fn attach_socket_hooks(&mut self, attachment: &Attachment) {
        let needed = planner::required_socket_hooks([attachment], self.choices.settings.shaper);
        let plan = planner::plan_attach_socket_hooks(&needed, &self.node.sockets);
        if plan.is_empty() {
            return;
        }
        let failures = failures(execute_all(&mut self.kernel, &plan));
        for failure in &failures {
            tracing::warn!(
                key = %attachment.key,
                failure,
                "cannot attach cgroup socket programs; the next reconciliation tries again"
            );
        }
        let hooks = &mut self.node.sockets;
        if failures.is_empty() {
            hooks
                .iter_mut()
                .filter(|(hook, _)| needed.contains(hook))
                .for_each(|(_, state)| *state = SocketHookState::Attached);
        } else {
            // Removed from the state of the node, so that not every ADD tries again.
            hooks.retain(|hook, _| !needed.contains(hook));
        }
    }
}
