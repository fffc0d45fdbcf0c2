//! Observed state of the kernel, as plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{
    Attachment, AttachmentKey, Cidr, HostLink, IfName, InterfaceAddress, InterfaceSettings, Mac,
    Netns, NetnsPath, PortVlans, Route, VlanId,
};

use crate::PathTable;
use crate::{
    AttachedPrefilter, CheckFacts, CheckQuery, Entries, EntryKey, ForwardTables, Hook,
    NetfilterState, PortReservation, PortReservations, Process, SocketHook, SocketHookState,
    SysctlKey,
};

/// Extent of an observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All links, routes and addresses of the node, the given sysctls, every table entry but the
    /// flows, and the port reservations.
    Node {
        /// Sysctls to read.
        sysctls: BTreeSet<SysctlKey>,
    },
    /// Answers to these queries, and the limits of the node and of the agent.
    Checks(Box<CheckQuery>),
    /// The given sysctls alone.
    Sysctls(BTreeSet<SysctlKey>),
    /// Before an ADD: the namespace, and whether the interface's name is free in it.
    Netns {
        /// Path of the namespace.
        path: NetnsPath,
        /// Name of the interface to create.
        ifname: IfName,
        /// Links of the host to observe (host's end, bridge), as in [`Scope::Attachment`].
        links: BTreeSet<IfName>,
    },
    /// One attachment: its two links, the inside of its namespace, its table entries, its port
    /// reservations. Addresses of the links and programs other than those on pods' links are left
    /// out: each would cost one more request in every ADD and DEL, and no plan of an attachment
    /// needs them.
    Attachment(Box<AttachmentQuery>),
    /// As [`Scope::Attachment`], without the inside of the namespace.
    Outside(Box<AttachmentQuery>),
    /// Those of the given addresses that are the node's own, by the kernel's routes.
    Addresses(BTreeSet<IpAddr>),
    /// The port reservations alone.
    Ports,
    /// The filter tables that forwarded packets pass.
    Forwarding,
    /// Processes that have these ports open, with the port reservations.
    PortUsers {
        /// The ports.
        reservations: BTreeSet<PortReservation>,
        /// A process whose existence is observed.
        process: u32,
    },
    /// Settings of an interface inside a namespace.
    Settings {
        /// Path of the namespace.
        path: NetnsPath,
        /// Interface name in the namespace.
        ifname: IfName,
        /// Sysctls to read, by path below `/proc/sys`.
        sysctls: BTreeSet<String>,
    },
}

/// What to observe of one attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentQuery {
    /// Key of the attachment: names the interface in the pod, and the attachment in errors.
    pub key: AttachmentKey,
    /// Namespace of the pod.
    pub netns: Netns,
    /// Links of the host: host's end of the veth, bridge.
    pub links: BTreeSet<IfName>,
    /// Keys of its table entries.
    pub entries: BTreeSet<EntryKey>,
    /// Its port reservations.
    pub reservations: BTreeSet<PortReservation>,
}

