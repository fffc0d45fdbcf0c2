//! Table entries of an attachment.
//!
//! The only place that derives them: attach writes these entries, detach removes them, check and
//! repair compare the tables with them.

use std::net::IpAddr;

use model::{Attachment, Families, Mac, NetworkAccess, PortMapping, StandbyPort};
use steps::{Entries, Entry, EntryKey, LinkRef};

use crate::shaping::limit_entry;

/// Returns whether packets of a pod may bypass bridge and netfilter, where the node permits the
/// bypass. Adopted pods may not: the configuration of another plugin's bridge is unknown.
pub(crate) fn may_bypass(attachment: &Attachment) -> bool {
    attachment.adopted.is_none() && attachment.port.is_plain() && !attachment.addresses.is_empty()
}

/// Returns the MAC address that the pod must send from; none of an adopted interface. Plugins of
/// others manage that interface, and may change its address at any time (decision 83).
fn checked_mac(attachment: &Attachment) -> Mac {
    if attachment.adopted.is_some() {
        Mac([0; 6])
    } else {
        attachment.mac
    }
}

/// Returns the families whose addresses are reached from outside by the ports that are published at
/// the address itself. Nothing reaches an internal network, and everything one with direct access.
fn routed(attachment: &Attachment) -> Families {
    match attachment.port.access {
        NetworkAccess::Published => attachment.port.routed,
        NetworkAccess::Direct | NetworkAccess::Internal => Families::NONE,
    }
}

/// Returns every entry of `attachment`: pod row, limits, interface, addresses, hostports.
pub fn attachment_entries(attachment: &Attachment) -> Entries {
    let mut entries = hostport_entries(attachment);
    let link = LinkRef::Name(attachment.host_link().name().clone());
    entries.insert(
        EntryKey::Pod(attachment.slot),
        Entry::Pod {
            v4: attachment.address(true),
            v6: attachment.address(false),
            mac: checked_mac(attachment),
            link: link.clone(),
            bridge: LinkRef::Name(attachment.bridge.clone()),
            generation: attachment.generation,
            masquerade: attachment.masqueraded(),
            trusted: attachment.port.trusted,
            bypass: may_bypass(attachment),
            isolated: attachment.port.isolated,
            ingress: attachment.port.ingress,
            access: attachment.port.access,
            routed: routed(attachment),
        },
    );
    entries.extend(limit_entry(attachment));
    entries.insert(
        EntryKey::Interface(link.clone()),
        Entry::Interface {
            slot: attachment.slot,
            limited: !attachment.bandwidth.is_unlimited(),
        },
    );
    for assigned in &attachment.addresses {
        entries.insert(
            EntryKey::Endpoint(assigned.address.address),
            Entry::Endpoint {
                slot: attachment.slot,
                generation: attachment.generation,
                link: link.clone(),
                mac: attachment.mac,
                masquerade: attachment.masqueraded(),
                published: !attachment.port_mappings.is_empty(),
                limited: !attachment.bandwidth.is_unlimited(),
            },
        );
    }
    entries
}

fn hostport_entries(attachment: &Attachment) -> Entries {
    let ports = hostports(attachment);
    let entry = |(key, address, mapping): (EntryKey, IpAddr, &PortMapping)| {
        let entry = Entry::Hostport {
            address,
            port: mapping.container_port.get(),
            slot: attachment.slot,
            generation: attachment.generation,
        };
        (key, entry)
    };
    ports.map(entry).collect()
}

/// Returns the keys of the hostports of `attachment`.
pub(crate) fn hostport_keys(attachment: &Attachment) -> impl Iterator<Item = EntryKey> {
    hostports(attachment).map(|(key, ..)| key)
}

/// Returns the keys of one hostport of `attachment`: one per address family of the pod.
pub(crate) fn mapping_keys(
    attachment: &Attachment,
    mapping: &PortMapping,
) -> impl Iterator<Item = EntryKey> {
    [true, false]
        .into_iter()
        .filter(|ipv4| attachment.address(*ipv4).is_some())
        .filter(|ipv4| !stands_by(attachment, mapping, *ipv4))
        .filter_map(|ipv4| hostport_key(mapping, ipv4))
}

fn hostports(attachment: &Attachment) -> impl Iterator<Item = (EntryKey, IpAddr, &PortMapping)> {
    attachment.port_mappings.iter().flat_map(move |mapping| {
        let serving = pod_addresses(attachment)
            .filter(move |address| !stands_by(attachment, mapping, address.is_ipv4()));
        serving.filter_map(move |address| {
            let key = hostport_key(mapping, address.is_ipv4())?;
            Some((key, address, mapping))
        })
    })
}

/// Returns whether another interface of the container serves the port in this family.
fn stands_by(attachment: &Attachment, mapping: &PortMapping, ipv4: bool) -> bool {
    !attachment.standby.is_empty()
        && attachment.standby.contains(&StandbyPort {
            mapping: *mapping,
            ipv4,
        })
}

/// Returns the first address of each family, to which hostports are translated (behaviour R13).
fn pod_addresses(attachment: &Attachment) -> impl Iterator<Item = IpAddr> {
    [true, false]
        .into_iter()
        .filter_map(|ipv4| attachment.address(ipv4))
}

/// Returns the hostport key of `mapping` in one family; `None` where `hostIP` is of the other
/// family, which is skipped silently (behaviour R13). The unspecified address means every address
/// of its family.
pub(crate) fn hostport_key(mapping: &PortMapping, ipv4: bool) -> Option<EntryKey> {
    let address = mapping.host_address.map(|address| address.to_canonical());
    if address.is_some_and(|address| address.is_ipv4() != ipv4) {
        return None;
    }
    Some(EntryKey::Hostport {
        address: address.filter(|address| !address.is_unspecified()),
        ipv4,
        port: mapping.host_port.get(),
        protocol: mapping.protocol,
    })
}
