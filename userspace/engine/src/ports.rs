//! The ports of the node that attachments claim, kept from sockets that take any port.

use std::collections::BTreeSet;

use kernel::Kernel;
use model::{AttachmentKey, PortSet};
use planner::Scope;

use crate::{Engine, EngineError};

impl<K: Kernel> Engine<K> {
    /// Reserves what is claimed, and no more, as if `leaving` were gone; looks only where there is something to do.
    pub(crate) fn reserve_ports(
        &mut self,
        leaving: Option<&AttachmentKey>,
    ) -> Result<(), EngineError> {
        let claimed = self.claimed_ports(leaving);
        if claimed == self.store.contents().reserved_ports {
            return Ok(());
        }
        self.reserve(&claimed)
    }

    /// As [`Engine::reserve_ports`], even where nothing seems to have changed.
    pub(crate) fn check_ports(&mut self) -> Result<(), EngineError> {
        let claimed = self.claimed_ports(None);
        self.reserve(&claimed)
    }

    fn claimed_ports(&self, leaving: Option<&AttachmentKey>) -> PortSet {
        let records = self.store.records().iter();
        let staying = records.filter(|(key, _)| Some(*key) != leaving);
        planner::claimed_ports(staying.map(|(_, record)| &record.attachment))
    }

    fn reserve(&mut self, claimed: &PortSet) -> Result<(), EngineError> {
        let before = self.store.contents().reserved_ports.clone();
        let keys = BTreeSet::from([planner::reserved_ports_key()]);
        let observed = self.kernel.observe(&Scope::Sysctls(keys))?;
        let planned = planner::plan_reserved_ports(claimed, &before, &observed);
        let Some(step) = planned.step else {
            return Ok(self.store.put_reserved_ports(&planned.ours)?);
        };
        let either = before.union(&planned.ours);
        self.store.put_reserved_ports(&either)?;
        self.kernel
            .execute(&step)
            .map_err(|source| EngineError::Step {
                step: step.to_string(),
                source,
            })?;
        Ok(self.store.put_reserved_ports(&planned.ours)?)
    }
}
