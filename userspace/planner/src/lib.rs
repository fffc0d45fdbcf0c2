//! Pure planning: computes a [`Plan`] from an intent, an observation of the kernel and the stored
//! records.
//!
//! No async, no I/O, no clock, no randomness: all of these come in as arguments. A [`Plan`] is
//! fully decided; the engine executes it step by step. Terms:
//!
//! * [`steps::Observed`]: state of the kernel now, as plain data;
//! * [`model::Record`]: stored outcome of an earlier decision;
//! * [`steps::Step`]: one effect, with the step that undoes it;
//! * [`Plan`]: steps in order;
//! * [`Refusal`]: why a request cannot be granted.

#![forbid(unsafe_code)]

mod adopt;
mod alias;
mod announcement;
mod attach;
mod attachment_query;
mod between_nodes;
mod bridge;
mod bypass;
mod check;
mod complete;
mod container_link;
mod declared_networks;
mod detach;
mod flow_capacity;
mod forwarding;
mod hooks;
mod host_side;
mod local_reserved_ports;
mod mtu;
mod netfilter_table;
mod network;
mod node;
mod node_check;
mod node_intent;
mod node_preview;
mod offload;
mod offload_decision;
mod offload_shares;
mod own_links;
mod peer_intent;
mod peers;
mod plan;
mod policies;
mod port_holder;
mod port_reservation;
mod prefix;
mod program_upgrade;
mod publish;
mod records;
mod refusal;
mod repair;
mod shaping;
mod socket_hook;
mod standby;
mod sysctl;
mod tables;
mod tcx_fast_path;
#[cfg(test)]
mod testing;
mod translated_connections;
mod uninstall;
mod uplink;
mod xdp_prefilter;
mod xdp_prefilter_mode;

pub use adopt::plan_adopt;
pub use alias::bridge_alias;
pub use announcement::LastMacs;
pub use attach::{AttachContext, plan_attach};
pub use attachment_query::attachment_query;
pub use between_nodes::BetweenNodes;
pub use bridge::plan_bridge;
pub use bypass::{BypassMode, holding_rules, holding_unreplied, obstacles};
pub use check::{Difference, check, check_host, mac_difference};
pub use complete::{plan_complete, with_addresses};
pub use container_link::{ContainerLinks, Overlap};
pub use declared_networks::{DeclaredNetworks, InvalidNamePattern, NamePattern};
pub use detach::plan_detach;
pub use flow_capacity::{cache_entries, flow_entries, flow_quota};
pub use forwarding::{
    DefaultState, DroppingDefault, ForwardingIntent, ForwardingMode, ForwardingPlan, PodSources,
    Probe, accept_rules, plan_forwarding, plan_forwarding_removal,
};
pub use host_side::HostSide;
pub use local_reserved_ports::{
    LocalReservedPorts, local_reserved_ports_key, plan_local_reserved_ports, published_ports,
};
pub use mtu::{MtuChange, network_mtu, plan_mtu};
pub use netfilter_table::plan_netfilter_for;
pub use node::{NodePlan, plan_node};
pub use node_check::{
    FilteredTraffic, NodeCondition, OverlapEffect, PolicyEffect, check_query, conditions,
    is_short_of_files,
};
pub use node_intent::NodeIntent;
pub use node_preview::NodePreview;
pub use offload::HoldingRule;
pub use offload_decision::{OffloadDecision, OffloadEvidence, StackReason, decide_offload};
pub use offload_shares::{OffloadShares, offload_account};
pub use peer_intent::{PeerIntent, PeerOptions, TunnelOptions};
pub use peers::{PeerPlan, PeerProblem, PeerProblemKind, PeerState, PeerStatus, plan_peers};
pub use plan::Plan;
pub use policies::{PolicyIndex, PolicyLimit, is_selected_by, plan_policies_of};
pub use port_holder::{
    PortRuntime, binding_runtime, is_of_runtime, leave_to_runtime, plan_leave_ports,
    plan_left_ports,
};
pub use port_reservation::{attachment_reservations, mapping_endpoints, mapping_reservations};
pub use program_upgrade::plan_program_upgrade;
pub use publish::{plan_publish, with_both_ports, with_ports};
pub use records::Records;
pub use refusal::{Category, PortOwner, Refusal};
pub use repair::{
    Finding, OrphanedLink, Reason, Repair, is_host_link_present, live_pod_links, plan_repair,
};
pub use shaping::{ShaperMode, token_bucket};
pub use socket_hook::{plan_attach_socket_hooks, required_socket_hooks};
pub use standby::{sharing_attachments, standby_reservations, with_current_standby};
pub use sysctl::node_sysctls;
pub use tables::attachment_entries;
pub use tcx_fast_path::{high_traffic_links, tcx_fast_path_candidates};
pub use translated_connections::{TranslatedConnections, clients};
pub use uninstall::{
    Leftover, Uninstall, WrittenSysctl, is_persistent_sysctl, persistent_sysctls,
    plan_remove_bridge, plan_uninstall,
};
pub use xdp_prefilter::plan_xdp_prefilters;
pub use xdp_prefilter_mode::XdpPrefilterMode;
