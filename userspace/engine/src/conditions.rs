//! Conditions of the node that make packets of pods die: observed after each reconciliation.

use std::collections::{BTreeMap, VecDeque};

use kernel::{Kernel, ObserveError};
use planner::NodeCondition;
use steps::{Observed, Scope, Step, SysctlKey};

use crate::Engine;

/// Writes of one sysctl within [`WINDOW`] from which on other software counts as an opponent.
const CONTESTED: usize = 3;
/// Time in seconds for which a write counts.
const WINDOW: u64 = 300;

/// Conditions of the node, as of the last observation.
#[derive(Debug, Default)]
pub(crate) struct NodeConditions {
    /// From the kernel.
    observed: Vec<NodeCondition>,
    /// From the files of the CNI installation.
    installation: Vec<NodeCondition>,
    writes: SysctlWrites,
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
struct SysctlWrites(BTreeMap<SysctlKey, (String, VecDeque<u64>)>);

impl SysctlWrites {
    fn record(&mut self, now: u64, key: &SysctlKey, value: &str) {
        let (last, times) = self.0.entry(key.clone()).or_default();
        value.clone_into(last);
        times.push_back(now);
    }

    fn forget_before(&mut self, time: u64) {
        self.0.retain(|_, (_, times)| {
            times.retain(|at| *at >= time);
            !times.is_empty()
        });
    }

    fn contested(&self) -> impl Iterator<Item = NodeCondition> + '_ {
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

impl<K: Kernel> Engine<K> {
    /// Observes the conditions of the node; `observed` is what reconciliation has left, and `now`
    /// is in seconds since 1970.
    pub(crate) fn check_node(&mut self, now: u64, observed: &Observed) -> Result<(), ObserveError> {
        let writes = &mut self.conditions.writes;
        writes.forget_before(now.saturating_sub(WINDOW));
        let intent = self.node_intent();
        let records = self.store.records();
        let query = planner::check_query(&intent, observed, records);
        let scope = Scope::Checks(Box::new(query));
        let facts = self.kernel.observe(&scope)?.checks;
        self.conditions.observed = planner::conditions(&intent, observed, records, &facts);
        Ok(())
    }
}
