//! Why a wish cannot be granted.
//!
//! Knows no CNI code and no HTTP status: a [`Category`] is all that the edge needs to choose one. Where host-local
//! or the bridge plugin have words for the same thing, these are those words: people search for them.

use std::fmt;
use std::net::IpAddr;

use model::{
    AttachmentKey, IfName, InterfaceAddress, Mac, NetnsPath, NetworkName, PodName, PortMapping,
    VlanId,
};

/// Who has published a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortOwner {
    /// The attachment.
    pub key: AttachmentKey,
    /// Its pod, when the runtime told.
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

/// A wish that the planner will not plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Every address of a range set is taken (behaviour R10).
    #[error("no IP addresses available in range set: {set}")]
    Exhausted {
        /// The set as `first-last`, its ranges separated by commas.
        set: String,
    },
    /// The address asked for belongs to someone, or to nobody ever (behaviour R9).
    #[error("requested IP address {address} is not available in range set {set}")]
    AddressTaken {
        /// The address.
        address: IpAddr,
        /// The set as `first-last`, its ranges separated by commas.
        set: String,
    },
    /// The address asked for is the gateway's (behaviour R9).
    #[error("requested ip {address} is subnet's gateway")]
    GatewayRequested {
        /// The address.
        address: IpAddr,
    },
    /// Addresses asked for that no range set offers, or a second one of the same set (behaviour R9).
    #[error("failed to allocate all requested IPs: {}", words(addresses))]
    RequestsLeft {
        /// The addresses.
        addresses: Vec<IpAddr>,
    },
    /// The owner has an address of the set already (behaviour R10).
    #[error("{address} has been allocated to {}, duplicate allocation is not allowed", owner.container_id)]
    DuplicateAllocation {
        /// The address that it has.
        address: IpAddr,
        /// The owner.
        owner: AttachmentKey,
    },
    /// The network has no range to give an address of.
    #[error("network {network} has no address range: it needs a pod CIDR")]
    NoRanges {
        /// The network.
        network: NetworkName,
    },
    /// Every row of the pod table is in use.
    #[error("no room for another pod on this node: all {capacity} slots are in use")]
    NoSlot {
        /// How many there are.
        capacity: u32,
    },
    /// A second ADD for the same attachment (behaviour S10).
    #[error("{key} is attached already")]
    AlreadyAttached {
        /// The attachment.
        key: AttachmentKey,
    },
    /// The pod's network namespace cannot be opened.
    #[error("there is no network namespace at {path}")]
    NoNetns {
        /// The path.
        path: NetnsPath,
    },
    /// The namespace has an interface of that name (behaviour S10).
    #[error("interface {ifname} already exists in network namespace {path}")]
    InterfaceExists {
        /// The interface.
        ifname: IfName,
        /// The namespace.
        path: NetnsPath,
    },
    /// A chained plugin is asked to serve an interface that it cannot.
    #[error(
        "{ifname} in network namespace {path} is not one end of a veth whose other end the chain's result names"
    )]
    NotAdoptable {
        /// The interface.
        ifname: IfName,
        /// The namespace.
        path: NetnsPath,
    },
    /// The pod has no such interface.
    #[error("there is no interface {ifname} in network namespace {path}")]
    NoInterface {
        /// The interface.
        ifname: IfName,
        /// The namespace.
        path: NetnsPath,
    },
    /// The kernel has no such sysctl.
    #[error("this kernel has no sysctl {key}")]
    NoSysctl {
        /// Its path below `/proc/sys`.
        key: String,
    },
    /// An address that another attachment has.
    #[error("address {address} belongs to container {owner}")]
    AddressOfOther {
        /// The address.
        address: IpAddr,
        /// Whose it is.
        owner: AttachmentKey,
    },
    /// The host has a link of the name that the pod's link would get, and it is not ours.
    #[error("{link} already exists on the host and is not ours")]
    ForeignLink {
        /// The link.
        link: IfName,
    },
    /// The bridge's name belongs to another sort of link (behaviour R4).
    #[error("\"{bridge}\" already exists but is not a bridge")]
    NotABridge {
        /// The name.
        bridge: IfName,
    },
    /// The network's bridge is not there.
    #[error("bridge {bridge} is not there")]
    NoBridge {
        /// The bridge.
        bridge: IfName,
    },
    /// A VLAN is asked for on a bridge of others that does not keep VLANs apart.
    #[error(
        "\"{bridge}\" is not ours and does not filter VLANs: ip link set {bridge} type bridge vlan_filtering 1"
    )]
    NoVlanFiltering {
        /// The bridge.
        bridge: IfName,
    },
    /// The name of a VLAN's interface belongs to another link.
    #[error("\"{name}\" already exists but is not VLAN {vlan} of {bridge}")]
    NotAVlan {
        /// The name.
        name: IfName,
        /// The bridge.
        bridge: IfName,
        /// The VLAN.
        vlan: VlanId,
    },
    /// A VLAN's interface would have a name that Linux does not take.
    #[error("{name:?} is no name for an interface: give the bridge a shorter one")]
    LongName {
        /// The name.
        name: String,
    },
    /// A bridge that is not ours has another address (behaviour R3).
    #[error("\"{bridge}\" already has an IP address different from {wanted}")]
    BridgeAddress {
        /// The bridge.
        bridge: IfName,
        /// The gateway's address.
        wanted: InterfaceAddress,
        /// The address that it has.
        present: InterfaceAddress,
    },
    /// A port of the node that another pod has published.
    #[error("host port {}/{} is in use by {}", mapping.host_port, mapping.protocol, owner)]
    PortTaken {
        /// The mapping that was asked for.
        mapping: PortMapping,
        /// Whose it is.
        owner: Box<PortOwner>,
    },
    /// More ports than the table holds.
    #[error("no room for {wanted} host ports: {used} of {capacity} are in use")]
    NoRoomForPorts {
        /// How many were asked for, each family counted.
        wanted: usize,
        /// How many others have.
        used: usize,
        /// How many there can be.
        capacity: u32,
    },
    /// Two mappings of one request publish the same port of the node to different ports of the pod.
    #[error("host port {mapping} contradicts {other} of the same request")]
    PortContradiction {
        /// The later one.
        mapping: PortMapping,
        /// The earlier one.
        other: PortMapping,
    },
    /// An Ethernet address that no interface may have.
    #[error("{mac} cannot be the address of an interface")]
    UnusableMac {
        /// The address.
        mac: Mac,
    },
}

