//! Reservations of host ports: which port, by which means, for which attachment.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use model::Protocol;

use crate::EntryKey;

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
