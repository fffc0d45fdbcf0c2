//! Keeps `net.ipv4.ip_local_reserved_ports` in step with the published hostports, so that the
//! kernel never picks one of them as an ephemeral port.

use std::collections::BTreeSet;

use kernel::Kernel;
use model::{AttachmentKey, PortSet, Record};
use steps::{Step, SysctlQuery};

use crate::{Engine, EngineError};

/// Change of the reserved ports.
struct PortReservationPlan {
    /// Write of the sysctl; `None` if its value is right.
    step: Option<Step>,
    /// Ports that the sysctl may have because of us while the step runs; recorded before it.
    either: PortSet,
    /// Ports that the sysctl has because of us after the step.
    ours: PortSet,
}

impl<K: Kernel> Engine<K> {
    /// Reserves the published ports and releases all others. Does not observe the sysctl if the
    /// record is up to date.
    pub(crate) fn reserve_ports(&mut self) -> Result<(), EngineError> {
        match self.plan_ports(&self.published_ports(None))? {
            Some(plan) => self.reserve(&plan),
            None => Ok(()),
        }
    }

    /// Does the same as [`Engine::reserve_ports`], but always observes the sysctl, which other
    /// software may have changed.
    pub(crate) fn check_ports(&mut self) -> Result<(), EngineError> {
        let plan = self.observe_ports(&self.published_ports(None))?;
        self.reserve(&plan)
    }

    /// Records an attachment and reserves the ports that it publishes.
    pub(crate) fn put_reserving(&mut self, record: &Record) -> Result<(), EngineError> {
        let attachment = &record.attachment;
        let others = self.published_ports(Some(&attachment.key));
        let claimed = others.union(&planner::published_ports([attachment]));
        let Some(plan) = self.plan_ports(&claimed)? else {
            return Ok(self.store.put(record)?);
        };
        self.store.put_reserving(record, &plan.either)?;
        self.reserve(&plan)
    }

    /// Releases the ports of an attachment and deletes its record.
    pub(crate) fn remove_releasing(&mut self, key: &AttachmentKey) -> Result<(), EngineError> {
        let Some(plan) = self.plan_ports(&self.published_ports(Some(key)))? else {
            return Ok(self.store.remove(key)?);
        };
        self.execute_plan(&plan)?;
        Ok(self.store.remove_reserving(key, &plan.ours)?)
    }

    fn reserve(&mut self, plan: &PortReservationPlan) -> Result<(), EngineError> {
        self.execute_plan(plan)?;
        Ok(self.store.put_reserved_ports(&plan.ours)?)
    }

    /// Records `either` and executes the step. The caller records `ours`.
    fn execute_plan(&mut self, plan: &PortReservationPlan) -> Result<(), EngineError> {
        self.store.put_reserved_ports(&plan.either)?;
        let Some(step) = &plan.step else {
            return Ok(());
        };
        let done = self.kernel.execute(step);
        done.map_err(|source| EngineError::Step {
            step: step.to_string(),
            source,
        })
    }

    fn published_ports(&self, except: Option<&AttachmentKey>) -> PortSet {
        let others = self
            .store
            .records()
            .iter()
            .filter(|(key, _)| Some(*key) != except);
        planner::published_ports(others.map(|(_, record)| &record.attachment))
    }

    /// Returns the change for `claimed`; `None` if exactly these ports are recorded as reserved.
    fn plan_ports(
        &mut self,
        claimed: &PortSet,
    ) -> Result<Option<PortReservationPlan>, EngineError> {
        if *claimed == self.store.contents().reserved_ports {
            return Ok(None);
        }
        self.observe_ports(claimed).map(Some)
    }

    fn observe_ports(&mut self, claimed: &PortSet) -> Result<PortReservationPlan, EngineError> {
        let key = planner::local_reserved_ports_key();
        let query = SysctlQuery(BTreeSet::from([key.clone()]));
        let present = self.kernel.observe(&query)?.remove(&key).flatten();
        let before = &self.store.contents().reserved_ports;
        let planned = planner::plan_local_reserved_ports(claimed, before, present.as_deref());
        let either = match planned.step {
            Some(_) => before.union(&planned.ours),
            None => planned.ours.clone(),
        };
        Ok(PortReservationPlan {
            step: planned.step,
            either,
            ours: planned.ours,
        })
    }
}
