//! Changes of the stored attachments: each is one line of the journal.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::{AttachmentKey, PortSet, Record};

use crate::Contents;

/// Parts of the contents that change atomically. Each part is the new value, not a difference:
/// applying a change twice is the same as once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// Attachment that is stored or removed, if any.
    pub(crate) subject: Option<Subject>,
    /// Addresses last given in the network of the attachment, by index of the range set.
    pub(crate) last_reserved: BTreeMap<usize, IpAddr>,
    /// Host ports that become reserved.
    pub(crate) reserved: Vec<u16>,
    /// Host ports that stop being reserved.
    pub(crate) released: Vec<u16>,
}

/// New state of an attachment's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The record is stored, in place of the one with its key.
    Put(Box<Record>),
    /// The record is removed; an unknown key changes nothing.
    Removed(AttachmentKey),
}

impl Subject {
    pub(crate) fn key(&self) -> &AttachmentKey {
        match self {
            Self::Put(record) => &record.attachment.key,
            Self::Removed(key) => key,
        }
    }
}

impl Change {
    /// Returns the change that stores a record. Its generation is used up for good: flows may carry
    /// it.
    pub(crate) fn put(record: &Record) -> Self {
        Self::of(Subject::Put(Box::new(record.clone())))
    }

    /// Returns the change that removes a record.
    pub(crate) fn remove(key: &AttachmentKey) -> Self {
        Self::of(Subject::Removed(key.clone()))
    }

    fn of(subject: Subject) -> Self {
        Self {
            subject: Some(subject),
            ..Self::default()
        }
    }

    /// Adds the difference between two sets of reserved ports to the change.
    pub(crate) fn with_ports(self, before: &PortSet, after: &PortSet) -> Self {
        Self {
            reserved: after.difference(before).iter().collect(),
            released: before.difference(after).iter().collect(),
            ..self
        }
    }

    /// Applies the change to the contents in memory.
    pub(crate) fn apply(self, contents: &mut Contents) {
        if let Some(subject) = &self.subject {
            let network = &subject.key().network;
            let last = self
                .last_reserved
                .into_iter()
                .map(|(set, address)| ((network.clone(), set), address));
            contents.last_reserved.extend(last);
        }
        match self.subject {
            Some(Subject::Put(record)) => {
                contents.generation = contents.generation.max(record.attachment.generation);
                let key = record.attachment.key.clone();
                contents.records.insert(key, *record);
            }
            Some(Subject::Removed(key)) => {
                contents.records.remove(&key);
            }
            None => {}
        }
        contents
            .reserved_ports
            .change(&self.reserved, &self.released);
    }
}
