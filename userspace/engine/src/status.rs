//! Status of the engine as data, which logs, API and tools render. Decides nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use kernel::DatapathLog;
use model::{IfName, InterfaceAddress, Mac, Network, NetworkName, NetworkPolicies, Range};
use planner::{
    BypassMode, ContainerLinks, DroppingDefault, ForwardingMode, HoldingRule, ShaperMode,
};

use crate::{Degraded, PeersStatus, Report};

/// Status after the last finished request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Networks, the default one first.
    pub networks: Vec<NetworkStatus>,
    /// Uplinks of the node.
    pub uplinks: Vec<UplinkStatus>,
    /// Links that lead to containers of other software.
    pub containers: ContainerLinks,
    /// Number of attachments, in any state.
    pub attachments: usize,
    /// Capacity of the flow table in entries: actual and configured. A pinned table keeps its
    /// capacity.
    pub flow_entries: (u32, u32),
    /// State of the netfilter bypass.
    pub bypass: BypassStatus,
    /// Defaults of other software's filter tables that drop.
    pub forwarding: ForwardingStatus,
    /// How bandwidth limits are enforced.
    pub shaper: ShaperStatus,
    /// The datapath log.
    pub datapath_log: DatapathLog,
    /// Other nodes and their state.
    pub peers: Arc<PeersStatus>,
    /// Network policies.
    pub policies: Arc<NetworkPolicies>,
    /// Report of the last reconciliation.
    pub last_reconcile: Option<Arc<Report>>,
    /// Active degradations.
    pub degraded: Vec<Degraded>,
}

impl Status {
    /// Returns whether containers of other software have addresses of this network.
    pub fn shares_addresses(&self, network: &NetworkName) -> bool {
        let mut overlaps = self.containers.overlaps.iter();
        overlaps.any(|overlap| overlap.network == *network)
    }
}

/// Whether packets bypass the bridge and netfilter, and why not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BypassStatus {
    /// Configured mode.
    pub mode: BypassMode,
    /// Whether packets bypass the bridge and netfilter.
    pub active: bool,
    /// Whether packets of established connections do so beside the rules of other software.
    pub offload: bool,
    /// Rules that must see every packet, and so keep established connections on the stack.
    pub holding_rules: BTreeSet<HoldingRule>,
    /// Those that keep UDP flows without a reply on the stack.
    pub holding_unreplied: BTreeSet<HoldingRule>,
    /// Reasons against the bypass: foreign rules that packets would miss, and connections that
    /// netfilter tracks.
    pub rules: BTreeSet<String>,
}

/// Defaults of other software's filter tables that drop, and whether pods' packets pass them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardingStatus {
    /// Configured mode.
    pub mode: ForwardingMode,
    /// Defaults with the state of pods' packets.
    pub defaults: BTreeSet<DroppingDefault>,
}

/// How bandwidth limits are enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShaperStatus {
    /// Configured mode.
    pub mode: ShaperMode,
    /// Mode that the kernel supports and that is in effect.
    pub chosen: ShaperMode,
    /// Whether TCP sockets are paced. Needs a cgroup to which socket programs can be attached.
    pub paces: bool,
    /// Whether a link's queueing discipline honours departure times (`fq`).
    pub heeds_departure: bool,
}

/// Network and the use of its address ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkStatus {
    /// Definition of the network.
    pub network: Network,
    /// Whether it is the agent's default network.
    pub is_default: bool,
    /// MTU in bytes; `None` until the bridge is configured.
    pub mtu: Option<u32>,
    /// MAC address of the bridge; `None` until the bridge is configured.
    pub bridge_mac: Option<Mac>,
    /// Number of attachments to the network, in any state.
    pub attachments: usize,
    /// Use of its ranges, in the order of the configuration.
    pub pools: Vec<PoolStatus>,
}

/// Use of an address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStatus {
    /// First and last address, and the gateway.
    pub range: Range,
    /// Number of allocated addresses.
    pub used: u64,
    /// Number of addresses without the gateway; [`u64::MAX`] if there are more.
    pub total: u64,
}

/// Uplink of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkStatus {
    /// Interface name.
    pub name: IfName,
    /// MTU in bytes.
    pub mtu: u32,
    /// Addresses that masquerading may use as SNAT source.
    pub addresses: Vec<InterfaceAddress>,
    /// Whether both uplink programs are attached.
    pub attached: bool,
    /// Whether the XDP prefilter is attached.
    pub xdp_prefilter: bool,
}
