//! Observed state of the kernel, as plain data: the answers to questions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{Cidr, IfName, InterfaceAddress, InterfaceSettings, Mac, Netns, Route};

use crate::PathTable;
use crate::{
    AttachedPrefilter, Entries, Hook, Link, NetfilterState, NodeLink, ObservedTunnel,
    PortReservation, PortReservations, Process, SocketHook, SocketHookState, SysctlKey,
};

/// The whole node: the answer to a [`NodeQuery`](crate::NodeQuery).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "testing", derive(Default))]
pub struct Observed {
    /// Links of the host's namespace.
    pub links: BTreeMap<IfName, NodeLink>,
    /// Routes of the host's namespace, all tables.
    pub routes: Vec<RouteEntry>,
    /// Tunnels of ours: VXLAN devices with our names and alias.
    pub tunnels: BTreeMap<IfName, ObservedTunnel>,
    /// Values of the requested sysctls; `None` for one that the kernel does not have. Sysctls that
    /// were not requested are absent.
    pub sysctls: BTreeMap<SysctlKey, Option<String>>,
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
    /// Capacity of the flow table in entries; a flow has two.
    pub flow_entries: u32,
    /// Netfilter rules of other software that could apply to packets of pods, as texts for people.
    pub foreign_rules: BTreeSet<String>,
    /// The same of other parts of the kernel: IPsec, IPVS, traffic control, routes by type of
    /// service.
    pub foreign_paths: BTreeSet<String>,
    /// Statements of those netfilter rules.
    pub path_tables: Vec<PathTable>,
    /// State of our netfilter table.
    pub netfilter: NetfilterState,
    /// Whether policy routing rules match on ports or the protocol.
    pub routes_by_port: bool,
    /// Whether processes of the node have sockets that the cgroup programs do not see, because they
    /// are outside of the cgroup, or there is none.
    pub has_unseen_sockets: bool,
    /// Number of entries in netfilter's conntrack table.
    pub conntrack_entries: u64,
}

/// The host's side of one attachment: the answer to a [`HostSideQuery`](crate::HostSideQuery).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedHostSide {
    /// Host's end of the veth.
    pub host_link: Option<Link>,
    /// Programs of pods that are attached to the host's end; the TCX fast path is left out.
    pub hooks: BTreeSet<Hook>,
    /// Bridge of the attachment.
    pub bridge: Option<Link>,
    /// Those of the queried table entries that exist.
    pub entries: Entries,
    /// Those of the queried port reservations that are in force.
    pub port_reservations: PortReservations,
}

/// One attachment: the answer to an [`AttachmentQuery`](crate::AttachmentQuery).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedAttachment {
    /// The host's side.
    pub host: ObservedHostSide,
    /// The pod's namespace.
    pub netns: AttachmentNetns,
}

impl ObservedAttachment {
    /// Returns the pod's interface in the namespace of the attachment.
    pub fn pod(&self) -> Option<&PodSide> {
        match &self.netns {
            AttachmentNetns::Same { pod } => pod.as_ref(),
            AttachmentNetns::Missing | AttachmentNetns::Replaced => None,
        }
    }
}

/// The namespace of an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachmentNetns {
    /// No namespace is at the path.
    Missing,
    /// Another namespace is at the path; its inside is not observed.
    Replaced,
    /// The namespace is the attachment's.
    Same {
        /// The pod's interface, if there is one of the name.
        pod: Option<PodSide>,
    },
}

/// A namespace and the links of the host for a new attachment: the answer to a
/// [`NetnsQuery`](crate::NetnsQuery).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedNetns {
    /// Those of the queried links of the host that exist.
    pub links: BTreeMap<IfName, Link>,
    /// The namespace; `None` where nothing is at the path.
    pub inside: Option<NetnsInside>,
}

impl ObservedNetns {
    /// Returns the interface in the namespace.
    pub fn pod(&self) -> Option<&PodSide> {
        self.inside.as_ref()?.pod.as_ref()
    }
}

/// A namespace, and an interface in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetnsInside {
    /// The namespace.
    pub netns: Netns,
    /// The interface, if there is one of the name.
    pub pod: Option<PodSide>,
}

/// Settings of an interface and its namespace: the answer to a
/// [`SettingsQuery`](crate::SettingsQuery).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedSettings {
    /// The namespace.
    pub netns: Netns,
    /// Settings of the interface and sysctls of its namespace. Without the interface only sysctls
    /// are set. Sysctls that the kernel does not have are absent.
    pub settings: InterfaceSettings,
}

/// Processes that have ports of the node open: the answer to a
/// [`PortUserQuery`](crate::PortUserQuery).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortUsers {
    /// Those of the queried port reservations that are in force.
    pub port_reservations: PortReservations,
    /// Processes with an open socket on a port, the agent left out.
    pub holders: BTreeMap<PortReservation, Vec<Process>>,
    /// Whether the queried process exists.
    pub exists: bool,
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
    /// Number of the software that has added the route (`rtm_protocol`).
    pub protocol: u8,
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
