//! One change of what is remembered of attachments: what the journal has a line for. Knows no file.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::{AttachmentKey, PortSet, Record};

use crate::Contents;

/// Everything that changes together. Each part says what is, not what became of what was: a change that is made twice
/// is made once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// The attachment, if it is about one.
    pub(crate) subject: Option<Subject>,
    /// The addresses last given in the network of the attachment, by index of the range set.
    pub(crate) last_reserved: BTreeMap<usize, IpAddr>,
    /// Ports of the node that are reserved from now on.
    pub(crate) reserved: Vec<u16>,
    /// Ports of the node that are reserved no longer.
    pub(crate) released: Vec<u16>,
}

/// What becomes of an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// It is remembered so, whatever was remembered under its key.
    Put(Box<Record>),
    /// It is forgotten; one that is unknown is forgotten already.
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
    /// An attachment is remembered. Its generation is spent for good: flows may carry it.
    pub(crate) fn put(record: &Record) -> Self {
        Self::of(Subject::Put(Box::new(record.clone())))
    }

    /// An attachment is forgotten.
    pub(crate) fn remove(key: &AttachmentKey) -> Self {
        Self::of(Subject::Removed(key.clone()))
    }

    fn of(subject: Subject) -> Self {
        Self {
            subject: Some(subject),
            ..Self::default()
        }
    }

    /// And other ports are reserved than before.
    pub(crate) fn with_ports(self, before: &PortSet, after: &PortSet) -> Self {
        Self {
            reserved: after.difference(before).iter().collect(),
            released: before.difference(after).iter().collect(),
            ..self
        }
    }

    /// Makes it.
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
