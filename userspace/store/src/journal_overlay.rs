//! Journal overlay: the parts of the contents that only the journal has, and the database lacks.

use std::collections::BTreeSet;

use model::{AttachmentKey, NetworkName, PortSet};

use crate::Contents;
use crate::change::Change;

/// Keys of the contents that differ between journal and database. Their current values are in the
/// contents.
#[derive(Debug)]
pub(crate) struct JournalOverlay {
    /// Attachments that were stored or removed.
    pub(crate) records: BTreeSet<AttachmentKey>,
    /// Range sets that an address was given from, by network and index.
    pub(crate) last_reserved: BTreeSet<(NetworkName, usize)>,
    /// Reserved ports in the database.
    pub(crate) ports_before: PortSet,
}

impl JournalOverlay {
    /// Returns an empty overlay for `contents` that equal the database.
    pub(crate) fn of(contents: &Contents) -> Self {
        Self {
            records: BTreeSet::new(),
            last_reserved: BTreeSet::new(),
            ports_before: contents.reserved_ports.clone(),
        }
    }

    /// Adds the keys of another change.
    pub(crate) fn add(&mut self, change: &Change) {
        let Some(subject) = &change.subject else {
            return;
        };
        let key = subject.key();
        let sets = change
            .last_reserved
            .keys()
            .map(|set| (key.network.clone(), *set));
        self.last_reserved.extend(sets);
        self.records.insert(key.clone());
    }
}
