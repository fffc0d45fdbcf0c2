//! What the engine keeps about attachments beside their records.

use std::collections::BTreeMap;

use model::AttachmentKey;
use planner::LastMacs;
use store::Store;

use crate::left_port::LeftPorts;
use crate::tcx_queue::TcxQueue;
use crate::trace::Recorder;

/// What the engine keeps about attachments beside their records. It is derived from the records,
/// or lost with the agent.
#[derive(Debug)]
pub(crate) struct AttachmentState {
    /// Slot that was allocated last.
    pub(crate) last_slot: u32,
    /// The MAC address that each address of a pod had last.
    pub(crate) last_macs: LastMacs,
    /// Attachments to verify in the background.
    pub(crate) pending_verification: BTreeMap<AttachmentKey, PendingVerification>,
    /// Attachments whose ports are left to a runtime that has not bound them yet.
    pub(crate) left_ports: BTreeMap<AttachmentKey, LeftPorts>,
    /// Links of high-traffic pods that wait for the TCX fast path.
    pub(crate) tcx_queue: TcxQueue,
    /// Whether compacting the journal of the records has failed since the last reconciliation.
    pub(crate) compaction_failed: bool,
}

/// A verification that waits.
#[derive(Debug)]
pub(crate) struct PendingVerification {
    /// Time of the ADD, in seconds since 1970.
    pub(crate) made_at: u64,
    /// Recorder of the ADD, if it is traced.
    pub(crate) recorder: Option<Recorder>,
}

impl AttachmentState {
    /// Returns the state that the records imply.
    pub(crate) fn of(store: &Store) -> Self {
        let attachments = || store.records().values().map(|record| &record.attachment);
        let youngest = attachments().max_by_key(|attachment| attachment.generation);
        // A network stays recorded when its last pod is gone.
        let mut last_macs = LastMacs::new(store.networks().is_empty());
        attachments().for_each(|attachment| last_macs.record(attachment));
        Self {
            last_slot: youngest.map_or(0, |attachment| attachment.slot),
            last_macs,
            pending_verification: BTreeMap::new(),
            left_ports: BTreeMap::new(),
            tcx_queue: TcxQueue::default(),
            compaction_failed: false,
        }
    }
}
