//! Attachments, leases, published ports and counters, as shown to the outside: texts and numbers, no types of ours.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One pod interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachmentView {
    /// The network that the runtime's configuration names.
    pub network: String,
    /// Container.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Interface in the container.
    pub ifname: String,
    /// Path of the container's network namespace.
    pub netns: String,
    /// The pod, when the runtime told.
    #[serde(default)]
    pub pod: Option<PodView>,
    /// The host's end of the veth.
    pub host_link: String,
    /// The bridge.
    pub bridge: String,
    /// Ethernet address of the pod's end.
    pub mac: String,
    /// MTU in bytes.
    pub mtu: u32,
    /// Addresses with their gateways, IPv4 first.
    pub addresses: Vec<AddressView>,
    /// Routes.
    #[serde(default)]
    pub routes: Vec<RouteView>,
    /// Published ports.
    #[serde(default)]
    pub hostports: Vec<HostportView>,
    /// Limits of its traffic.
    #[serde(default)]
    pub bandwidth: BandwidthView,
    /// Row in the datapath's pod table.
    pub slot: u32,
    /// Distinguishes this owner of the slot from those before it.
    pub generation: u32,
    /// `pending`, `attached` or `removing`.
    pub state: String,
    /// When it was decided, in seconds since 1970 (UTC).
    pub created_at: u64,
    /// Traffic; `None` when the tables could not be read.
    #[serde(default)]
    pub counters: Option<CounterView>,
}

/// The limits of an interface, seen from the pod; `None` for no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BandwidthView {
    /// To the pod.
    #[serde(default)]
    pub ingress: Option<LimitView>,
    /// From the pod.
    #[serde(default)]
    pub egress: Option<LimitView>,
    /// Prefixes that both limits are for alone; everybody, where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shaped_subnets: Vec<String>,
    /// Prefixes that they are not for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unshaped_subnets: Vec<String>,
}

/// A limit, and what it did since the pod was attached. Bytes are those of the wire, from the IP header on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitView {
    /// Bits per second.
    pub rate: u64,
    /// Bits per second that pass now: since somebody has last looked, or for a moment.
    #[serde(default)]
    pub current_rate: u64,
    /// Bytes that may pass at once.
    pub burst: u64,
    /// Packets that passed.
    pub passed_packets: u64,
    /// Bytes of those.
    pub passed_bytes: u64,
    /// Those of them that were marked as having met congestion.
    pub marked_packets: u64,
    /// Bytes of those.
    pub marked_bytes: u64,
    /// Those of them that were told when to depart.
    pub delayed_packets: u64,
    /// Those of them that passed beyond the burst because their flow asks for little.
    pub spared_packets: u64,
    /// Packets that were dropped.
    pub dropped_packets: u64,
    /// Bytes of those.
    pub dropped_bytes: u64,
}

/// A pod of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodView {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// An address of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressView {
    /// The address with the length of its subnet, for example `10.0.0.2/24`.
    pub address: String,
    /// The gateway.
    #[serde(default)]
    pub gateway: Option<String>,
}

/// A route of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteView {
    /// Where to.
    pub destination: String,
    /// By which gateway.
    #[serde(default)]
    pub gateway: Option<String>,
}

/// A published port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostportView {
    /// Address of the node; `None` for all.
    #[serde(default)]
    pub host_address: Option<String>,
    /// Port of the node.
    pub host_port: u16,
    /// Port of the pod.
    pub container_port: u16,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// The attachment that it leads to, as `network/container/ifname`; empty inside of an [`AttachmentView`].
    #[serde(default)]
    pub attachment: String,
}

/// A published port of the node, its owner and what holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortView {
    /// The port, and the attachment that it leads to.
    #[serde(flatten)]
    pub port: HostportView,
    /// The network.
    pub network: String,
    /// The container.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The pod, when the runtime told.
    #[serde(default)]
    pub pod: Option<PodView>,
    /// `pending`, `attached` or `removing`.
    pub state: String,
    /// When it was claimed, in seconds since 1970 (UTC).
    pub since: u64,
    /// What holds it, in each family.
    pub claims: Vec<ClaimView>,
    /// Live flows through it, of pods and of others; processes of the node are connected to the pod itself. `None` when
    /// the flow table could not be read.
    #[serde(default)]
    pub flows: Option<u64>,
}

/// A port of the node in one family.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimView {
    /// Address and port, for example `0.0.0.0:8080`.
    pub socket: String,
    /// `socket`: the agent has a socket bound to it. `table`: nothing can be bound to it. `nothing`: somebody else may
    /// have it; packets from outside lead to the pod all the same.
    pub held_by: String,
}

/// An address in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The network whose range it is of.
    pub network: String,
    /// The address.
    pub address: String,
    /// Container.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Interface in the container.
    pub ifname: String,
}

/// Traffic of one pod, or of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterView {
    /// Packets that the pod received.
    pub rx_packets: u64,
    /// Bytes that the pod received.
    pub rx_bytes: u64,
    /// Packets that the pod sent.
    pub tx_packets: u64,
    /// Bytes that the pod sent.
    pub tx_bytes: u64,
    /// Packets for the pod that were dropped by name.
    #[serde(default)]
    pub rx_dropped: u64,
    /// Packets of the pod that were dropped by name.
    #[serde(default)]
    pub tx_dropped: u64,
    /// Flows made for the pod.
    #[serde(default)]
    pub new_flows: u64,
    /// Flows of the pod without a reply that had to make room in a full table.
    #[serde(default)]
    pub evicted_flows: u64,
    /// Dropped packets by the reason's name, counted for the whole node; reasons that never occurred may be missing.
    #[serde(default)]
    pub drops: BTreeMap<String, u64>,
}
