//! Configuration with which the engine starts.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::{Cidr, IfName, Network};
use planner::{BypassMode, ForwardingMode, PeerOptions, ShaperMode, XdpPrefilterMode};

/// Configuration with which the engine starts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The agent's default network; without ranges until a pod CIDR is configured.
    pub default_network: Network,
    /// Uplinks; empty to determine them from the routing table.
    pub uplinks: BTreeSet<IfName>,
    /// Destinations to which pods keep their source address.
    pub non_masquerade: BTreeSet<Cidr>,
    /// SNAT source addresses of the default network's pods in place of the uplink's address; at
    /// most one of each family.
    pub egress: BTreeSet<IpAddr>,
    /// Capacity of the flow table in entries. A pinned table keeps its capacity.
    pub flow_entries: u32,
    /// When packets bypass the bridge and netfilter.
    pub bypass: BypassMode,
    /// Whether pods' packets are carried past dropping defaults of other software's filter tables.
    pub forwarding: ForwardingMode,
    /// How bandwidth limits shape packets.
    pub shaper: ShaperMode,
    /// Whether the XDP prefilter is attached to uplinks.
    pub xdp_prefilter: XdpPrefilterMode,
    /// How packets of pods travel between nodes.
    pub peers: PeerOptions,
    /// The kernel's boot id. Records of another boot describe kernel objects that no longer exist.
    pub boot_id: String,
}
