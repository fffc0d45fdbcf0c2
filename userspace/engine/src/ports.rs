//! The ports of the node that attachments claim, kept from sockets that take any port.

use std::collections::BTreeSet;

use kernel::Kernel;
use model::{AttachmentKey, PortSet, Record};
use planner::{Scope, Step};

use crate::{Engine, EngineError};

/// What is to become of the reserved ports.
struct Reserving {
    step: Option<Step>,
    /// What may be ours while the step is under way: remembered before it.
    either: PortSet,
    /// What is ours after it.
    ours: PortSet,
}

impl<K: Kernel> Engine<K> {
    /// Reserves what is claimed, and no more; looks only where there is something to do.
    pub(crate) fn reserve_ports(&mut self) -> Result<(), EngineError> {
        match self.plan_ports(&self.claimed_ports(None))? {
            Some(reserving) => self.reserve(&reserving),
            None => Ok(()),
        }
    }

    /// As [`Engine::reserve_ports`], even where nothing seems to have changed.
    pub(crate) fn check_ports(&mut self) -> Result<(), EngineError> {
        let reserving = self.look_at_ports(&self.claimed_ports(None))?;
        self.reserve(&reserving)
    }

    /// Remembers an attachment, and reserves the ports that it claims.
    pub(crate) fn put_reserving(&mut self, record: &Record) -> Result<(), EngineError> {
        let attachment = &record.attachment;
        let others = self.claimed_ports(Some(&attachment.key));
        let claimed = others.union(&planner::claimed_ports([attachment]));
        let Some(reserving) = self.plan_ports(&claimed)? else {
            return Ok(self.store.put(record)?);
        };
        self.store.put_reserving(record, &reserving.either)?;
        self.reserve(&reserving)
    }

    /// Forgets an attachment, and reserves its ports no longer.
    pub(crate) fn remove_releasing(&mut self, key: &AttachmentKey) -> Result<(), EngineError> {
        let Some(reserving) = self.plan_ports(&self.claimed_ports(Some(key)))? else {
            return Ok(self.store.remove(key)?);
        };
        self.begin(&reserving)?;
        Ok(self.store.remove_reserving(key, &reserving.ours)?)
    }

    fn reserve(&mut self, reserving: &Reserving) -> Result<(), EngineError> {
        self.begin(reserving)?;
        Ok(self.store.put_reserved_ports(&reserving.ours)?)
    }

    /// Does what was planned; that it is done is for the caller to remember.
    fn begin(&mut self, reserving: &Reserving) -> Result<(), EngineError> {
        self.store.put_reserved_ports(&reserving.either)?;
        let Some(step) = &reserving.step else {
            return Ok(());
        };
        let done = self.kernel.execute(step);
        done.map_err(|source| EngineError::Step {
            step: step.to_string(),
            source,
        })
    }

    fn claimed_ports(&self, except: Option<&AttachmentKey>) -> PortSet {
        let others = self
            .store
            .records()
            .iter()
            .filter(|(key, _)| Some(*key) != except);
        planner::claimed_ports(others.map(|(_, record)| &record.attachment))
    }

    /// `None` where what is claimed is what is reserved.
    fn plan_ports(&mut self, claimed: &PortSet) -> Result<Option<Reserving>, EngineError> {
        if *claimed == self.store.contents().reserved_ports {
            return Ok(None);
        }
        self.look_at_ports(claimed).map(Some)
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
