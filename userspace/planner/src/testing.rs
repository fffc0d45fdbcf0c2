//! Fixtures of this crate's tests: a node with one uplink and one dual-stack network.

use std::collections::BTreeSet;

use ipam::Leases;
use model::{Attachment, Intent, PortMapping, Record, Requested, State};
use steps::{
    AttachmentNetns, Link, LinkKind, NetnsInside, NodeLink, Observed, ObservedAttachment,
    ObservedHostSide, ObservedNetns, PodSide, PortReservations, ReservationOwner, ReservedBy,
    RouteEntry, SysctlKey,
};

use crate::{
    AttachContext, HostSide as _, LastMacs, PolicyIndex, Records, attachment_entries,
    attachment_reservations, bridge_alias, plan_attach,
};

pub(crate) use model::testing::{key, network, network_of, parse, span};

pub(crate) const BOOT: &str = "boot-1";

pub(crate) fn intent(container: &str) -> Intent {
    Intent {
        key: key(container),
        netns: parse("/run/netns/a"),
        network: network(),
        bandwidth: model::Bandwidth::default(),
        port_mappings: Vec::new(),
        requested: Requested::default(),
        pod: None,
    }
}

/// Parses `[address@]host_port->container_port/protocol`.
pub(crate) fn port(text: &str) -> PortMapping {
    let (address, rest) = match text.split_once('@') {
        Some((address, rest)) => (Some(parse(address)), rest),
        None => (None, text),
    };
    let (ports, protocol) = rest.split_once('/').expect(text);
    let (host, container) = ports.split_once("->").expect(text);
    PortMapping {
        host_port: parse(host),
        container_port: parse(container),
        protocol: parse(protocol),
        host_address: address,
    }
}

pub(crate) fn link(index: u32, kind: LinkKind, addresses: &[&str]) -> NodeLink {
    let link = Link {
        mtu: 1500,
        ..Link::plain(index, kind)
    };
    NodeLink {
        addresses: addresses.iter().map(|text| parse(text)).collect(),
        ..link.into()
    }
}

/// A node before Viaduct's first plan.
pub(crate) fn bare_node() -> Observed {
    let eth0 = ["192.0.2.10/24", "2001:db8::10/64", "fe80::10/64"];
    let links = [
        (
            "lo",
            link(1, LinkKind::Loopback, &["127.0.0.1/8", "::1/128"]),
        ),
        ("eth0", link(2, LinkKind::Ethernet, &eth0)),
    ];
    let routes = [("0.0.0.0/0", "192.0.2.1"), ("::/0", "2001:db8::1")];
    let route = |(destination, gateway)| RouteEntry {
        destination: parse(destination),
        gateway: Some(parse(gateway)),
        link: 2,
        table: 254,
        mtu: None,
        protocol: 3,
    };
    let sysctls = [
        ("net/ipv4/ip_forward", "0"),
        ("net/ipv6/conf/all/forwarding", "0"),
        ("net/ipv6/conf/default/accept_dad", "1"),
        ("net/ipv6/conf/default/accept_ra", "1"),
        ("net/ipv6/conf/default/addr_gen_mode", "0"),
        ("net/ipv6/conf/default/disable_ipv6", "0"),
        ("net/ipv6/conf/eth0/accept_ra", "1"),
    ];
    let sysctl = |(key, value): (&str, &str)| (SysctlKey(key.to_owned()), Some(value.to_owned()));
    Observed {
        links: links.map(|(name, link)| (parse(name), link)).into(),
        routes: routes.map(route).into(),
        sysctls: sysctls.map(sysctl).into(),
        ..Observed::default()
    }
}

/// The node with the bridge of [`network`].
pub(crate) fn node() -> Observed {
    let mut node = bare_node();
    let mut bridge = link(3, LinkKind::Bridge, &["10.1.0.1/24", "fd00:1::1/64"]);
    bridge.alias = Some(bridge_alias(&parse("net")));
    bridge.mac = Some(network().bridge_mac());
    node.links.insert(parse("cbr0"), bridge);
    node
}

