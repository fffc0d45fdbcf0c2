//! Refusals: why a request cannot be granted.
//!
//! No CNI error codes and no HTTP status here: the API layer derives them from the [`Category`].
//! Where host-local or the bridge plugin have a text for the same error, it is used verbatim:
//! people search for it.

use std::fmt;
use std::net::IpAddr;

use ipam::AddressRefusal;
use model::{
    AttachmentKey, Cidr, IfName, InterfaceAddress, Mac, NetnsPath, PodName, PortMapping, VlanId,
};

/// Owner of a published port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortOwner {
    /// Attachment that publishes the port.
    pub key: AttachmentKey,
    /// Its pod; `None` where the runtime gave no pod name.
    pub pod: Option<PodName>,
}

impl fmt::Display for PortOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pod {
            Some(pod) => write!(f, "pod {pod} ({})", self.key),
            None => write!(f, "container {}", self.key),
        }
    }
}

/// A request that the planner refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No address can be given, or not the requested one.
    #[error(transparent)]
    Address(#[from] AddressRefusal),
    /// The agent's configuration does not list the bridge for declared networks.
    #[error("bridge {bridge} is not one that declared networks may use: {allowed}")]
    BridgeNotAllowed {
        /// Bridge of the network.
        bridge: IfName,
        /// Patterns of the list, separated by commas.
        allowed: String,
    },
    /// The agent's configuration does not list the subnet for declared networks.
    #[error("subnet {subnet} is not within those that declared networks may use: {allowed}")]
    SubnetNotAllowed {
        /// Subnet of the network, or one of its gateways.
        subnet: Cidr,
        /// Prefixes of the list, separated by commas.
        allowed: String,
    },
    /// Every row of the pod table is in use.
    #[error("no room for another pod on this node: all {capacity} slots are in use")]
    NoSlot {
        /// Number of rows of the pod table.
        capacity: u32,
    },
    /// A second ADD for the same attachment (behaviour S10).
    #[error("{key} is attached already")]
    AlreadyAttached {
        /// Key of the attachment.
        key: AttachmentKey,
    },
    /// The pod's network namespace cannot be opened.
    #[error("there is no network namespace at {path}")]
    NoNetns {
        /// Path of the namespace.
        path: NetnsPath,
    },
    /// The namespace has an interface of that name (behaviour S10).
    #[error("interface {ifname} already exists in network namespace {path}")]
    InterfaceExists {
        /// Interface name in the pod.
        ifname: IfName,
        /// Path of the namespace.
        path: NetnsPath,
    },
    /// The interface of a plugin chain cannot be adopted: it is not a veth with its peer in the
    /// host's namespace.
    #[error(
        "{ifname} in network namespace {path} is not one end of a veth whose other end the chain's result names"
    )]
    NotAdoptable {
        /// Interface name in the pod.
        ifname: IfName,
        /// Path of the namespace.
        path: NetnsPath,
    },
    /// The pod has no such interface.
    #[error("there is no interface {ifname} in network namespace {path}")]
    NoInterface {
        /// Interface name in the pod.
        ifname: IfName,
        /// Path of the namespace.
        path: NetnsPath,
    },
    /// The kernel has no such sysctl.
    #[error("this kernel has no sysctl {key}")]
    NoSysctl {
        /// Path below `/proc/sys`.
        key: String,
    },
    /// The address belongs to another attachment.
    #[error("address {address} belongs to container {owner}")]
    AddressOfOther {
        /// Requested or conflicting address.
        address: IpAddr,
        /// Attachment that has it.
        owner: AttachmentKey,
    },
    /// The host has a link of the name that the pod's link would get, and it is not ours.
    #[error("{link} already exists on the host and is not ours")]
    ForeignLink {
        /// Interface name on the host.
        link: IfName,
    },
    /// A link of another kind has the bridge's name (behaviour R4).
    #[error("\"{bridge}\" already exists but is not a bridge")]
    NotABridge {
        /// Configured name of the bridge.
        bridge: IfName,
    },
    /// The network's bridge does not exist.
    #[error("bridge {bridge} does not exist")]
    NoBridge {
        /// Interface name of the bridge.
        bridge: IfName,
    },
    /// A VLAN is requested on a bridge that is not ours and has VLAN filtering off.
    #[error(
        "\"{bridge}\" is not ours and does not filter VLANs: ip link set {bridge} type bridge vlan_filtering 1"
    )]
    NoVlanFiltering {
        /// Interface name of the bridge.
        bridge: IfName,
    },
    /// Another link has the name of the VLAN interface.
    #[error("\"{name}\" already exists but is not VLAN {vlan} of {bridge}")]
    NotAVlan {
        /// Name of the VLAN interface.
        name: IfName,
        /// Interface name of the bridge.
        bridge: IfName,
        /// VLAN identifier.
        vlan: VlanId,
    },
    /// The name of the VLAN interface would not be a valid interface name.
    #[error("invalid interface name {name:?}: use a shorter bridge name")]
    LongName {
        /// Name of the VLAN interface.
        name: String,
    },
    /// A bridge that is not ours has another address (behaviour R3).
    #[error("\"{bridge}\" already has an IP address different from {wanted}")]
    BridgeAddress {
        /// Interface name of the bridge.
        bridge: IfName,
        /// Address of the gateway that the bridge is to have.
        wanted: InterfaceAddress,
        /// Address that it has.
        present: InterfaceAddress,
    },
    /// Another pod has published the host port.
    #[error("host port {}/{} is in use by {}", mapping.host_port, mapping.protocol, owner)]
    PortTaken {
        /// Requested mapping.
        mapping: PortMapping,
        /// Pod that has published it.
        owner: Box<PortOwner>,
    },
    /// The hostport table has no room for the requested ports.
    #[error("no room for {wanted} host ports: {used} of {capacity} are in use")]
    NoRoomForPorts {
        /// Number of requested entries, one per port and address family.
        wanted: usize,
        /// Number of entries of other attachments.
        used: usize,
        /// Capacity of the table in entries.
        capacity: u32,
    },
    /// Two mappings of one request publish the same port of the node to different ports of the pod.
    #[error("host port {mapping} conflicts with {other} of the same request")]
    PortConflict {
        /// Later mapping.
        mapping: PortMapping,
        /// Earlier mapping.
        other: PortMapping,
    },
    /// A multicast or all-zero Ethernet address, which no interface may have.
    #[error("{mac} cannot be the address of an interface")]
    UnusableMac {
        /// Refused address.
        mac: Mac,
    },
}

