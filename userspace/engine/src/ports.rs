//! The ports of the node that attachments claim, kept from sockets that take any port.

use std::collections::BTreeSet;

use kernel::Kernel;
use model::{Attachment, AttachmentKey, PortSet};
use planner::{Scope, Step};

use crate::{Engine, EngineError};

/// What is to become of the reserved ports.
#[derive(Debug)]
pub(crate) struct Reserving {
    step: Option<Step>,
    /// What may be ours while the step is under way: remembered before it.
    pub(crate) either: PortSet,
    /// What is ours after it.
    pub(crate) ours: PortSet,
}

impl<K: Kernel> Engine<K> {
    /// Reserves what is claimed, and no more; looks only where there is something to do.
    pub(crate) fn reserve_ports(&mut self) -> Result<(), EngineError> {
        let reserving = self.plan_ports(self.claimed_ports(None))?;
        self.reserve(&reserving)
    }

    /// As [`Engine::reserve_ports`], even where nothing seems to have changed.
    pub(crate) fn check_ports(&mut self) -> Result<(), EngineError> {
        let reserving = self.look_at_ports(&self.claimed_ports(None))?;
        self.reserve(&reserving)
    }

    fn reserve(&mut self, reserving: &Reserving) -> Result<(), EngineError> {
        self.store.put_reserved_ports(&reserving.either)?;
        self.change_ports(reserving)?;
        Ok(self.store.put_reserved_ports(&reserving.ours)?)
    }

    /// What is to become of them for an attachment that comes.
    pub(crate) fn plan_ports_of(&mut self, coming: &Attachment) -> Result<Reserving, EngineError> {
        let claimed = self.claimed_ports(None);
        self.plan_ports(claimed.union(&planner::claimed_ports([coming])))
    }

    /// What is to become of them without an attachment.
    pub(crate) fn plan_ports_without(
        &mut self,
        leaving: &AttachmentKey,
    ) -> Result<Reserving, EngineError> {
        self.plan_ports(self.claimed_ports(Some(leaving)))
    }

    /// Does what was planned. Remembering is the caller's.
    pub(crate) fn change_ports(&mut self, reserving: &Reserving) -> Result<(), EngineError> {
        let Some(step) = &reserving.step else {
            return Ok(());
        };
        let done = self.kernel.execute(step);
        done.map_err(|source| EngineError::Step {
            step: step.to_string(),
            source,
        })
    }

    fn claimed_ports(&self, leaving: Option<&AttachmentKey>) -> PortSet {
        let records = self.store.records().iter();
        let staying = records.filter(|(key, _)| Some(*key) != leaving);
        planner::claimed_ports(staying.map(|(_, record)| &record.attachment))
    }

    fn plan_ports(&mut self, claimed: PortSet) -> Result<Reserving, EngineError> {
        if claimed != self.store.contents().reserved_ports {
            return self.look_at_ports(&claimed);
        }
        Ok(Reserving {
            step: None,
            either: claimed.clone(),
            ours: claimed,
        })
    }

    fn look_at_ports(&mut self, claimed: &PortSet) -> Result<Reserving, EngineError> {
        let keys = BTreeSet::from([planner::reserved_ports_key()]);
        let observed = self.kernel.observe(&Scope::Sysctls(keys))?;
        let before = &self.store.contents().reserved_ports;
        let planned = planner::plan_reserved_ports(claimed, before, &observed);
        let either = match planned.step {
            Some(_) => before.union(&planned.ours),
            None => planned.ours.clone(),
        };
        Ok(Reserving {
            step: planned.step,
            either,
            ours: planned.ours,
        })
    }
}
