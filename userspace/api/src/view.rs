//! Attachments, leases, published ports and counters in the API: strings and numbers only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// An attachment: one interface of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AttachmentView {
    /// Name of the network, as in the CNI configuration.
    pub network: String,
    /// Container ID (`CNI_CONTAINERID`).
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Interface name in the container (`CNI_IFNAME`).
    pub ifname: String,
    /// Path of the container's network namespace; empty where the runtime moves the interface into
    /// it itself.
    pub netns: String,
    /// The Kubernetes pod, if the runtime passed its name in `CNI_ARGS`.
    #[serde(default)]
    pub pod: Option<PodView>,
    /// Interface name of the host end of the veth pair.
    pub host_link: String,
    /// Whether another plugin has made the interface; the agent serves its ports and limits.
    #[serde(default)]
    pub adopted: bool,
    /// Interface name of the bridge.
    pub bridge: String,
    /// MAC address of the pod's interface.
    pub mac: String,
    /// MTU in bytes.
    pub mtu: u32,
    /// Addresses with their gateways, IPv4 first.
    pub addresses: Vec<AddressView>,
    /// Routes in the pod.
    #[serde(default)]
    pub routes: Vec<RouteView>,
    /// Published host ports.
    #[serde(default)]
    pub hostports: Vec<HostportView>,
    /// What enters and leaves the network besides published ports: `direct` (everything),
    /// `published` (`directAccess: false`) or `internal`; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub access: String,
    /// Bandwidth limits and their counters.
    #[serde(default)]
    pub bandwidth: BandwidthView,
    /// Index of the pod in the datapath's pod map.
    pub slot: u32,
    /// Generation of the slot: distinguishes this pod from earlier pods in the same slot.
    pub generation: u32,
    /// `pending`, `linked`, `attached` or `removing`; `not on record` for an inspected namespace.
    pub state: String,
    /// Time of the ADD, in seconds since 1970 (UTC).
    pub created_at: u64,
    /// The same time in the format of RFC 3339; empty for an inspected namespace.
    #[serde(default)]
    pub created_time: String,
    /// Traffic counters; `None` if the maps could not be read.
    #[serde(default)]
    pub counters: Option<CounterView>,
}

/// Bandwidth limits of an interface, from the pod's point of view; `None` for no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BandwidthView {
    /// Limit of traffic to the pod.
    #[serde(default)]
    pub ingress: Option<LimitView>,
    /// Limit of traffic from the pod.
    #[serde(default)]
    pub egress: Option<LimitView>,
    /// Prefixes of remote addresses to which both limits apply exclusively; empty for all
    /// addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shaped_subnets: Vec<String>,
    /// Prefixes of remote addresses that are exempt from both limits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unshaped_subnets: Vec<String>,
}

/// A bandwidth limit, and its counters since the pod was attached. Bytes are counted from the IP
/// header on, with the headers of each segment, as on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LimitView {
    /// Rate of the limit, in bits per second.
    pub rate: u64,
    /// Rate of passed traffic in bits per second, since the previous query or over 0.2 s.
    #[serde(default)]
    pub current_rate: u64,
    /// Burst in bytes.
    pub burst: u64,
    /// Packets that passed.
    pub passed_packets: u64,
    /// Bytes of the packets that passed.
    pub passed_bytes: u64,
    /// Passed packets that were marked with ECN Congestion Experienced.
    pub marked_packets: u64,
    /// Bytes of the marked packets.
    pub marked_bytes: u64,
    /// Passed packets that were given a departure time.
    pub delayed_packets: u64,
    /// Passed packets beyond the burst, let through because their flow sends little.
    pub spared_packets: u64,
    /// Packets that were dropped.
    pub dropped_packets: u64,
    /// Bytes of the dropped packets.
    pub dropped_bytes: u64,
}

/// Name of a Kubernetes pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PodView {
    /// Kubernetes namespace of the pod.
    pub namespace: String,
    /// Name of the pod in its namespace.
    pub name: String,
}

/// An address of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AddressView {
    /// Address with prefix length, for example `10.0.0.2/24`.
    pub address: String,
    /// Address of the gateway; `None` if there is none.
    #[serde(default)]
    pub gateway: Option<String>,
}

/// A route of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RouteView {
    /// Destination prefix, for example `0.0.0.0/0`.
    pub destination: String,
    /// Address of the gateway; `None` for a directly connected destination.
    #[serde(default)]
    pub gateway: Option<String>,
}

/// A published host port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HostportView {
    /// Address of the node; `None` for all addresses.
    #[serde(default)]
    pub host_address: Option<String>,
    /// Port on the node.
    pub host_port: u16,
    /// Port in the pod.
    pub container_port: u16,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// Attachment that receives the traffic, as `network/container/ifname`; empty in an
    /// [`AttachmentView`].
    #[serde(default)]
    pub attachment: String,
}

/// A published host port with its pod, its reservations and its flows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PortView {
    /// The port mapping, and the attachment that receives the traffic.
    #[serde(flatten)]
    pub port: HostportView,
    /// Name of the network.
    pub network: String,
    /// Container ID.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The Kubernetes pod, if the runtime passed its name in `CNI_ARGS`.
    #[serde(default)]
    pub pod: Option<PodView>,
    /// State of the attachment: `pending`, `linked`, `attached` or `removing`.
    pub state: String,
    /// Time of the attachment's ADD, in seconds since 1970 (UTC).
    pub since: u64,
    /// The same time in the format of RFC 3339.
    #[serde(default)]
    pub since_time: String,
    /// Port reservations, one for each address family.
    pub claims: Vec<PortReservationView>,
    /// Number of live flows to the port from outside and from pods. Connections of processes on the
    /// node are not included: they are connected to the pod's address directly. `None` if the flow
    /// table could not be read.
    #[serde(default)]
    pub flows: Option<u64>,
}

/// Reservation of a host port in one address family.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PortReservationView {
    /// Address and port, for example `0.0.0.0:8080`.
    pub socket: String,
    /// `socket`: the agent has a socket bound to the port. `table`: a map entry reserves the port,
    /// and no socket can be bound to it. `runtime`: the container's runtime has bound the port, or
    /// is about to. `standby`: another interface of the container has the port. `nothing`: the port
    /// is not reserved and another process may have bound it; packets from outside are sent to the
    /// pod nevertheless.
    pub held_by: String,
}

/// An address that is assigned to a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Lease {
    /// Name of the network.
    pub network: String,
    /// Address without prefix length.
    pub address: String,
    /// Container ID.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Interface name in the container.
    pub ifname: String,
}

/// Traffic counters of one pod, or of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CounterView {
    /// Packets that the pod received.
    pub rx_packets: u64,
    /// Bytes that the pod received.
    pub rx_bytes: u64,
    /// Packets that the pod sent.
    pub tx_packets: u64,
    /// Bytes that the pod sent.
    pub tx_bytes: u64,
    /// Packets to the pod that were dropped with a drop reason.
    #[serde(default)]
    pub rx_dropped: u64,
    /// Packets from the pod that were dropped with a drop reason.
    #[serde(default)]
    pub tx_dropped: u64,
    /// Flows created for the pod.
    #[serde(default)]
    pub new_flows: u64,
    /// Flows of the pod without a reply that were evicted from a full flow table.
    #[serde(default)]
    pub evicted_flows: u64,
    /// Dropped packets by drop reason: of the pod since it was attached, or of the whole node.
    /// Reasons that never occurred may be missing.
    #[serde(default)]
    pub drops: BTreeMap<String, u64>,
}
