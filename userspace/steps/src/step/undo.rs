//! Steps that undo changes of sysctls, table entries and port reservations.

use crate::{Entry, EntryKey, Step, SysctlKey};

pub(super) fn set_sysctl(key: &SysctlKey, value: &str, previous: &str) -> Step {
    Step::SetSysctl {
        key: key.clone(),
        value: value.to_owned(),
        previous: previous.to_owned(),
    }
}

pub(super) fn undo_put(key: &EntryKey, entry: &Entry, previous: Option<&Entry>) -> Step {
    let restored = match (entry, previous) {
        (Entry::Pod { generation, .. }, None | Some(Entry::FreePod { .. })) => {
            Some(Entry::FreePod {
                generation: *generation,
            })
        }
        (_, previous) => previous
            .filter(|entry| !entry.refers_to_gone_link())
            .cloned(),
    };
    match restored {
        Some(restored) => Step::PutEntry {
            key: key.clone(),
            entry: restored,
            previous: Some(entry.clone()),
        },
        None => Step::RemoveEntry {
            key: key.clone(),
            previous: entry.clone(),
        },
    }
}

pub(super) fn undo_remove(key: &EntryKey, previous: &Entry) -> Option<Step> {
    let gone = key.refers_to_gone_link() || previous.refers_to_gone_link();
    (!gone).then(|| Step::PutEntry {
        key: key.clone(),
        entry: previous.clone(),
        previous: None,
    })
}

pub(super) fn undo_reservation(step: &Step) -> Option<Step> {
    if let Step::ReservePort {
        reservation,
        generation,
    } = *step
    {
        return Some(Step::ReleasePort {
            reservation,
            generation,
        });
    }
    if let Step::ReleasePort {
        reservation,
        generation,
    } = *step
    {
        return Some(Step::ReservePort {
            reservation,
            generation,
        });
    }
    None
}
