//! Serves containers of other software, on links without our programs, and sockets of the node that
//! the cgroup programs do not see.
//!
//! The netfilter table gets its NAT chains with the first hostport, as the cgroup programs are
//! attached with it; adopted pods need entries of the node's tables for their links.

use std::net::IpAddr;

use kernel::Kernel;
use model::{Attachment, AttachmentKey};
use steps::{NetfilterState, NetfilterStep, Step};

use crate::Engine;
use crate::error::chain;

impl<K: Kernel> Engine<K> {
    /// Writes the netfilter table that the hostports of `attachment` need, unless it is there. A
    /// failure is logged and the ADD goes on: only containers of other software miss the port, and
    /// the next reconciliation tries again and reports it.
    pub(crate) fn prepare_netfilter(&mut self, attachment: &Attachment) {
        let base = &self.node.netfilter_base;
        let Some(step) = planner::plan_netfilter_for(attachment, base, &self.node.netfilter) else {
            return;
        };
        match self.kernel.execute(&step) {
            Ok(()) => self.note_netfilter(&step),
            Err(error) => {
                // Not every ADD tries again.
                self.node.netfilter = NetfilterState::Unsupported;
                tracing::warn!(
                    key = %attachment.key,
                    error = chain(&error),
                    "cannot write the netfilter table for hostports; the next reconciliation tries again"
                );
            }
        }
    }

    /// Returns the addresses of containers of other software that have a route of their own, with a
    /// stand-in for their owner.
    pub(crate) fn container_addresses(&self) -> impl Iterator<Item = (IpAddr, AttachmentKey)> {
        let owner = || {
            Some(AttachmentKey {
                network: "other-software".parse().ok()?,
                container_id: "unknown".parse().ok()?,
                ifname: "unknown".parse().ok()?,
            })
        };
        let addresses = self.node.containers.addresses.iter();
        addresses.filter_map(move |address| Some((*address, owner()?)))
    }

    /// Returns whether the kernel refuses the netfilter table that hostports need.
    pub(crate) fn lacks_nftables(&self) -> bool {
        let mut records = self.store.records().values();
        self.node.netfilter == NetfilterState::Unsupported
            && !self.node.netfilter_base.links.is_empty()
            && records.any(|record| !record.attachment.port_mappings.is_empty())
    }

    fn note_netfilter(&mut self, step: &Step) {
        let Step::Netfilter(step) = step else {
            return;
        };
        self.node.netfilter = match &**step {
            NetfilterStep::Put { table, .. } => NetfilterState::Present(table.clone()),
            NetfilterStep::Remove { .. } => NetfilterState::Absent,
        };
    }

    /// Reconciles the node after the adoption of a pod whose bridge or veth has no entries yet;
    /// `now` is in seconds since 1970. A failure is logged: the next reconciliation tries again and
    /// reports it.
    pub(crate) fn prepare_adopted(&mut self, attachment: &Attachment, now: u64) {
        if self.node.network_links.contains(&attachment.bridge) {
            return;
        }
        let key = &attachment.key;
        let mut items = Vec::new();
        match self.reconcile_node(now, &mut items) {
            Ok(reconciled) => {
                self.node = crate::node::NodeState::of(&self.node_intent(), reconciled);
            }
            Err(error) => tracing::warn!(
                %key,
                error = chain(&error),
                "cannot reconcile the node for an adopted pod; the next reconciliation tries again"
            ),
        }
        for failed in items.iter().filter(|item| item.has_failed()) {
            tracing::warn!(%key, "{}", failed.message);
        }
    }
}
