//! State of the agent and of its networks (`GET /v1/status`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{AddressView, PeerCount, PodView};

/// Versions of the agent and of its interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Version {
    /// Version of the agent, for example `0.1.0`.
    pub agent: String,
    /// Commit of the agent's sources, with `-dirty` if they were changed; empty if it is unknown.
    #[serde(default)]
    pub commit: String,
    /// Version of the map layouts that the agent shares with its eBPF programs.
    pub abi: u32,
    /// Version of this API, for example `1.1`; empty if the agent is older than this field.
    #[serde(default)]
    pub api: String,
    /// Versions of the CNI specification that the agent supports, oldest first.
    #[serde(default)]
    pub cni: Vec<String>,
}

/// State of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Status {
    /// Versions of the agent and of its interfaces.
    pub version: Version,
    /// Seconds since the agent started to serve.
    pub uptime_seconds: u64,
    /// Networks, the default network first.
    pub networks: Vec<NetworkView>,
    /// Uplinks: the interfaces through which packets leave the node.
    pub uplinks: Vec<UplinkView>,
    /// Number of attachments, in any state.
    pub attachments: u64,
    /// Capacity of the flow table in entries; a flow takes two.
    #[serde(default)]
    pub flow_entries: u32,
    /// Configured capacity of the flow table in entries. An existing table keeps its capacity until
    /// the next boot.
    #[serde(default)]
    pub flow_entries_wanted: u32,
    /// Level of the datapath log: `off`, `error`, `warn`, `info`, `debug` or `trace`.
    #[serde(default)]
    pub datapath_log: String,
    /// Whether pod traffic bypasses the bridge and netfilter.
    #[serde(default)]
    pub bypass: BypassView,
    /// Policies and last rules of other software that drop forwarded packets by default.
    #[serde(default)]
    pub forwarding: ForwardingView,
    /// How bandwidth limits are enforced.
    #[serde(default)]
    pub shaper: ShaperView,
    /// The last reconciliation of records and kernel; `None` before the first.
    #[serde(default)]
    pub last_reconcile: Option<Reconcile>,
    /// Number of peers in each state that occurs.
    #[serde(default)]
    pub peers: Vec<PeerCount>,
    /// Number of network policies.
    #[serde(default)]
    pub policies: u64,
    /// Degradations; empty if the agent is healthy.
    #[serde(default)]
    pub degraded: Vec<Degraded>,
    /// Interfaces that lost more than 1 % of their packets in the last minute.
    #[serde(default)]
    pub losses: Vec<LossView>,
    /// Running and queued requests, in the order of their arrival.
    #[serde(default)]
    pub operations: Vec<OperationView>,
    /// Optional kernel features: availability, and the mechanism in use.
    #[serde(default)]
    pub features: Vec<FeatureView>,
    /// Privileges of the agent's process; `None` if the agent is older than this field.
    #[serde(default)]
    pub sandbox: Option<SandboxView>,
}

/// Packets that the datapath has dropped in the last minute, of one interface of a pod. Second
/// copies of packets (`duplicate`) are not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LossView {
    /// Name of the network.
    pub network: String,
    /// Container ID.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Interface name in the container.
    pub ifname: String,
    /// The Kubernetes pod, if the runtime passed its name in `CNI_ARGS`.
    #[serde(default)]
    pub pod: Option<PodView>,
    /// Dropped packets, to and from the pod.
    pub dropped: u64,
    /// All packets to and from the pod, with the dropped ones.
    pub packets: u64,
    /// The most frequent drop reason.
    pub reason: String,
    /// What to do about it.
    pub advice: String,
}

/// Privileges of the agent's process, and the layers that restrict it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SandboxView {
    /// Effective capabilities in lower case without prefix, for example `net_admin`.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// Whether executed programs cannot gain privileges (`no_new_privs`).
    #[serde(default)]
    pub no_new_privs: bool,
    /// Whether system calls are filtered (seccomp).
    #[serde(default)]
    pub seccomp: bool,
}

/// A request that the engine is executing or has queued.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OperationView {
    /// CNI command (`ADD`), or name of an API operation.
    pub verb: String,
    /// Attachment as `network/container/interface`; `None` if the operation concerns the node or
    /// several attachments.
    #[serde(default)]
    pub attachment: Option<String>,
    /// `true` while it is executed, `false` while it is queued.
    pub running: bool,
    /// Milliseconds since the request was received.
    pub milliseconds: u64,
}

/// Whether pod traffic bypasses the bridge and netfilter (fast path).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BypassView {
    /// Configured mode: `auto`, `offload`, `always` or `never`.
    pub mode: String,
    /// Whether the bypass is active for all packets.
    pub active: bool,
    /// Bypass of established connections beside foreign rules.
    #[serde(default)]
    pub offload: OffloadView,
    /// Foreign rules that bypassed packets would not pass, as sentences; in mode `auto` one of them
    /// disables the bypass.
    #[serde(default)]
    pub rules: Vec<String>,
}