/// An empty namespace at `/run/netns/a`, and the links of `node`.
pub(crate) fn empty_netns(node: &Observed) -> ObservedNetns {
    let links = node.links.iter();
    ObservedNetns {
        links: links
            .map(|(name, link)| (name.clone(), link.link.clone()))
            .collect(),
        inside: Some(NetnsInside {
            netns: model::Netns {
                path: parse("/run/netns/a"),
                device: 4,
                inode: 4_026_532_001,
            },
            pod: None,
        }),
    }
}

pub(crate) struct World {
    pub(crate) leases: Leases,
    pub(crate) records: Records,
    pub(crate) last_macs: LastMacs,
    pub(crate) policies: PolicyIndex,
}

impl World {
    pub(crate) fn empty() -> Self {
        Self {
            leases: Leases::default(),
            records: Records::new(),
            last_macs: LastMacs::new(true),
            policies: PolicyIndex::default(),
        }
    }

    pub(crate) fn with(attachment: &Attachment) -> Self {
        let mut world = Self::empty();
        for assigned in &attachment.addresses {
            let owner = attachment.key.clone();
            world.leases.taken.insert(assigned.address.address, owner);
        }
        world.remember(attachment, State::Attached);
        world
    }

    pub(crate) fn remember(&mut self, attachment: &Attachment, state: State) {
        let record = Record {
            attachment: attachment.clone(),
            state,
            boot_id: BOOT.to_owned(),
            created_at: 0,
        };
        self.records.insert(attachment.key.clone(), record);
    }

    pub(crate) fn context(&self) -> AttachContext<'_> {
        AttachContext {
            leases: &self.leases,
            records: &self.records,
            slot: 7,
            generation: 40,
            mtu: 1500,
            last_macs: &self.last_macs,
            policies: &self.policies,
        }
    }
}

/// An attachment of a node that is otherwise empty.
pub(crate) fn attachment(intent: &Intent) -> Attachment {
    let world = World::empty();
    let planned = plan_attach(intent, &empty_netns(&node()), &world.context());
    planned.expect("the plan is accepted").0
}

/// All ports of `attachment`, reserved by sockets.
pub(crate) fn reserved(attachment: &Attachment) -> PortReservations {
    let reservations = attachment_reservations(attachment).into_iter();
    let owner = ReservationOwner {
        generation: attachment.generation,
        by: ReservedBy::Socket,
    };
    reservations
        .map(|reservation| (reservation, owner))
        .collect()
}

/// The node after `attachment` is created.
pub(crate) fn seen(attachment: &Attachment) -> Observed {
    let mut node = node();
    let mut host = link(9, LinkKind::Veth, &[]);
    host.alias = Some(attachment.alias());
    host.mac = Some(attachment.key.host_mac());
    host.controller = Some(3);
    host.hairpin = attachment.hairpin;
    host.switching.isolated = attachment.port.isolated;
    host.switching.vlans = steps::wanted_vlans(&attachment.port.vlans);
    host.hooks = BTreeSet::from(crate::hooks::POD_HOOKS);
    node.links
        .insert(attachment.host_link().name().clone(), host);
    node.entries = attachment_entries(attachment);
    node.port_reservations = reserved(attachment);
    node
}

/// The interface of `attachment` in the pod.
pub(crate) fn pod(attachment: &Attachment) -> PodSide {
    PodSide {
        mac: Some(attachment.mac),
        mtu: attachment.mtu,
        up: true,
        addresses: attachment.addresses.iter().map(|a| a.address).collect(),
        routes: attachment.routes.iter().copied().collect(),
        peer: Some(9),
    }
}

/// The host's side of `attachment` on `node`.
pub(crate) fn host_side(attachment: &Attachment, node: &Observed) -> ObservedHostSide {
    ObservedHostSide {
        host_link: node.host_link(attachment).cloned(),
        hooks: node.pod_hooks(attachment),
        bridge: node.bridge(attachment).cloned(),
        entries: node.entries.clone(),
        port_reservations: node.port_reservations.clone(),
    }
}

/// Both sides of `attachment` after it is created.
pub(crate) fn both_sides(attachment: &Attachment) -> ObservedAttachment {
    ObservedAttachment {
        host: host_side(attachment, &seen(attachment)),
        netns: AttachmentNetns::Same {
            pod: Some(pod(attachment)),
        },
    }
}
