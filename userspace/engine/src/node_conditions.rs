//! Conditions of the node that other software or the operator cause, as last observed.

use std::collections::{BTreeMap, VecDeque};

use planner::NodeCondition;
use steps::{Step, SysctlKey};

/// Writes of one sysctl within [`WINDOW`] from which on other software counts as an opponent.
const CONTESTED: usize = 3;

/// Time in seconds for which a write counts.
pub(crate) const WINDOW: u64 = 300;

/// Conditions of the node, as of the last observation.
#[derive(Debug, Default)]
pub(crate) struct NodeConditions {
    /// From the kernel.
    pub(crate) observed: Vec<NodeCondition>,
    /// From the files of the CNI installation.
    pub(crate) installation: Vec<NodeCondition>,
    pub(crate) writes: SysctlWrites,
}

impl NodeConditions {
    /// Replaces the conditions of the CNI installation.
    pub(crate) fn set_installation(&mut self, conditions: Vec<NodeCondition>) {
        self.installation = conditions;
    }

    /// Records that reconciliation wrote sysctls; `now` is in seconds since 1970.
    pub(crate) fn record_writes<'a>(&mut self, now: u64, steps: impl Iterator<Item = &'a Step>) {
        for step in steps {
            if let Step::SetSysctl { key, value, .. } = step {
                self.writes.record(now, key, value);
            }
        }
    }

    /// Returns all conditions.
    pub(crate) fn all(&self) -> impl Iterator<Item = NodeCondition> + '_ {
        let found = self.observed.iter().chain(&self.installation).cloned();
        found.chain(self.writes.contested())
    }
}

/// Times at which reconciliations wrote sysctls that had another value.
#[derive(Debug, Default)]
pub(crate) struct SysctlWrites(BTreeMap<SysctlKey, (String, VecDeque<u64>)>);

impl SysctlWrites {
    pub(crate) fn record(&mut self, now: u64, key: &SysctlKey, value: &str) {
        let (last, times) = self.0.entry(key.clone()).or_default();
        value.clone_into(last);
        times.push_back(now);
    }

    pub(crate) fn forget_before(&mut self, time: u64) {
        self.0.retain(|_, (_, times)| {
            times.retain(|at| *at >= time);
            !times.is_empty()
        });
    }

    pub(crate) fn contested(&self) -> impl Iterator<Item = NodeCondition> + '_ {
        let often = self
            .0
            .iter()
            .filter(|(_, (_, times))| times.len() >= CONTESTED);
        often.map(|(key, (value, _))| NodeCondition::SysctlContested {
            sysctl: key.0.clone(),
            value: value.clone(),
        })
    }
}
