//! Domain types of Viaduct: validated names, addresses, networks, intents, attachments.
//!
//! Values are validated when they are constructed, so a value of any type here is valid. No I/O, no
//! serialisation format, no kernel interface.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod address;
mod attachment;
mod attachment_key;
mod bandwidth;
mod bridge_port;
mod datapath_log;
mod degraded_reason;
mod egress;
mod host_link;
mod managed;
mod name;
mod network;
mod network_policy;
mod node_check;
mod peer;
mod port;
mod port_set;
mod printable;
mod range;
mod route;
mod settings;
#[cfg(feature = "testing")]
pub mod testing;

pub use address::{Cidr, CidrError, InterfaceAddress, Mac, MacError, is_link_local};
pub use attachment::{
    Adoption, Assigned, Attachment, Intent, Netns, PodName, Record, Requested, State,
};
pub use attachment_key::AttachmentKey;
pub use bandwidth::{Bandwidth, Limit, LimitPolicy, Prefixes, Rates, ShapedSubnets};
pub use bridge_port::{
    BridgeOptions, Families, IngressPolicy, NetworkAccess, PortOptions, PortVlans,
    UnknownIngressPolicy, UnknownNetworkAccess, VlanId,
};
pub use datapath_log::{DatapathLogLevel, UnknownDatapathLogLevel};
pub use degraded_reason::DegradedReason;
pub use egress::{EgressAddresses, SecondEgressAddress};
pub use host_link::HostLink;
pub use managed::ManagedLink;
pub use name::{ContainerId, IfName, InvalidName, NetnsPath, NetworkName, PeerName};
pub use network::{HairpinMode, Network, UnknownHairpinMode};
pub use network_policy::{
    InvalidBlock, InvalidPolicyText, NetworkPolicies, NetworkPolicy, PodSelector, PolicyDirection,
    PolicyPeer, PolicyPort, PolicyRule, refuse_mapped,
};
pub use node_check::NodeCheck;
pub use peer::{InvalidPeer, Peer, PeerTexts, Peers};
pub use port::{PortMapping, PortRange, Protocol, StandbyPort, UnknownProtocol};
pub use port_set::PortSet;
pub use printable::{printable, printable_json, printable_lines};
pub use range::{Range, RangeError, RangeSet};
pub use route::{Route, RouteOptions};
pub use settings::InterfaceSettings;
