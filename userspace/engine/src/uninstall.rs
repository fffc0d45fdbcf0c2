//! Taking Viaduct off the node: pods first, if so wished; then what was made and changed for them.
//!
//! What a sysctl was before us is remembered before it is written, and for as long as the kernel runs: a reboot has
//! put it back by itself. Knows no pin and no file: whoever opened them removes them.

use std::collections::{BTreeMap, BTreeSet};

use kernel::Kernel;
use model::{AttachmentKey, PortSet};
use planner::{Observed, Plan, Scope, SysctlKey, Written};
use store::{Store, StoreError};

use crate::transaction::{carry_out, failures};
use crate::{Engine, EngineError, Settings};

/// The choice under which the kernel's boot id is remembered, of which sysctls and reserved ports are.
const BOOT_ID: &str = "boot-id";

/// What becomes of pods that are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached {
    /// They are in the way.
    Refuse,
    /// They lose their interfaces.
    Detach,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uninstalled {
    /// Attachments that were removed.
    pub detached: Vec<AttachmentKey>,
    /// Everything else that was taken away, one line for each.
    pub removed: Vec<String>,
    /// What we have made or changed and that stays, and why.
    pub left: Vec<String>,
}

impl<K: Kernel> Engine<K> {
    /// An engine that only takes away: it has not looked at the node and makes nothing.
    pub fn dismantle(kernel: K, store: Store, settings: Settings) -> Result<Self, EngineError> {
        let mut engine = Self::new(kernel, store, settings);
        engine.begin_boot()?;
        Ok(engine)
    }

    /// Takes everything off the node that can be proven ours. A failure leaves the rest for another try.
    pub fn uninstall(&mut self, attached: Attached) -> Result<Uninstalled, EngineError> {
        let _uninstall = crash::verb("uninstall");
        let keys: Vec<AttachmentKey> = self.store.records().keys().cloned().collect();
        if attached == Attached::Refuse && !keys.is_empty() {
            return Err(EngineError::StillAttached(keys));
        }
        for key in &keys {
            self.del(key)?;
        }
        self.check_ports()?;
        let written = written(&self.store);
        let sysctls: BTreeSet<SysctlKey> = written.keys().cloned().collect();
        let observed = self.kernel.observe(&Scope::Node { sysctls })?;
        let planner::Uninstall { plan, left } = planner::plan_uninstall(&observed, &written);
        let failures = failures(carry_out(&mut self.kernel, &plan));
        if !failures.is_empty() {
            return Err(EngineError::Unfinished(failures.join("; ")));
        }
        Ok(Uninstalled {
            detached: keys,
            removed: plan.steps().iter().map(ToString::to_string).collect(),
            left: left.iter().map(ToString::to_string).collect(),
        })
    }

    /// What was remembered of the kernel of another boot is not true of this one.
    pub(crate) fn begin_boot(&mut self) -> Result<(), StoreError> {
        let boot_id = &self.settings.boot_id;
        match self.store.choice(BOOT_ID) {
            Some(before) if before == boot_id => return Ok(()),
            Some(_) => {
                self.store.put_reserved_ports(&PortSet::default())?;
                self.store.forget_sysctls()?;
            }
            None => {}
        }
        self.store.put_choice(BOOT_ID, boot_id)
    }
}

/// Remembers what the sysctls of `plan` were, before it is executed; those of links that are gone are forgotten, for
/// another link may get the name.
pub(crate) fn remember_sysctls(
    store: &mut Store,
    observed: &Observed,
    plan: &Plan,
) -> Result<(), StoreError> {
    let stale: Vec<SysctlKey> = store
        .contents()
        .sysctls
        .keys()
        .cloned()
        .map(SysctlKey)
        .filter(|key| !planner::is_lasting(key, observed))
        .collect();
    for key in stale {
        store.forget_sysctl(&key.0)?;
    }
    for (key, written) in planner::lasting_sysctls(plan, observed) {
        store.put_sysctl(&key.0, &written.before, &written.ours)?;
    }
    Ok(())
}

fn written(store: &Store) -> BTreeMap<SysctlKey, Written> {
    store
        .contents()
        .sysctls
        .iter()
        .map(|(key, (before, ours))| {
            let written = Written {
                before: before.clone(),
                ours: ours.clone(),
            };
            (SysctlKey(key.clone()), written)
        })
        .collect()
}