/// Result of an observation. Parts outside of the scope are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Links of the host's namespace.
    pub links: BTreeMap<IfName, Link>,
    /// Routes of the host's namespace, all tables.
    pub routes: Vec<RouteEntry>,
    /// Values of the requested sysctls; sysctls that the kernel does not have are absent.
    pub sysctls: BTreeMap<SysctlKey, String>,
    /// Entries of the datapath's tables.
    pub entries: Entries,
    /// State of our programs on the node's cgroup. Programs that this kernel does not support are
    /// absent, and so are all of them without a cgroup.
    pub socket_hooks: BTreeMap<SocketHook, SocketHookState>,
    /// XDP prefilters of ours, by link.
    pub xdp_prefilters: BTreeMap<IfName, AttachedPrefilter>,
    /// Whether an uplink's qdisc honours earliest departure times of packets (`fq`).
    pub heeds_departure: bool,
    /// Port reservations in force.
    pub port_reservations: PortReservations,
    /// Processes that have ports open; [`Scope::PortUsers`] only.
    pub port_users: PortUsers,
    /// Capacity of the flow table in entries; a flow has two.
    pub flow_entries: u32,
    /// Netfilter rules of other software that could apply to packets of pods, as texts for people.
    pub foreign_rules: BTreeSet<String>,
    /// The same of other parts of the kernel: IPsec, IPVS, traffic control, routes by type of
    /// service.
    pub foreign_paths: BTreeSet<String>,
    /// Statements of those netfilter rules.
    pub path_tables: Vec<PathTable>,
    /// Filter tables that forwarded packets pass; filled in [`Scope::Forwarding`] only.
    pub forwarding: ForwardTables,
    /// State of our netfilter table.
    pub netfilter: NetfilterState,
    /// Whether policy routing rules match on ports or the protocol.
    pub routes_by_port: bool,
    /// Whether processes of the node have sockets that the cgroup programs do not see, because they
    /// are outside of the cgroup, or there is none.
    pub has_unseen_sockets: bool,
    /// Number of entries in netfilter's conntrack table.
    pub conntrack_entries: u64,
    /// Namespaces that could be opened, by the requested path.
    pub netns: BTreeMap<NetnsPath, Netns>,
    /// Pod's interface inside its namespace; `None` where the namespace or the interface is
    /// missing.
    pub pod: Option<PodSide>,
    /// Addresses of [`Scope::Addresses`] that the node has, or that are broadcast addresses of its
    /// links.
    pub own_addresses: BTreeSet<IpAddr>,
    /// Answers of [`Scope::Checks`].
    pub checks: CheckFacts,
    /// Settings of the interface and sysctls of its namespace; `None` where the namespace is
    /// missing. Without the interface only sysctls are set. Sysctls that the kernel does not have
    /// are absent.
    pub settings: Option<InterfaceSettings>,
}

/// Processes that have ports of the node open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortUsers {
    /// Processes with an open socket on a port, the agent left out.
    pub holders: BTreeMap<PortReservation, Vec<Process>>,
    /// Whether the process of [`Scope::PortUsers`] exists.
    pub exists: bool,
}

/// Kind of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkKind {
    /// The loopback interface.
    Loopback,
    /// A Linux bridge.
    Bridge,
    /// One end of a veth pair.
    Veth,
    /// A tap device: the network card of a virtual machine.
    Tap,
    /// A dummy device, which leads nowhere.
    Dummy,
    /// Any other link with Ethernet headers.
    Ethernet,
    /// A link without Ethernet headers (tun, `WireGuard`, PPP).
    Raw,
}

/// A link of the host's namespace.
#[expect(
    clippy::struct_excessive_bools,
    reason = "flags of the kernel's, each by itself"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Interface index.
    pub index: u32,
    /// Kind of the link.
    pub kind: LinkKind,
    /// Ethernet address; `None` for links without one.
    pub mac: Option<Mac>,
    /// Whether this agent has set the Ethernet address since its start. A bridge whose address was
    /// never set has the lowest one of its ports. Netlink does not report which is the case. Filled
    /// in [`Scope::Node`] only.
    pub mac_is_set: bool,
    /// MTU in bytes.
    pub mtu: u32,
    /// Whether it is set up (`IFF_UP`).
    pub up: bool,
    /// Whether it is set promiscuous (`IFF_PROMISC`).
    pub promiscuous: bool,
    /// Whether it is a point-to-point link (`IFF_POINTOPOINT`).
    pub point_to_point: bool,
    /// Index of the bridge or bond that it is a port of.
    pub controller: Option<u32>,
    /// Whether the bridge port is in hairpin mode.
    pub hairpin: bool,
    /// VLAN and bridge port properties.
    pub switching: Switching,
    /// Alias (`IFLA_IFALIAS`).
    pub alias: Option<String>,
    /// Addresses, in the kernel's order (primary ones before their secondaries).
    pub addresses: Vec<InterfaceAddress>,
    /// Addresses that the kernel uses as a source only where it has no other: deprecated and
    /// tentative ones, and detected duplicates. IPv6 only; filled in [`Scope::Node`] only.
    pub avoided: BTreeSet<IpAddr>,
    /// Programs of ours that are attached to it.
    pub hooks: BTreeSet<Hook>,
    /// Attached programs of a previous agent that differ from this agent's: they keep running until
    /// they are replaced. Filled in [`Scope::Node`] only.
    pub outdated: BTreeSet<Hook>,
}

