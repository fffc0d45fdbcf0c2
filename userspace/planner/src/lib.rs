//! Pure planning: computes a [`Plan`] from an intent, an observation of the kernel and the stored
//! records.
//!
//! No async, no I/O, no clock, no randomness: all of these come in as arguments. A [`Plan`] is
//! fully decided; the engine executes it step by step. Terms:
//!
//! * [`Observed`]: state of the kernel now, as plain data;
//! * [`model::Record`]: stored outcome of an earlier decision;
//! * [`Step`]: one effect, with the step that undoes it;
//! * [`Plan`]: steps in order;
//! * [`Refusal`]: why a request cannot be granted.

#![forbid(unsafe_code)]

mod address;
mod adopt;
mod announcement;
mod attach;
mod bridge;
mod bypass;
mod check;
mod complete;
mod container_link;
mod declared_networks;
mod detach;
mod entry;
mod flow;
mod forwarding;
mod local_reserved_ports;
mod mtu;
mod netfilter_table;
mod network;
mod node;
mod node_check;
mod observed;
mod plan;
mod port_holder;
mod port_reservation;
mod prefix;
mod program_upgrade;
mod publish;
mod refusal;
mod repair;
mod shaping;
mod socket_hook;
mod standby;
mod step;
mod sysctl;
mod tables;
mod tcx_fast_path;
#[cfg(test)]
mod testing;
mod uninstall;
mod uplink;
mod xdp_prefilter;

pub use address::{Leases, choose};
pub use adopt::plan_adopt;
pub use announcement::{Announcement, LastMacs};
pub use attach::{AttachContext, Records, plan_attach};
pub use bridge::{bridge_alias, plan_bridge};
pub use bypass::{BypassMode, obstacles};
pub use check::{Difference, check, check_host, mac_difference};
pub use complete::{plan_complete, with_addresses};
pub use container_link::{ContainerLinks, Overlap};
pub use declared_networks::{DeclaredNetworks, InvalidNamePattern, NamePattern};
pub use detach::plan_detach;
pub use entry::{Entries, Entry, EntryKey, LinkRef};
pub use flow::{
    FlowEndpoints, FlowFilter, FlowKind, FlowState, FlowTable, LiveFlow, Traffic, flow_entries,
    flow_quota,
};
pub use forwarding::{
    ADMIN_CHAIN, AcceptRule, Action, BaseChain, Condition, DefaultState, DroppingDefault,
    FORWARD_CHAIN, FilterBackend, FilterFamily, FilterHook, FilterRule, FilterTable, ForwardTables,
    ForwardingIntent, ForwardingMode, ForwardingPlan, ForwardingStep, Place, PodSources, Probe,
    TableState, accept_rules, plan_forwarding, plan_forwarding_removal,
};
pub use local_reserved_ports::{
    LocalReservedPorts, local_reserved_ports_key, plan_local_reserved_ports, published_ports,
};
pub use mtu::{MtuChange, network_mtu, plan_mtu};
pub use netfilter_table::{NetfilterState, NetfilterStep, NetfilterTable, plan_netfilter_for};
pub use node::{NodeIntent, NodePlan, plan_node};
pub use node_check::{
    CgroupCoverage, CheckFacts, CheckQuery, FilteredTraffic, Ipsec, IpsecDirection, IpsecPolicy,
    NodeCondition, OverlapEffect, PolicyEffect, RouteAnswer, RouteQuery, Usage, check_query,
    conditions,
};
pub use observed::{
    Link, LinkKind, Observed, PodSide, PortUsers, RouteEntry, Scope, Switching, VlanMember,
    wanted_vlans,
};
pub use plan::Plan;
pub use port_holder::{
    PortLeave, Process, binding_runtime, is_of_runtime, leave_to_runtime, plan_leave_ports,
    plan_left_ports,
};
pub use port_reservation::{
    PortReservation, PortReservations, ReservationOwner, ReservedBy, attachment_reservations,
    mapping_reservations,
};
pub use program_upgrade::plan_program_upgrade;
pub use publish::{plan_publish, with_both_ports, with_ports};
pub use refusal::{Category, PortOwner, Refusal};
pub use repair::{
    Finding, OrphanedLink, Reason, Repair, is_host_link_present, live_pod_links, plan_repair,
};
pub use shaping::{Shape, ShaperMode};
pub use socket_hook::{
    SocketHook, SocketHookState, plan_attach_socket_hooks, required_socket_hooks,
};
pub use standby::{sharing_attachments, standby_reservations, with_current_standby};
pub use step::{BridgeSpec, Hook, PodSpec, Step, SysctlKey, VethSpec, VlanLinkSpec, VlanStep};
pub use sysctl::node_sysctls;
pub use tables::attachment_entries;
pub use tcx_fast_path::{high_traffic_links, tcx_fast_path_candidates};
pub use uninstall::{
    Leftover, Uninstall, WrittenSysctl, is_persistent_sysctl, persistent_sysctls, plan_uninstall,
};
pub use xdp_prefilter::{
    AttachedPrefilter, XdpPrefilterMode, XdpPrefilterStep, plan_xdp_prefilters,
};
