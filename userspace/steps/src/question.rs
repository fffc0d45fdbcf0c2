//! Questions about the kernel. Each has an answer of its own type, which has no place for what was
//! not asked.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{AttachmentKey, IfName, Netns, NetnsPath};

use crate::{
    CheckFacts, CheckQuery, EntryKey, ForwardTables, Observed, ObservedAttachment,
    ObservedHostSide, ObservedNetns, ObservedSettings, PortReservation, PortReservations,
    PortUsers, SysctlKey,
};

/// A question about the state of the kernel.
pub trait Question {
    /// Its answer.
    type Answer;
}

/// Asks for all links, routes and addresses of the node, the given sysctls, every table entry but
/// the flows, and the port reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeQuery {
    /// Sysctls to read.
    pub sysctls: BTreeSet<SysctlKey>,
}

impl Question for NodeQuery {
    type Answer = Observed;
}

/// Asks for conditions of the node, and the limits of the node and of the agent.
impl Question for CheckQuery {
    type Answer = CheckFacts;
}

/// Asks for sysctls. `None` in the answer stands for one that the kernel does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SysctlQuery(pub BTreeSet<SysctlKey>);

impl Question for SysctlQuery {
    type Answer = BTreeMap<SysctlKey, Option<String>>;
}

/// Asks before an ADD: for the namespace, and for the interface of this name in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetnsQuery {
    /// Path of the namespace.
    pub path: NetnsPath,
    /// Name of the interface in the pod.
    pub ifname: IfName,
    /// Links of the host: host's end of the veth, bridge.
    pub links: BTreeSet<IfName>,
    /// Whether to find the host's end of the interface itself, with the bridge that it is a port
    /// of: for an interface of another plugin, whose names are unknown.
    pub host_end: bool,
}

impl Question for NetnsQuery {
    type Answer = ObservedNetns;
}

/// Asks for one attachment: its two links, the inside of its namespace, its table entries, its port
/// reservations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentQuery {
    /// Key of the attachment: names the interface in the pod, and the attachment in errors.
    pub key: AttachmentKey,
    /// Namespace of the pod.
    pub netns: Netns,
    /// Host's end of the veth.
    pub host_link: IfName,
    /// Bridge of the attachment; an adopted interface without one names its host link.
    pub bridge: IfName,
    /// Keys of its table entries.
    pub entries: BTreeSet<EntryKey>,
    /// Its port reservations.
    pub reservations: BTreeSet<PortReservation>,
}

impl Question for AttachmentQuery {
    type Answer = ObservedAttachment;
}

/// Asks as [`AttachmentQuery`] does, without the inside of the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSideQuery(pub AttachmentQuery);

impl Question for HostSideQuery {
    type Answer = ObservedHostSide;
}

/// Asks which of these addresses are the node's own, or broadcast addresses of its links, by the
/// kernel's routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressQuery(pub BTreeSet<IpAddr>);

impl Question for AddressQuery {
    type Answer = BTreeSet<IpAddr>;
}

/// Asks for all port reservations in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortQuery;

impl Question for PortQuery {
    type Answer = PortReservations;
}

/// Asks for the filter tables that forwarded packets pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardingQuery;

impl Question for ForwardingQuery {
    type Answer = ForwardTables;
}

/// Asks for processes that have these ports open, and for the port reservations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortUserQuery {
    /// The ports.
    pub reservations: BTreeSet<PortReservation>,
    /// A process whose existence is observed.
    pub process: u32,
}

impl Question for PortUserQuery {
    type Answer = PortUsers;
}

/// Asks for settings of an interface inside a namespace. `None` in the answer stands for a
/// namespace that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsQuery {
    /// Path of the namespace.
    pub path: NetnsPath,
    /// Interface name in the namespace.
    pub ifname: IfName,
    /// Sysctls to read, by path below `/proc/sys`.
    pub sysctls: BTreeSet<String>,
}

impl Question for SettingsQuery {
    type Answer = Option<ObservedSettings>;
}
