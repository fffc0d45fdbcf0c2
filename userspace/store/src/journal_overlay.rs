//! What the journal has and the database has not. Knows no file.

use std::collections::BTreeSet;

use model::{AttachmentKey, NetworkName, PortSet};

use crate::Contents;
use crate::change::Change;

/// Where the two differ: what it is now is in the contents.
#[derive(Debug)]
pub(crate) struct JournalOverlay {
    /// Attachments that were put or removed.
    pub(crate) records: BTreeSet<AttachmentKey>,
    /// Range sets of which an address was given, by network and index.
    pub(crate) last_reserved: BTreeSet<(NetworkName, usize)>,
    /// The reserved ports that the database knows.
    pub(crate) ports_before: PortSet,
}

impl JournalOverlay {
    /// Nothing yet, when these contents are those of the database.
    pub(crate) fn of(contents: &Contents) -> Self {
        Self {
            records: BTreeSet::new(),
            last_reserved: BTreeSet::new(),
            ports_before: contents.reserved_ports.clone(),
        }
    }

    /// Another change.
    pub(crate) fn note(&mut self, change: &Change) {
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
