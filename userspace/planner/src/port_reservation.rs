//! Reservations of host ports: a socket of the agent binds each published port.
//!
//! The hostport entry of the datapath redirects packets; the reservation keeps other processes from
//! binding the port, and makes it visible as in use in `ss` and to port allocators (behaviour K31).
//! This module plans reservations; the kernel crate opens the sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use model::{Attachment, PortMapping, Protocol};

use crate::tables::{hostport_keys, mapping_keys};
use crate::uplink::is_link_local;
use crate::{EntryKey, Step};

/// A host port to reserve, in one address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortReservation {
    /// Address of the node; the unspecified address (`0.0.0.0`, `::`) means every address of its
    /// family.
    pub address: IpAddr,
    /// Port number in host byte order.
    pub port: u16,
    /// Transport protocol.
    pub protocol: Protocol,
}

/// What reserves a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReservedBy {
    /// A bound socket of the agent.
    Socket,
    /// The hostport entry alone: this kernel has no sockets of the protocol, so no process can bind
    /// the port.
    Table,
    /// The container's runtime: its own socket, or the hostport entry until it has bound one.
    Runtime,
}

/// Owner of a reservation, and what reserves the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReservationOwner {
    /// Generation of the attachment that owns it.
    pub generation: u32,
    /// What reserves the port.
    pub by: ReservedBy,
}

/// Reservations in force, with their owners.
pub type PortReservations = BTreeMap<PortReservation, ReservationOwner>;

impl PortReservation {
    /// Returns the reservation that a hostport entry needs; `None` for any other entry.
    pub fn of(key: &EntryKey) -> Option<Self> {
        let EntryKey::Hostport {
            address,
            ipv4,
            port,
            protocol,
        } = *key
        else {
            return None;
        };
        let any = if ipv4 {
            IpAddr::from([0; 4])
        } else {
            IpAddr::from([0; 16])
        };
        Some(Self {
            address: address.unwrap_or(any),
            port,
            protocol,
        })
    }

    /// Returns the key of the hostport entry.
    pub fn key(&self) -> EntryKey {
        EntryKey::Hostport {
            address: Some(self.address).filter(|address| !address.is_unspecified()),
            ipv4: self.address.is_ipv4(),
            port: self.port,
            protocol: self.protocol,
        }
    }

    /// Returns the address and port to bind.
    pub fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    /// Returns whether a socket bound to `other` prevents binding this one: same port and protocol,
    /// and the same address or a wildcard of the same family.
    pub fn overlaps(&self, other: &Self) -> bool {
        let addresses = self.address == other.address
            || (self.address.is_ipv4() == other.address.is_ipv4()
                && (self.address.is_unspecified() || other.address.is_unspecified()));
        addresses && self.port == other.port && self.protocol == other.protocol
    }
}

impl fmt::Display for PortReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.socket(), self.protocol)
    }
}

/// Returns the reservations of `attachment`. IPv6 link-local addresses are left out: binding them
/// needs a link, which a mapping cannot name.
pub fn attachment_reservations(attachment: &Attachment) -> BTreeSet<PortReservation> {
    hostport_keys(attachment)
        .filter_map(|key| PortReservation::of(&key))
        .filter(|reservation| !is_link_local(reservation.address))
        .collect()
}

/// Returns the reservations of one `mapping` of `attachment`: one per address family of the pod.
pub fn mapping_reservations(
    attachment: &Attachment,
    mapping: &PortMapping,
) -> Vec<PortReservation> {
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
