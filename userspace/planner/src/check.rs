//! Compares an attachment with its record: for CNI CHECK, and to verify an ADD before it is
//! answered.
//!
//! Later plugins in a chain may change the interface (behaviour S11): more addresses, more routes,
//! another MAC address or MTU are no difference. A runtime that removes our default route on
//! purpose (Multus, behaviour C15) says so in `prevResult` of CHECK; the caller leaves that route
//! out of the attachment. Repairs are planned elsewhere.

use std::fmt;

use model::{Attachment, HostLink, IfName, InterfaceAddress, Mac, NetnsPath, Route};
use steps::{AttachmentNetns, EntryKey, Hook, Link, ObservedAttachment, PodSide, PortReservation};

use crate::hooks::POD_HOOKS;
use crate::tables::attachment_entries;
use crate::{HostSide, port_reservation};

/// One difference between an attachment's record and the kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Difference {
    /// The pod's namespace cannot be opened, or another one is at its path.
    NetnsGone(NetnsPath),
    /// The host's end of the veth does not exist.
    HostLinkGone(IfName),
    /// Another link has the name of the host's end, and is not ours.
    HostLinkForeign(IfName),
    /// The host's end is down.
    HostLinkDown(IfName),
    /// The host's end is not a port of the bridge.
    NotInBridge {
        /// Name of the host's end.
        link: IfName,
        /// Name of the bridge in the record.
        bridge: IfName,
    },
    /// The port's hairpin flag differs.
    Hairpin {
        /// Name of the host's end.
        link: IfName,
        /// Value in the record.
        wanted: bool,
    },
    /// The port's isolation flag differs.
    Isolation {
        /// Name of the host's end.
        link: IfName,
        /// Value in the record.
        wanted: bool,
    },
    /// The VLANs of the port differ.
    Vlans(IfName),
    /// A TC program is not attached.
    HookMissing {
        /// Name of the host's end.
        link: IfName,
        /// Missing program.
        hook: Hook,
    },
    /// The pod's interface does not exist.
    PodLinkGone(IfName),
    /// The pod's interface is down.
    PodLinkDown(IfName),
    /// The pod's interface is not the peer of the host's end.
    NotPeers {
        /// Name of the host's end.
        host: IfName,
        /// Name of the pod's interface.
        pod: IfName,
    },
    /// The pod's interface has another MAC address than the one that it must send from.
    PodMac {
        /// Interface name in the pod.
        ifname: IfName,
        /// Address that it has.
        present: Option<Mac>,
        /// Address that it must send from.
        recorded: Mac,
    },
    /// The pod's interface lacks an address.
    AddressMissing(InterfaceAddress),
    /// The pod's interface lacks a route.
    RouteMissing(Route),
    /// A table entry is missing.
    EntryMissing(EntryKey),
    /// A table entry differs: it is another attachment's, or outdated.
    EntryDiffers(EntryKey),
    /// A host port is not reserved for the attachment.
    PortNotReserved(PortReservation),
}

/// Returns every difference between the record and the observation; empty when there is none.
pub fn check(attachment: &Attachment, observed: &ObservedAttachment) -> Vec<Difference> {
    let mut differences = check_host(attachment, &observed.host);
    differences.extend(pod_differences(attachment, observed));
    differences
}

/// Returns the differences outside of the pod's namespace. Changes of later plugins inside the pod
/// do not matter to it.
pub fn check_host(attachment: &Attachment, observed: &impl HostSide) -> Vec<Difference> {
    let name = attachment.host_link().name().clone();
    let mut differences = match observed.host_link(attachment) {
        None => vec![Difference::HostLinkGone(name)],
        Some(link) if is_foreign(attachment, link) => vec![Difference::HostLinkForeign(name)],
        Some(link) => link_differences(attachment, link, observed),
    };
    for (key, entry) in attachment_entries(attachment) {
        match observed.entries().get(&key) {
            None => differences.push(Difference::EntryMissing(key)),
            Some(present) if *present != entry => differences.push(Difference::EntryDiffers(key)),
            Some(_) => {}
        }
    }
    let missing = port_reservation::missing(attachment, observed.port_reservations());
    differences.extend(missing.into_iter().map(Difference::PortNotReserved));
    differences
}

fn is_foreign(attachment: &Attachment, link: &Link) -> bool {
    match attachment.host_link() {
        HostLink::Managed(_) => link.alias.as_deref() != Some(&*attachment.alias()),
        HostLink::Adopted(_) => !link.is_host_end_of(attachment),
    }
}

fn link_differences(
    attachment: &Attachment,
    link: &Link,
    observed: &impl HostSide,
) -> Vec<Difference> {
    let mut differences = Vec::new();
    if attachment.adopted.is_none() {
        // The settings of another plugin's link are for that plugin to check.
        differences.extend(bridge_differences(attachment, link, observed));
    }
    let hooks = observed.pod_hooks(attachment);
    for hook in POD_HOOKS {
        if !hooks.contains(&hook) {
            let link = attachment.host_link().name().clone();
            differences.push(Difference::HookMissing { link, hook });
        }
    }
    differences
}

