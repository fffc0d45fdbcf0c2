//! Uninstalls Viaduct from the node: detaches pods if requested, then removes what was made for
//! them and restores sysctls.
//!
//! The value of a sysctl is recorded before it is written for the first time. The record is valid
//! for one boot, because a reboot resets sysctls. Pins and files are removed by the agent, which
//! opened them.

use std::collections::BTreeSet;

use kernel::Kernel;
use model::{AttachmentKey, PortSet};
use steps::{NodeQuery, SysctlKey};
use store::{Store, StoreError};

use crate::sysctl_records::written;
use crate::transaction::{execute_all, failures};
use crate::{Engine, EngineError, Settings};

/// Name in the store of the boot id for which the recorded sysctls, reserved ports, firewall rules
/// and settings of interfaces are valid.
const BOOT_ID: &str = "boot-id";

/// Policy of an uninstall for attached pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachedPods {
    /// Fail while pods are attached.
    Refuse,
    /// Detach all pods first; they lose their interfaces.
    Detach,
}

/// Result of an uninstall.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uninstalled {
    /// Detached attachments.
    pub detached: Vec<AttachmentKey>,
    /// Everything else that was removed or restored, one line for each step.
    pub removed: Vec<String>,
    /// Changes that could not be reverted, with the reason.
    pub left: Vec<String>,
}

impl<K: Kernel> Engine<K> {
    /// Returns an engine for [`Engine::uninstall`] only: it does not observe or reconcile the node.
    pub fn for_uninstall(kernel: K, store: Store, settings: Settings) -> Result<Self, EngineError> {
        let mut engine = Self::new(kernel, store, settings);
        engine.discard_previous_boot()?;
        Ok(engine)
    }

    /// Removes everything from the node that is provably Viaduct's. After a failure the rest stays
    /// for the next try.
    pub fn uninstall(&mut self, attached: AttachedPods) -> Result<Uninstalled, EngineError> {
        let _uninstall = crash::verb("uninstall");
        let keys: Vec<AttachmentKey> = self.store.records().keys().cloned().collect();
        if attached == AttachedPods::Refuse && !keys.is_empty() {
            return Err(EngineError::StillAttached(keys));
        }
        for key in &keys {
            self.del(key)?;
        }
        self.check_ports()?;
        // With the bridges still there: the rules name them.
        let forwarding = self.remove_forwarding()?;
        let written = written(&self.store);
        let sysctls: BTreeSet<SysctlKey> = written.keys().cloned().collect();
        let observed = self.kernel.observe(&NodeQuery { sysctls })?;
        let planner::Uninstall { plan, left } = planner::plan_uninstall(&observed, &written);
        let failures = failures(execute_all(&mut self.kernel, &plan));
        if !failures.is_empty() {
            return Err(EngineError::Unfinished(failures.join("; ")));
        }
        Ok(Uninstalled {
            detached: keys,
            removed: (forwarding.into_iter())
                .chain(plan.steps().iter().map(ToString::to_string))
                .collect(),
            left: left.iter().map(ToString::to_string).collect(),
        })
    }

    /// Discards the recorded sysctls, reserved ports, firewall rules and settings of interfaces if
    /// they are of an earlier boot.
    pub(crate) fn discard_previous_boot(&mut self) -> Result<(), StoreError> {
        let boot_id = &self.choices.settings.boot_id.clone();
        match self.store.choice(BOOT_ID) {
            Some(before) if before == boot_id => return Ok(()),
            Some(_) => {
                self.store.put_reserved_ports(&PortSet::default())?;
                self.store.forget_sysctls()?;
                self.forget_firewall()?;
                self.delete_all_settings_records()?;
            }
            None => {}
        }
        self.store.put_choice(BOOT_ID, boot_id)
    }
}
