//! Names of the pods that the datapath reports by slot and generation.

use std::collections::BTreeMap;
use std::time::Duration;

use api::PodView;
use engine::Handle;
use model::Record;
use tokio::time::{Instant, timeout};

use crate::http::names;

/// Minimum interval between two reads of the records for an unknown pod.
const OWNERS_INTERVAL: Duration = Duration::from_millis(200);
/// Time that the engine gets to return its records; after it, reports have no names.
const OWNERS_TIMEOUT: Duration = Duration::from_secs(1);

/// Slot of a pod and its generation.
pub(super) type SlotKey = (u32, u32);

/// The pod of a report.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    pub(super) pod: Option<PodView>,
    pub(super) container_id: String,
    pub(super) ifname: String,
}

/// Names of the pods, by slot and generation.
#[derive(Debug, Default)]
pub(super) struct Owners {
    known: BTreeMap<SlotKey, Owner>,
    read_at: Option<Instant>,
}

impl Owners {
    /// Reads the records again if a report is of an unknown pod. Slot 0 is that of no pod.
    pub(super) async fn refresh(
        &mut self,
        handle: &Handle,
        mut reported: impl Iterator<Item = SlotKey>,
    ) {
        let is_due = self
            .read_at
            .is_none_or(|at| at.elapsed() >= OWNERS_INTERVAL);
        if !is_due || !reported.any(|key| key.0 != 0 && !self.known.contains_key(&key)) {
            return;
        }
        self.read_at = Some(Instant::now());
        if let Ok(Ok(records)) = timeout(OWNERS_TIMEOUT, handle.attachments()).await {
            self.known = records.iter().map(owner).collect();
        }
    }

    /// Returns the pod of a slot.
    pub(super) fn get(&self, key: SlotKey) -> Option<&Owner> {
        self.known.get(&key)
    }
}

/// Returns slot and generation of an attachment, and what reports say of it.
fn owner(record: &Record) -> (SlotKey, Owner) {
    let attachment = &record.attachment;
    let owner = Owner {
        pod: attachment.pod.as_ref().map(names::pod),
        container_id: attachment.key.container_id.to_string(),
        ifname: attachment.key.ifname.to_string(),
    };
    ((attachment.slot, attachment.generation), owner)
}