fn bridge_differences(
    attachment: &Attachment,
    link: &Link,
    observed: &impl HostSide,
) -> Vec<Difference> {
    let name = || attachment.host_link().name().clone();
    let mut differences = Vec::new();
    if !link.up {
        differences.push(Difference::HostLinkDown(name()));
    }
    let bridge = observed.bridge(attachment);
    if bridge.is_none() || link.controller != bridge.map(|bridge| bridge.index) {
        differences.push(Difference::NotInBridge {
            link: name(),
            bridge: attachment.bridge.clone(),
        });
    } else {
        differences.extend(port_differences(attachment, link));
    }
    differences
}

fn port_differences(attachment: &Attachment, port: &Link) -> Vec<Difference> {
    let link = attachment.host_link().name().clone();
    let options = &attachment.port;
    let hairpin = (port.hairpin != attachment.hairpin).then(|| Difference::Hairpin {
        link: link.clone(),
        wanted: attachment.hairpin,
    });
    let isolation = (port.switching.isolated != options.isolated).then(|| Difference::Isolation {
        link: link.clone(),
        wanted: options.isolated,
    });
    let vlans = (!port.switching.has(&options.vlans)).then_some(Difference::Vlans(link));
    [hairpin, isolation, vlans].into_iter().flatten().collect()
}

fn pod_differences(attachment: &Attachment, observed: &ObservedAttachment) -> Vec<Difference> {
    if attachment.is_moved_by_runtime() {
        // The runtime has moved the pod's end, or is about to.
        return Vec::new();
    }
    let pod = match &observed.netns {
        AttachmentNetns::Missing | AttachmentNetns::Replaced => {
            return vec![Difference::NetnsGone(attachment.netns.path.clone())];
        }
        AttachmentNetns::Same { pod: None } => {
            return vec![Difference::PodLinkGone(attachment.key.ifname.clone())];
        }
        AttachmentNetns::Same { pod: Some(pod) } => pod,
    };
    let mut differences = Vec::new();
    if !pod.up && !attachment.port.left_down {
        differences.push(Difference::PodLinkDown(attachment.key.ifname.clone()));
    }
    differences.extend(not_peers(attachment, pod, observed));
    differences.extend(mac_difference(attachment, pod));
    let missing = attachment
        .addresses
        .iter()
        .map(|assigned| assigned.address)
        .filter(|address| !pod.addresses.contains(address));
    differences.extend(missing.map(Difference::AddressMissing));
    let missing = attachment
        .routes
        .iter()
        .filter(|route| !pod.routes.contains(route));
    differences.extend(missing.copied().map(Difference::RouteMissing));
    differences
}

/// Returns the difference where the datapath drops the pod's packets because of their MAC address.
pub fn mac_difference(attachment: &Attachment, pod: &PodSide) -> Option<Difference> {
    let is_checked = attachment.adopted.is_none() && !attachment.port.trusted;
    (is_checked && pod.mac != Some(attachment.mac)).then(|| Difference::PodMac {
        ifname: attachment.key.ifname.clone(),
        present: pod.mac,
        recorded: attachment.mac,
    })
}

/// Returns the difference where the ends are no peers; `None` where the host's end is gone, which
/// is reported already.
fn not_peers(
    attachment: &Attachment,
    pod: &PodSide,
    observed: &ObservedAttachment,
) -> Option<Difference> {
    let host = attachment.host_link().name().clone();
    let index = observed.host_link(attachment)?.index;
    (pod.peer != Some(index)).then(|| Difference::NotPeers {
        host,
        pod: attachment.key.ifname.clone(),
    })
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NetnsGone(path) => write!(f, "the network namespace at {path} is gone"),
            Self::HostLinkGone(link) => write!(f, "{link} is gone from the host"),
            Self::HostLinkForeign(link) => write!(f, "{link} on the host is not ours"),
            Self::HostLinkDown(link) => write!(f, "{link} is down on the host"),
            Self::NotInBridge { link, bridge } => write!(f, "{link} is not a port of {bridge}"),
            Self::Hairpin { link, wanted } => {
                let state = if *wanted { "off" } else { "on" };
                write!(f, "hairpin of {link} is {state}")
            }
            Self::Isolation { link, wanted } => {
                let state = if *wanted { "not isolated" } else { "isolated" };
                write!(f, "{link} is {state}")
            }
            Self::Vlans(link) => write!(f, "the VLANs of {link} differ from the record"),
            Self::HookMissing { link, hook } => write!(f, "{hook} is not attached to {link}"),
            Self::PodLinkGone(ifname) => write!(f, "{ifname} is gone from the pod"),
            Self::PodLinkDown(ifname) => write!(f, "{ifname} is down in the pod"),
            Self::NotPeers { host, pod } => {
                write!(f, "{pod} in the pod is not the other end of {host}")
            }
            Self::PodMac {
                ifname,
                present,
                recorded,
            } => {
                let present = present.map_or("none".to_owned(), |mac| mac.to_string());
                write!(
                    f,
                    "the MAC address of {ifname} in the pod is {present}, and packets from other addresses than {recorded} are dropped"
                )
            }
            Self::AddressMissing(address) => write!(f, "the pod lacks the address {address}"),
            Self::RouteMissing(route) => {
                write!(f, "the pod lacks the route to {}", route.destination)
            }
            Self::EntryMissing(key) => write!(f, "the entry of {key} is missing"),
            Self::PortNotReserved(reservation) => {
                write!(f, "host port {reservation} is not reserved")
            }
            Self::EntryDiffers(key) => write!(f, "the entry of {key} differs from the record"),
        }
    }
}

#[cfg(test)]
mod tests;
