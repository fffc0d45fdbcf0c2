//! Tunnels to other nodes: VXLAN devices of ours, and their static entries.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use model::{IfName, Mac};

use crate::write_changes::write_changes;

/// Alias of the devices: only one with it is ever changed or removed.
pub const TUNNEL_ALIAS: &str = "viaduct tunnel";

/// Names of the devices: outer packets of IPv4, and of IPv6. The kernel's VXLAN device has one
/// outer family.
pub const TUNNEL_LINKS: [&str; 2] = ["viaduct.vx", "viaduct.vx6"];

/// A VXLAN device without learning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelSpec {
    /// Interface name.
    pub name: IfName,
    /// Whether the outer packets are IPv6.
    pub ipv6: bool,
    /// VXLAN network identifier (RFC 7348).
    pub vni: u32,
    /// UDP port of the outer packets.
    pub port: u16,
    /// Ethernet address.
    pub mac: Mac,
    /// MTU in bytes.
    pub mtu: u32,
}

/// A static entry of a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TunnelEntry {
    /// Ethernet address of a next hop (neighbour table).
    Neighbour {
        /// The next hop.
        gateway: IpAddr,
        /// Its Ethernet address.
        mac: Mac,
    },
    /// Outer destination of frames to an Ethernet address (forwarding database).
    Forwarding {
        /// The Ethernet address.
        mac: Mac,
        /// Address of the node.
        remote: IpAddr,
    },
}

/// What is observed of a device of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedTunnel {
    /// Whether the outer packets are IPv6.
    pub ipv6: bool,
    /// VXLAN network identifier.
    pub vni: u32,
    /// UDP port of the outer packets.
    pub port: u16,
    /// Whether the device learns addresses from what it receives.
    pub learns: bool,
    /// Its permanent entries.
    pub entries: BTreeSet<TunnelEntry>,
}

/// Change of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelChange {
    /// The device.
    pub link: IfName,
    /// The entry.
    pub entry: TunnelEntry,
    /// Whether it is added, in place of one with the same key, or removed.
    pub add: bool,
}

/// One effect on the devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunnelStep {
    /// Creates a device, which is down at first. One with this Ethernet address and no alias was
    /// left half-made, and is completed.
    Create(TunnelSpec),
    /// Deletes a device; fails for one without our alias.
    Delete(IfName),
    /// Changes entries. A change that fails stops none of the others.
    Change(Vec<TunnelChange>),
}

impl TunnelStep {
    /// Returns the step that restores the state before this one, if there is one.
    #[must_use]
    pub fn undo(&self) -> Option<Self> {
        match self {
            Self::Create(spec) => Some(Self::Delete(spec.name.clone())),
            Self::Delete(_) => None,
            Self::Change(changes) => {
                let back = changes.iter().rev().map(|change| TunnelChange {
                    add: !change.add,
                    ..change.clone()
                });
                Some(Self::Change(back.collect()))
            }
        }
    }
}

impl fmt::Display for TunnelEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Neighbour { gateway, mac } => write!(f, "neighbour {gateway} at {mac}"),
            Self::Forwarding { mac, remote } => write!(f, "{mac} to {remote}"),
        }
    }
}

impl fmt::Display for TunnelChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.add { "" } else { "no " };
        write!(f, "{sign}{} on {}", self.entry, self.link)
    }
}

impl fmt::Display for TunnelStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create(spec) => {
                let TunnelSpec {
                    name,
                    ipv6,
                    vni,
                    port,
                    mac,
                    mtu,
                } = spec;
                let family = if *ipv6 { "IPv6" } else { "IPv4" };
                write!(
                    f,
                    "create tunnel {name} over {family}, VNI {vni}, UDP port {port}, {mac}, MTU {mtu}"
                )
            }
            Self::Delete(name) => {
                write!(f, "delete tunnel {name} if its alias is {TUNNEL_ALIAS:?}")
            }
            Self::Change(changes) => write_changes("tunnels", changes, f),
        }
    }
}
