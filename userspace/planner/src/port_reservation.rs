//! Reservations of host ports: a socket of the agent binds each published port.
//!
//! The hostport entry of the datapath redirects packets; the reservation keeps other processes from
//! binding the port, and makes it visible as in use in `ss` and to port allocators (behaviour K31).
//! This module plans reservations; the kernel crate opens the sockets.

use std::collections::BTreeSet;

use model::{Attachment, PortMapping, is_link_local};
use steps::{PortReservation, PortReservations, Step};

use crate::tables::{hostport_keys, mapping_keys};

/// Returns the reservations of `attachment`. IPv6 link-local addresses are left out: binding them
/// needs a link, which a mapping cannot name. Ports that are published at the pod's own address are
/// none of the node.
pub fn attachment_reservations(attachment: &Attachment) -> BTreeSet<PortReservation> {
    hostport_keys(attachment)
        .filter_map(|key| PortReservation::of(&key))
        .filter(|reservation| {
            let address = reservation.address;
            !is_link_local(address) && !attachment.has_address(address)
        })
        .collect()
}

/// Returns the reservations of one `mapping` of `attachment`: one per address family of the pod,
/// none for a port that is published at the pod's own address.
pub fn mapping_reservations(
    attachment: &Attachment,
    mapping: &PortMapping,
) -> Vec<PortReservation> {
    if attachment.is_direct(mapping) {
        return Vec::new();
    }
    mapping_endpoints(attachment, mapping)
}

/// Returns where clients reach one `mapping` of `attachment`: an address and port per address
/// family of the pod. The address is one of the node, unspecified for all of them, or the pod's
/// own.
pub fn mapping_endpoints(attachment: &Attachment, mapping: &PortMapping) -> Vec<PortReservation> {
    let keys = mapping_keys(attachment, mapping);
    keys.filter_map(|key| PortReservation::of(&key)).collect()
}

/// Returns the reservations of `attachment` that are missing or owned by another generation.
pub(crate) fn missing(attachment: &Attachment, held: &PortReservations) -> Vec<PortReservation> {
    let is_ours = |reservation: &PortReservation| {
        let held = held.get(reservation);
        held.is_some_and(|held| held.generation == attachment.generation)
    };
    attachment_reservations(attachment)
        .into_iter()
        .filter(|reservation| !is_ours(reservation))
        .collect()
}

/// Returns the steps that reserve these ports for `attachment`.
pub(crate) fn reserve(
    attachment: &Attachment,
    reservations: impl IntoIterator<Item = PortReservation>,
) -> impl Iterator<Item = Step> {
    let generation = attachment.generation;
    reservations
        .into_iter()
        .map(move |reservation| Step::ReservePort {
            reservation,
            generation,
        })
}

/// Returns the steps that release the ports owned by this generation of `attachment`.
pub(crate) fn release(
    attachment: &Attachment,
    held: &PortReservations,
) -> impl Iterator<Item = Step> {
    let generation = attachment.generation;
    attachment_reservations(attachment)
        .into_iter()
        .filter_map(move |reservation| {
            let held = held.get(&reservation)?;
            (held.generation == generation).then_some(reservation)
        })
        .map(move |reservation| Step::ReleasePort {
            reservation,
            generation,
        })
}

#[cfg(test)]
mod tests;