/// Bypass of connections that foreign netfilter rules have accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OffloadView {
    /// Whether it is active.
    pub active: bool,
    /// Number of directions of connections that bypass netfilter now.
    pub offloaded: u64,
    /// Number of those that netfilter translates.
    #[serde(default)]
    pub translated: u64,
    /// Number of those whose other direction netfilter has not seen.
    #[serde(default)]
    pub unreplied: u64,
    /// Number of directions that stay on the stack, by reason.
    pub on_stack: BTreeMap<String, u64>,
    /// Foreign rules that must see every packet, as sentences; one of them disables the offload.
    pub rules: Vec<String>,
    /// Foreign rules that must see every packet of a new connection, as sentences; one of them
    /// keeps UDP flows without a reply on the stack.
    #[serde(default)]
    pub unreplied_rules: Vec<String>,
}

/// Policies and last rules of other software that drop forwarded packets by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForwardingView {
    /// Configured mode: `auto` or `leave`.
    pub mode: String,
    /// The defaults; empty if no chain drops by default.
    #[serde(default)]
    pub defaults: Vec<DroppingDefaultView>,
}

/// A policy or last rule of a chain that drops what no rule has accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DroppingDefaultView {
    /// The default, for example `policy DROP of chain FORWARD of table ip filter`.
    pub what: String,
    /// State of pods' packets: `carried` (accepted by rules of the agent), `left` (other rules may
    /// accept them) or `drops`.
    pub state: String,
    /// With `drops`: why, and what to do.
    #[serde(default)]
    pub reason: String,
}

/// How bandwidth limits are enforced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ShaperView {
    /// Configured mode: `auto`, `police`, `pace` or `edt`.
    pub mode: String,
    /// Effective mode on this node: `police`, `pace` or `edt`.
    pub chosen: String,
    /// Whether sockets can be paced (`SO_MAX_PACING_RATE`) on this node.
    pub paces: bool,
    /// Whether a link honours the departure times of packets (has an `fq` qdisc).
    pub heeds_departure: bool,
}

/// A network and its address pools.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NetworkView {
    /// Name of the network.
    pub name: String,
    /// Whether this is the default network, which serves CNI configurations without an `ipam`.
    #[serde(default)]
    pub is_default: bool,
    /// Interface name of the bridge.
    pub bridge: String,
    /// MTU of the network's interfaces in bytes; `None` until the bridge exists.
    #[serde(default)]
    pub mtu: Option<u32>,
    /// Whether flows to the outside are masqueraded with the uplink's address.
    #[serde(default)]
    pub masquerade: bool,
    /// What enters and leaves the network besides published ports, for pods that are attached next:
    /// see [`crate::AttachmentView::access`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub access: String,
    /// Number of attachments, in any state.
    #[serde(default)]
    pub attachments: u64,
    /// Address pools, in the order of the configuration.
    #[serde(default)]
    pub pools: Vec<PoolView>,
}

/// A range of addresses for pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolView {
    /// Subnet of the range, for example `10.244.0.0/24`.
    pub subnet: String,
    /// Address of the gateway; empty if the range has none.
    pub gateway: String,
    /// Number of addresses in use.
    pub used: u64,
    /// Number of usable addresses; [`crate::MAX_INTEGER`] if there are more than that.
    pub total: u64,
}

/// An uplink: an interface through which packets leave the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UplinkView {
    /// Interface name.
    pub name: String,
    /// MTU in bytes.
    pub mtu: u32,
    /// Candidate source addresses for masquerading.
    #[serde(default)]
    pub addresses: Vec<AddressView>,
    /// Whether Viaduct's TC programs are attached.
    pub attached: bool,
    /// Whether the XDP prefilter is attached.
    #[serde(rename = "guard", default)]
    pub xdp_prefilter: bool,
}

/// One reconciliation of records and kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reconcile {
    /// Time of its end, in seconds since 1970 (UTC).
    pub finished_at: u64,
    /// The same time in the format of RFC 3339.
    #[serde(default)]
    pub finished_time: String,
    /// Duration in milliseconds.
    pub duration_ms: u64,
    /// Differences that were found; empty if there were none.
    #[serde(default)]
    pub items: Vec<ReconcileItem>,
}

/// One difference between records and kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReconcileItem {
    /// Object: an attachment, a link, a map entry, or the node.
    pub subject: String,
    /// Result of the repair.
    pub outcome: Outcome,
    /// Difference or repair in one sentence, or the reason why the repair failed.
    #[serde(default)]
    pub message: String,
}

/// Result of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The object was repaired.
    Repaired,
    /// The object was created by Viaduct and belongs to no record: it was removed.
    Removed,
    /// The object is not provably Viaduct's: it was left in place.
    LeftAlone,
    /// The repair failed.
    Failed,
    /// A value that is newer than this version of the crate.
    #[serde(other)]
    Other,
}

/// A degradation: a condition in which the agent does not work completely.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Degraded {
    /// Machine-readable reason in kebab case, for example `no-pod-cidr`.
    pub reason: String,
    /// Human-readable sentence: cause and effect of the degradation.
    pub message: String,
    /// Human-readable sentence: what to do.
    #[serde(default)]
    pub advice: String,
}

/// An optional kernel feature.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FeatureView {
    /// Machine-readable name in kebab case, for example `tcx`.
    pub name: String,
    /// Whether this kernel supports it.
    pub available: bool,
    /// Human-readable sentence: the mechanism in use.
    pub chosen: String,
    /// The kernel's error if the feature is missing; else empty.
    #[serde(default)]
    pub reason: String,
}
