//! What to observe of an attachment.

use model::Attachment;
use steps::{AttachmentQuery, EntryKey};

use crate::port_reservation::attachment_reservations;
use crate::tables::attachment_entries;

/// Returns what to observe of `attachment`, for CHECK, DEL and repair.
pub fn attachment_query(attachment: &Attachment) -> AttachmentQuery {
    let own = attachment_entries(attachment).into_keys();
    AttachmentQuery {
        key: attachment.key.clone(),
        netns: attachment.netns.clone(),
        host_link: attachment.host_link().name().clone(),
        bridge: attachment.bridge.clone(),
        entries: own.chain([EntryKey::RuleSets(attachment.slot)]).collect(),
        reservations: attachment_reservations(attachment),
    }
}