/// Category of a refusal, from which the API layer derives error codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Category {
    /// The configuration or the request can never be granted as it is.
    InvalidConfig,
    /// The runtime's description of the container is wrong: its namespace or interface does not
    /// exist.
    InvalidEnvironment,
    /// The requested resource belongs to another owner; it may become free.
    Conflict,
    /// A pool is exhausted; it may have room again.
    Exhausted,
    /// The node is not ready for the request yet.
    Unavailable,
}

impl Refusal {
    /// Returns the category of the refusal.
    pub fn category(&self) -> Category {
        match self {
            Self::Address(refusal) => address_category(refusal),
            Self::NoSlot { .. } | Self::NoRoomForPorts { .. } => Category::Exhausted,
            Self::AddressOfOther { .. }
            | Self::AlreadyAttached { .. }
            | Self::InterfaceExists { .. }
            | Self::ForeignLink { .. }
            | Self::NotABridge { .. }
            | Self::NotAVlan { .. }
            | Self::NoVlanFiltering { .. }
            | Self::BridgeAddress { .. }
            | Self::PortTaken { .. } => Category::Conflict,
            Self::BridgeNotAllowed { .. }
            | Self::SubnetNotAllowed { .. }
            | Self::PortConflict { .. }
            | Self::LongName { .. }
            | Self::NotAdoptable { .. }
            | Self::NoSysctl { .. }
            | Self::UnusableMac { .. } => Category::InvalidConfig,
            Self::NoNetns { .. } | Self::NoInterface { .. } => Category::InvalidEnvironment,
            Self::NoBridge { .. } => Category::Unavailable,
        }
    }
}

fn address_category(refusal: &AddressRefusal) -> Category {
    match refusal {
        AddressRefusal::Exhausted { .. } => Category::Exhausted,
        AddressRefusal::AddressTaken { .. }
        | AddressRefusal::DuplicateAllocation { .. }
        | AddressRefusal::AddressOfNode { .. } => Category::Conflict,
        AddressRefusal::GatewayRequested { .. } | AddressRefusal::RequestsLeft { .. } => {
            Category::InvalidConfig
        }
        AddressRefusal::NoRanges { .. } => Category::Unavailable,
    }
}
