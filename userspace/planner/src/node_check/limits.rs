//! Limits of the node and of the agent: cgroup, files, tracked connections, neighbours.

use steps::{CgroupCoverage, CheckFacts, Usage};

use super::NodeCondition;
use crate::Records;

/// File descriptors that the agent needs beside those of port reservations.
const NEEDED_FILES: u64 = 256;

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
    let files = facts.open_files.filter(|files| is_short_of_files(*files));
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

/// Returns whether an agent with these open files cannot publish many more ports: each needs one.
pub fn is_short_of_files(files: Usage) -> bool {
    let left = files.limit.saturating_sub(files.used);
    left < NEEDED_FILES.max(files.limit / 10)
}

/// A cgroup that the operator has chosen matters with the first published port.
fn is_uncovered(cgroup: &CgroupCoverage, has_ports: bool) -> bool {
    cgroup.is_partial() && (has_ports || !cgroup.is_configured)
}
