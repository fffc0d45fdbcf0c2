//! Limits of the node and of the agent: cgroup, files, tracked connections, neighbours.

use std::collections::BTreeSet;

use super::{CheckFacts, NodeCondition};
use crate::Records;

/// File descriptors that the agent needs beside those of port reservations.
const NEEDED_FILES: u64 = 256;

/// Use of a limited resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Usage {
    /// Amount in use.
    pub used: u64,
    /// Largest amount.
    pub limit: u64,
}

impl Usage {
    /// Returns whether nothing is left.
    pub const fn is_full(self) -> bool {
        self.used >= self.limit
    }

    /// Returns whether less than a twentieth is left.
    const fn is_nearly_full(self) -> bool {
        self.limit.saturating_sub(self.used) < self.limit.div_ceil(20)
    }
}

/// Which of the node's processes the cgroup programs see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupCoverage {
    /// Whether it is the root of the hierarchy, which contains all processes.
    pub is_root: bool,
    /// Whether the operator has chosen it; else it is the mounted root, or that of a cgroup
    /// namespace, which looks like it.
    pub is_configured: bool,
    /// Names of processes of the agent's network namespace that it does not contain, some of them.
    pub outside: BTreeSet<String>,
}

impl CgroupCoverage {
    /// Returns whether processes of the node are outside of the cgroup. A cgroup namespace shows its
    /// own root as that of the hierarchy, so no process outside of it is visible.
    pub fn is_partial(&self) -> bool {
        !self.is_root && (!self.is_configured || !self.outside.is_empty())
    }
}

pub(super) fn conditions(
    records: &Records,
    facts: &CheckFacts,
    bypass: bool,
) -> Vec<NodeCondition> {
    let mut found = Vec::new();
    let mut attachments = records.values().map(|record| &record.attachment);
    let has_ports = attachments.any(|attachment| !attachment.port_mappings.is_empty());
    if let Some(cgroup) = &facts.cgroup
        && is_uncovered(cgroup, has_ports)
    {
        found.push(NodeCondition::CgroupUncovered {
            outside: cgroup.outside.clone(),
        });
    }
    let files = facts.open_files.filter(|files| {
        let left = files.limit.saturating_sub(files.used);
        left < NEEDED_FILES.max(files.limit / 10)
    });
    found.extend(files.map(NodeCondition::FileLimit));
    // Packets that bypass netfilter are not tracked.
    let conntrack = facts.conntrack.filter(|usage| usage.is_nearly_full());
    found.extend(
        conntrack
            .filter(|_| !bypass)
            .map(NodeCondition::ConntrackFull),
    );
    let tables = facts.neighbours_overflow.into_iter().zip([true, false]);
    let full = tables.filter(|(overflows, _)| *overflows);
    found.extend(full.map(|(_, ipv4)| NodeCondition::NeighboursFull { ipv4 }));
    found
}

/// A cgroup that the operator has chosen matters with the first published port.
fn is_uncovered(cgroup: &CgroupCoverage, has_ports: bool) -> bool {
    cgroup.is_partial() && (has_ports || !cgroup.is_configured)
}