/// What sort of refusal, for whoever must choose a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Category {
    /// The configuration or the request can never be granted as it is.
    InvalidConfig,
    /// What the runtime told about the container is not so (its namespace is not there).
    InvalidEnvironment,
    /// Someone else has what was asked for; it may become free.
    Conflict,
    /// A pool is empty; it may fill again.
    Exhausted,
    /// The node is not ready for it yet.
    Unavailable,
}

impl Refusal {
    /// What sort of refusal this is.
    pub fn category(&self) -> Category {
        match self {
            Self::Exhausted { .. } | Self::NoSlot { .. } | Self::NoRoomForPorts { .. } => {
                Category::Exhausted
            }
            Self::AddressTaken { .. }
            | Self::DuplicateAllocation { .. }
            | Self::AddressOfOther { .. }
            | Self::AlreadyAttached { .. }
            | Self::InterfaceExists { .. }
            | Self::ForeignLink { .. }
            | Self::NotABridge { .. }
            | Self::NotAVlan { .. }
            | Self::NoVlanFiltering { .. }
            | Self::BridgeAddress { .. }
            | Self::PortTaken { .. } => Category::Conflict,
            Self::GatewayRequested { .. }
            | Self::RequestsLeft { .. }
            | Self::PortContradiction { .. }
            | Self::LongName { .. }
            | Self::NotAdoptable { .. }
            | Self::NoSysctl { .. }
            | Self::UnusableMac { .. } => Category::InvalidConfig,
            Self::NoNetns { .. } | Self::NoInterface { .. } => Category::InvalidEnvironment,
            Self::NoRanges { .. } | Self::NoBridge { .. } => Category::Unavailable,
        }
    }
}

fn words(addresses: &[IpAddr]) -> String {
    let words: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    words.join(" ")
}
