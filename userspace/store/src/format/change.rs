//! JSON form of changes, one per line of the journal.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::AttachmentKey;
use serde::{Deserialize, Serialize};

use super::text::Text;
use super::{StoredRecord, write};
use crate::change::{Change, Subject};

pub(crate) fn write_change(change: &Change) -> Vec<u8> {
    write(&StoredChange::from(change))
}

pub(crate) fn read_change(bytes: &[u8]) -> Result<Change, String> {
    let stored: StoredChange = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    Ok(stored.into())
}

#[derive(Serialize, Deserialize)]
struct StoredChange {
    #[serde(flatten)]
    subject: Option<StoredSubject>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    last_reserved: BTreeMap<usize, IpAddr>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    reserved: Vec<u16>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    released: Vec<u16>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredSubject {
    Put(Box<StoredRecord>),
    Removed(StoredKey),
}

#[derive(Serialize, Deserialize)]
struct StoredKey {
    network: Text<model::NetworkName>,
    container_id: Text<model::ContainerId>,
    ifname: Text<model::IfName>,
}

impl From<&Change> for StoredChange {
    fn from(change: &Change) -> Self {
        Self {
            subject: change.subject.as_ref().map(StoredSubject::from),
            last_reserved: change.last_reserved.clone(),
            reserved: change.reserved.clone(),
            released: change.released.clone(),
        }
    }
}

impl From<StoredChange> for Change {
    fn from(stored: StoredChange) -> Self {
        Self {
            subject: stored.subject.map(Subject::from),
            last_reserved: stored.last_reserved,
            reserved: stored.reserved,
            released: stored.released,
        }
    }
}

impl From<&Subject> for StoredSubject {
    fn from(subject: &Subject) -> Self {
        match subject {
            Subject::Put(record) => Self::Put(Box::new(StoredRecord::from(record.as_ref()))),
            Subject::Removed(key) => Self::Removed(StoredKey {
                network: Text(key.network.clone()),
                container_id: Text(key.container_id.clone()),
                ifname: Text(key.ifname.clone()),
            }),
        }
    }
}

impl From<StoredSubject> for Subject {
    fn from(stored: StoredSubject) -> Self {
        match stored {
            StoredSubject::Put(record) => Self::Put(Box::new((*record).into())),
            StoredSubject::Removed(key) => Self::Removed(AttachmentKey {
                network: key.network.0,
                container_id: key.container_id.0,
                ifname: key.ifname.0,
            }),
        }
    }
}