/// VLAN and bridge port properties of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switching {
    /// Whether VLAN filtering is on; of bridges.
    pub filters_vlans: bool,
    /// Whether a bridge port is isolated from other isolated ports.
    pub isolated: bool,
    /// VLAN memberships of a bridge port, or of the bridge device itself, where VLAN filtering is
    /// on.
    pub vlans: BTreeMap<VlanId, VlanMember>,
    /// For a VLAN interface: interface index of the link below it, and the VLAN.
    pub vlan_of: Option<(u32, VlanId)>,
}

/// VLAN membership of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct VlanMember {
    /// Whether untagged frames that the port receives are in this VLAN (PVID).
    pub pvid: bool,
    /// Whether frames of this VLAN leave the port untagged.
    pub untagged: bool,
}

/// Returns the VLAN memberships that a port is to have. The native VLAN is untagged, also where the
/// trunk lists it.
pub fn wanted_vlans(vlans: &PortVlans) -> BTreeMap<VlanId, VlanMember> {
    let native = VlanMember {
        pvid: true,
        untagged: true,
    };
    vlans
        .trunk
        .iter()
        .map(|id| (*id, VlanMember::default()))
        .chain(vlans.native().map(|id| (id, native)))
        .collect()
}

impl Switching {
    /// Returns whether a port has the wanted VLANs, and no others besides the default VLAN where
    /// that is kept.
    pub fn has(&self, wanted: &PortVlans) -> bool {
        if !wanted.is_managed() {
            return true;
        }
        let all = wanted_vlans(wanted);
        if wanted.keeps_default {
            let mut all = all.iter();
            all.all(|(id, member)| self.vlans.get(id) == Some(member))
        } else {
            all == self.vlans
        }
    }
}

impl Link {
    /// Returns whether this agent created the link with this alias and Ethernet address. The kernel
    /// accepts the address in the message that creates a link, and the alias only in a later one.
    /// After a crash between the two there is no alias, and the address, which derives from the
    /// same key as the name, identifies the link.
    pub fn is_signed(&self, alias: &str, mac: Mac) -> bool {
        match &self.alias {
            Some(found) => found == alias,
            None => self.mac == Some(mac),
        }
    }

    /// Returns whether the link is the host's end of `attachment`.
    pub fn is_host_end_of(&self, attachment: &Attachment) -> bool {
        match attachment.host_link() {
            HostLink::Managed(link) => self.is_signed(&attachment.alias(), link.mac()),
            // Its name is random and it has no mark of ours. Only attaching our programs depends on
            // this.
            HostLink::Adopted(_) => self.kind == LinkKind::Veth,
        }
    }
}

/// A route of the host's namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteEntry {
    /// Destination prefix.
    pub destination: Cidr,
    /// Next hop; `None` for on-link routes.
    pub gateway: Option<IpAddr>,
    /// Outgoing interface's index (one entry for each leg of a multipath route).
    pub link: u32,
    /// Number of the routing table.
    pub table: u32,
    /// MTU of the route in bytes; `None` for that of the link.
    pub mtu: Option<u32>,
}

/// The pod's interface, observed inside its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSide {
    /// Ethernet address; `None` for links without one.
    pub mac: Option<Mac>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Whether it is set up (`IFF_UP`).
    pub up: bool,
    /// Addresses, without link-local IPv6.
    pub addresses: BTreeSet<InterfaceAddress>,
    /// Routes by this interface, without those that the kernel creates for addresses.
    pub routes: BTreeSet<Route>,
    /// Interface index of the peer in the host's namespace.
    pub peer: Option<u32>,
}
