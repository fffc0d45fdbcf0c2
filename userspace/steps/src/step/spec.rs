//! Complete descriptions of the links and the pod configuration that steps create.

use std::fmt;

use model::{IfName, InterfaceAddress, Mac, ManagedLink, Netns, PortOptions, Route, VlanId};

/// A bridge to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeSpec {
    /// Interface name.
    pub name: IfName,
    /// Ethernet address, set in the same netlink message that creates the bridge: udev never sees
    /// another.
    pub mac: Mac,
    /// MTU in bytes.
    pub mtu: u32,
    /// Whether VLAN filtering is on.
    pub filters_vlans: bool,
    /// Alias that identifies the bridge as ours.
    pub alias: String,
}

/// A veth pair to create as the node's interface in one of a bridge's VLANs. It gets the bridge's
/// Ethernet address and MTU. The other end, named by the kernel, is a bridge port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VlanLinkSpec {
    /// Interface name of the node's end.
    pub name: IfName,
    /// Interface name of the bridge.
    pub bridge: IfName,
    /// VLAN of the port's untagged frames.
    pub vlan: VlanId,
    /// Whether the port stays in the bridge's default VLAN as well.
    pub keeps_default: bool,
    /// Alias that identifies both ends as ours.
    pub alias: String,
}

/// A veth pair to create: one end in the host's namespace, the other directly in the pod's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VethSpec {
    /// Host's end: name and derived Ethernet address.
    pub host: ManagedLink,
    /// Alias that identifies the host's end as ours.
    pub alias: String,
    /// Ethernet address of the host's end.
    pub host_mac: Mac,
    /// Name of the pod's end.
    pub pod: IfName,
    /// Ethernet address of the pod's end.
    pub pod_mac: Mac,
    /// MTU of both ends in bytes.
    pub mtu: u32,
    /// Pod's network namespace.
    pub netns: Netns,
}

/// Configuration inside of a pod's namespace, applied in this order: loopback up, addresses, link
/// up, routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSpec {
    /// Pod's network namespace.
    pub netns: Netns,
    /// Interface name in the pod.
    pub ifname: IfName,
    /// Addresses with the prefix lengths of their subnets.
    pub addresses: Vec<InterfaceAddress>,
    /// Whether IPv6 performs duplicate address detection for them; otherwise they are set with
    /// `IFA_F_NODAD`.
    pub detects_duplicates: bool,
    /// Routes, in the order in which they are added.
    pub routes: Vec<Route>,
    /// Whether a rate-limited pod's TCP sends segments as large to distant peers as to near ones
    /// (`tcp_tso_rtt_log`).
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
            "make {}: veth in VLAN {} of {}, alias {:?}",
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
            f.write_str(", with duplicate address detection")?;
        }
        if *large_packets {
            f.write_str(", large segments to distant peers")?;
        }
        for route in routes {
            write!(f, "; {} via ", route.destination)?;
            match route.gateway {
                Some(gateway) => write!(f, "{gateway}")?,
                None => write!(f, "{ifname}")?,
            }
            write_route_options(route, f)?;
        }
        Ok(())
    }
}

fn write_route_options(route: &Route, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

/// Writes the settings of a bridge port: hairpin, isolation, VLANs.
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
    if let Some(native) = vlans.native() {
        write!(f, ", in VLAN {native}")?;
    }
    if !vlans.trunk.is_empty() {
        write!(f, ", tagged in VLANs {}", list(&vlans.trunk))?;
    }
    f.write_str(", up")
}

/// Returns the items, separated by commas.
pub(super) fn list<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    items.join(", ")
}
