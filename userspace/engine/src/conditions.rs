//! Conditions of the node that make packets of pods die: observed after each reconciliation.

use kernel::{Kernel, ObserveError};
use steps::Observed;

use crate::Engine;
use crate::node_conditions::WINDOW;

impl<K: Kernel> Engine<K> {
    /// Observes the conditions of the node; `observed` is what reconciliation has left, and `now`
    /// is in seconds since 1970.
    pub(crate) fn check_node(&mut self, now: u64, observed: &Observed) -> Result<(), ObserveError> {
        let writes = &mut self.upkeep.conditions.writes;
        writes.forget_before(now.saturating_sub(WINDOW));
        let intent = self.node_intent();
        let records = self.store.records();
        let query = planner::check_query(&intent, observed, records);
        let facts = self.kernel.observe(&query)?;
        self.upkeep.conditions.observed = planner::conditions(&intent, observed, records, &facts);
        Ok(())
    }
}
