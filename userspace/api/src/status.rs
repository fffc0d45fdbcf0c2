//! The state of the agent and of its networks, as data that logs, metrics and people's tools render.

use serde::{Deserialize, Serialize};

use crate::AddressView;

/// Which agent this is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Version of the agent.
    pub agent: String,
    /// Version of the table layouts that it shares with its eBPF programs.
    pub abi: u32,
    /// Version of this API; empty when the agent is older than this field.
    #[serde(default)]
    pub api: String,
    /// Versions of the CNI protocol that it speaks.
    #[serde(default)]
    pub cni: Vec<String>,
}

/// The state of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Which agent.
    pub version: Version,
    /// Seconds since it began to serve.
    pub uptime_seconds: u64,
    /// The networks, the default one first.
    pub networks: Vec<NetworkView>,
    /// The interfaces by which packets leave the node.
    pub uplinks: Vec<UplinkView>,
    /// How many attachments there are.
    pub attachments: u64,
    /// Entries that the flow table has room for; a flow is two.
    #[serde(default)]
    pub flow_entries: u32,
    /// Entries that the configuration asks for. A table that is there keeps its size until the next boot.
    #[serde(default)]
    pub flow_entries_wanted: u32,
    /// Whether packets go past bridge and stack.
    #[serde(default)]
    pub bypass: BypassView,
    /// How limits of pods are enforced.
    #[serde(default)]
    pub shaper: ShaperView,
    /// The last comparison of records and kernel; `None` before the first.
    #[serde(default)]
    pub last_reconcile: Option<Reconcile>,
    /// Everything that does not work as it should; empty when all is well.
    #[serde(default)]
    pub degraded: Vec<Degraded>,
    /// What was asked for and is not answered yet, in the order in which it was asked for.
    #[serde(default)]
    pub operations: Vec<OperationView>,
    /// What not every kernel can do: whether this one can, and what is used.
    #[serde(default)]
    pub features: Vec<FeatureView>,
}

/// Something that the agent was asked for and has not answered yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationView {
    /// What: a verb of CNI, or a word of the API.
    pub verb: String,
    /// Of which attachment, as `network/container/interface`; `None` where it is about the node, or about several.
    #[serde(default)]
    pub attachment: Option<String>,
    /// Whether it runs; else it waits.
    pub running: bool,
    /// Milliseconds since it was asked for.
    pub milliseconds: u64,
}

/// Whether packets go past bridge and stack, where nobody else could have a say in them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BypassView {
    /// What the configuration asks for: `auto`, `always` or `never`.
    pub mode: String,
    /// Whether they do.
    pub active: bool,
    /// Rules of others that they would miss, in words; with `auto` one is enough to end it.
    #[serde(default)]
    pub rules: Vec<String>,
}

/// How limits of pods are enforced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShaperView {
    /// What the configuration asks for: `auto`, `police`, `pace` or `edt`.
    pub mode: String,
    /// What it comes to on this node.
    pub chosen: String,
    /// Whether this node can tell sockets how fast to send.
    pub paces: bool,
    /// Whether a link heeds the departure times of packets.
    pub heeds_departure: bool,
}

/// A network and what it has left to give.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkView {
    /// Name.
    pub name: String,
    /// Whether it serves configurations without an `ipam`.
    #[serde(default)]
    pub is_default: bool,
    /// The bridge.
    pub bridge: String,
    /// MTU of its interfaces in bytes; `None` while that is not decided.
    #[serde(default)]
    pub mtu: Option<u32>,
    /// Whether flows to the outside get the uplink's address.
    #[serde(default)]
    pub masquerade: bool,
    /// Attachments on it.
    #[serde(default)]
    pub attachments: u64,
    /// Its ranges, in the order of the configuration.
    #[serde(default)]
    pub pools: Vec<PoolView>,
}

/// A range of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolView {
    /// The subnet.
    pub subnet: String,
    /// The bridge's address in it.
    pub gateway: String,
    /// Addresses in use.
    pub used: u64,
    /// Addresses that could be in use; [`u64::MAX`] when there are more than that.
    pub total: u64,
}

/// An interface by which packets leave the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkView {
    /// Interface name.
    pub name: String,
    /// MTU in bytes.
    pub mtu: u32,
    /// Addresses that masquerading may choose.
    #[serde(default)]
    pub addresses: Vec<AddressView>,
    /// Whether our programs are attached to it.
    pub attached: bool,
    /// Whether a guard stands in front of it.
    #[serde(default)]
    pub guard: bool,
}

/// One comparison of records and kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reconcile {
    /// When it ended, in seconds since 1970 (UTC).
    pub finished_at: u64,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// What it did; empty when everything was as it should be.
    #[serde(default)]
    pub items: Vec<ReconcileItem>,
}

/// One thing that was not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReconcileItem {
    /// What: an attachment, a link, a table entry.
    pub subject: String,
    /// How it ended.
    pub outcome: Outcome,
    /// What was found or done, or why that failed.
    #[serde(default)]
    pub message: String,
}

/// How a repair ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Put right.
    Repaired,
    /// Ours, and nobody's any more: removed.
    Removed,
    /// Not provably ours: left alone.
    LeftAlone,
    /// Tried without success.
    Failed,
    /// A word that is newer than its reader.
    #[serde(other)]
    Other,
}

/// One thing that does not work as it should.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Degraded {
    /// A word for machines, in kebab case, for example `no-pod-cidr`.
    pub reason: String,
    /// A sentence for people: what does not work, and what to do.
    pub message: String,
}

/// One thing that not every kernel can do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureView {
    /// A word for machines, in kebab case, for example `tcx`.
    pub name: String,
    /// Whether this kernel can do it.
    pub available: bool,
    /// A sentence for people: what is used.
    pub chosen: String,
    /// How the kernel says that it cannot; empty if it can.
    #[serde(default)]
    pub reason: String,
}
