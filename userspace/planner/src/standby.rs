//! Published ports of a container with several interfaces: one interface serves each port, the
//! others stand by.
//!
//! Runtimes send the same port mappings with each network of a container. The first interface
//! serves a port; the others take it over when the first is removed.

use std::collections::{BTreeMap, BTreeSet};

use model::{Attachment, AttachmentKey, ContainerId, PortMapping, Record, StandbyPort, State};
use steps::{EntryKey, PortReservation};

use crate::Records;
use crate::tables::{hostport_key, hostport_keys};

/// Returns the attachment with its current standby ports; `None` if they are as recorded. `leaving`
/// is an attachment that is about to give up its ports.
///
/// Of two attachments that serve one port after a crash, the older one keeps it.
pub fn with_current_standby(
    attachment: &Attachment,
    records: &Records,
    leaving: Option<&AttachmentKey>,
) -> Option<Attachment> {
    let others: Vec<&Attachment> = records
        .values()
        .filter(|record| record.state != State::Removing)
        .map(|record| &record.attachment)
        .filter(|other| {
            other.key != attachment.key
                && Some(&other.key) != leaving
                && other.key.container_id == attachment.key.container_id
        })
        .collect();
    // Sets, because a range has many ports.
    let served = |others: &[&Attachment]| -> BTreeSet<EntryKey> {
        let others = others.iter();
        others.flat_map(|other| hostport_keys(other)).collect()
    };
    let (older, newer): (Vec<&Attachment>, Vec<&Attachment>) =
        (others.iter()).partition(|other| other.generation < attachment.generation);
    let (by_older, by_newer) = (served(&older), served(&newer));
    let is_served = |port: &StandbyPort| {
        let key = hostport_key(&port.mapping, port.ipv4);
        let stands_by = attachment.standby.contains(port);
        key.is_some_and(|key| by_older.contains(&key) || stands_by && by_newer.contains(&key))
    };
    let standby: BTreeSet<StandbyPort> = own_ports(attachment).filter(is_served).collect();
    (standby != attachment.standby).then(|| Attachment {
        standby,
        ..attachment.clone()
    })
}

/// Returns the attachments with ports that share them with other attachments of their container, or
/// have done so, by container.
pub fn sharing_attachments(records: &Records) -> BTreeMap<&ContainerId, Vec<&Record>> {
    let mut containers: BTreeMap<&ContainerId, Vec<&Record>> = BTreeMap::new();
    for record in records.values() {
        let attachment = &record.attachment;
        if !attachment.port_mappings.is_empty() {
            let container = &attachment.key.container_id;
            containers.entry(container).or_default().push(record);
        }
    }
    let stands_by = |record: &&Record| !record.attachment.standby.is_empty();
    containers.retain(|_, records| records.len() > 1 || records.iter().any(stands_by));
    containers
}

/// Returns the reservations of one `mapping` that another interface of the container has.
pub fn standby_reservations(
    attachment: &Attachment,
    mapping: &PortMapping,
) -> Vec<PortReservation> {
    let standby = attachment.standby.iter();
    standby
        .filter(|port| port.mapping == *mapping)
        .filter_map(|port| PortReservation::of(&hostport_key(&port.mapping, port.ipv4)?))
        .collect()
}

fn own_ports(attachment: &Attachment) -> impl Iterator<Item = StandbyPort> {
    let families = [true, false]
        .into_iter()
        .filter(|ipv4| attachment.address(*ipv4).is_some());
    families.flat_map(|ipv4| {
        let mappings = attachment.port_mappings.iter();
        mappings.map(move |mapping| StandbyPort {
            mapping: *mapping,
            ipv4,
        })
    })
}

#[cfg(test)]
mod tests;
