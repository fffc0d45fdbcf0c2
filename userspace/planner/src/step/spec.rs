//! Things to make, described in full.

use std::fmt;

use model::{IfName, InterfaceAddress, Mac, ManagedLink, Netns, PortOptions, Route, VlanId};

use super::list;

/// A bridge to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeSpec {
    /// Interface name.
    pub name: IfName,
    /// Ethernet address, set in the same message that makes the bridge: udev never sees another.
    pub mac: Mac,
    /// MTU in bytes.
    pub mtu: u32,
    /// Whether it keeps VLANs apart.
    pub filters_vlans: bool,
    /// Alias, by which we know the bridge to be ours.
    pub alias: String,
}

/// A link to make above a bridge that is the node's end of one of its VLANs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VlanLinkSpec {
    /// Interface name.
    pub name: IfName,
    /// The bridge.
    pub bridge: IfName,
    /// The VLAN.
    pub vlan: VlanId,
    /// Alias, by which we know the link to be ours.
    pub alias: String,
}

/// A veth pair to make: one end in the host's namespace, the other at once in the pod's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VethSpec {
    /// The host's end.
    pub host: ManagedLink,
    /// Alias of the host's end, by which we know it to be ours.
    pub alias: String,
    /// Ethernet address of the host's end.
    pub host_mac: Mac,
    /// Name of the pod's end.
    pub pod: IfName,
    /// Ethernet address of the pod's end.
    pub pod_mac: Mac,
    /// MTU of both ends in bytes.
    pub mtu: u32,
    /// The pod's namespace.
    pub netns: Netns,
}

/// What to set up inside of a pod's namespace: loopback up, addresses, link up, routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSpec {
    /// The pod's namespace.
    pub netns: Netns,
    /// The pod's interface.
    pub ifname: IfName,
    /// Addresses.
    pub addresses: Vec<InterfaceAddress>,
    /// Whether IPv6 makes sure that nobody else has them; otherwise they are set with `IFA_F_NODAD`.
    pub detects_duplicates: bool,
    /// Routes.
    pub routes: Vec<Route>,
    /// Whether its TCP, slowed down by a limit, is to send as large packets to those far away as to those near.
    pub large_packets: bool,
}

impl fmt::Display for BridgeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let filtering = if self.filters_vlans {
            ", filters VLANs"
        } else {
            ""
        };
        write!(
            f,
            "make bridge {}: MAC {}, MTU {}{filtering}, alias {:?}",
            self.name, self.mac, self.mtu, self.alias
        )
    }
}

impl fmt::Display for VlanLinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "make {}: VLAN {} of {}, alias {:?}",
            self.name, self.vlan, self.bridge, self.alias
        )
    }
}

impl fmt::Display for VethSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "make veth {} ({}, alias {:?}) with {} ({}) in {}, MTU {}",
            self.host, self.host_mac, self.alias, self.pod, self.pod_mac, self.netns.path, self.mtu
        )
    }
}

impl fmt::Display for PodSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            netns,
            ifname,
            addresses,
            detects_duplicates,
            routes,
            large_packets,
        } = self;
        write!(f, "set up {ifname} in {}: {}", netns.path, list(addresses))?;
        if *detects_duplicates {
            f.write_str(", duplicates are looked for")?;
        }
        if *large_packets {
            f.write_str(", large packets to those far away")?;
        }
        for route in routes {
            write!(f, "; {} via ", route.destination)?;
            match route.gateway {
                Some(gateway) => write!(f, "{gateway}")?,
                None => write!(f, "{ifname}")?,
            }
            particulars(route, f)?;
        }
        Ok(())
    }
}

fn particulars(route: &Route, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let options = &route.options;
    let mut numbers = [
        ("metric", options.priority),
        ("table", options.table),
        ("scope", options.scope.map(u32::from)),
        ("mtu", options.mtu),
        ("advmss", options.advmss),
    ]
    .into_iter()
    .filter_map(|(name, number)| Some((name, number?)));
    numbers.try_for_each(|(name, number)| write!(f, " {name} {number}"))
}

/// What a port of a bridge is to be.
pub(super) fn write_port(
    hairpin: bool,
    options: &PortOptions,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let mode = if hairpin { "with" } else { "without" };
    write!(f, "{mode} hairpin")?;
    if options.isolated {
        f.write_str(", isolated")?;
    }
    let vlans = &options.vlans;
    if let Some(access) = vlans.access {
        write!(f, ", in VLAN {access}")?;
    }
    if !vlans.trunk.is_empty() {
        write!(f, ", tagged in VLANs {}", list(&vlans.trunk))?;
    }
    f.write_str(", up")
}
