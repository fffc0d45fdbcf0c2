//! Records of the sysctls that the agent has changed, for the uninstall.

use std::collections::BTreeMap;

use planner::{Plan, WrittenSysctl};
use steps::{Observed, SysctlKey};
use store::{Store, StoreError};

/// Records the current values of the sysctls that `plan` writes; call it before executing the plan.
/// Deletes the records of links that are gone, because another link may get the same name.
pub(crate) fn record_sysctls(
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
        .filter(|key| !planner::is_persistent_sysctl(key, observed))
        .collect();
    for key in stale {
        store.forget_sysctl(&key.0)?;
    }
    for (key, written) in planner::persistent_sysctls(plan, observed) {
        store.put_sysctl(&key.0, &written.before, &written.ours)?;
    }
    Ok(())
}

pub(crate) fn written(store: &Store) -> BTreeMap<SysctlKey, WrittenSysctl> {
    store
        .contents()
        .sysctls
        .iter()
        .map(|(key, (before, ours))| {
            let written = WrittenSysctl {
                before: before.clone(),
                ours: ours.clone(),
            };
            (SysctlKey(key.clone()), written)
        })
        .collect()
}
