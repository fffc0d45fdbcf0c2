//! Pure decisions: (intent, observation, record) in, plan out.
//!
//! Knows no async, no I/O, no clock, no randomness: all of these come in as arguments. A [`Plan`] leaves no choice
//! to whoever executes it. The words:
//!
//! * [`Observed`]: what is true in the kernel now, as plain data;
//! * [`model::Record`]: what was decided earlier;
//! * [`Step`]: one effect, with the step that undoes it;
//! * [`Plan`]: steps in order;
//! * [`Refusal`]: why a wish cannot be granted.

#![forbid(unsafe_code)]

mod address;
mod adopt;
mod attach;
mod bridge;
mod busy;
mod bypass;
mod check;
mod claim;
mod complete;
mod detach;
mod entry;
mod flow;
mod guard;
mod mtu;
mod network;
mod node;
mod observed;
mod plan;
mod prefix;
mod publish;
mod refusal;
mod renew;
mod repair;
mod reserved;
mod shaping;
mod socket_hook;
mod step;
mod sysctl;
mod tables;
#[cfg(test)]
mod testing;
mod uninstall;
mod uplink;

pub use address::{Leases, choose};
pub use adopt::plan_adopt;
pub use attach::{AttachContext, Records, plan_attach};
pub use bridge::{bridge_alias, plan_bridge};
pub use busy::{busiest, may_be_busy};
pub use bypass::{BypassMode, obstacles};
pub use check::{Difference, check, check_host};
pub use claim::{Claim, Held, HeldPorts, Holding, attachment_claims, mapping_claims};
pub use complete::{plan_complete, with_addresses};
pub use detach::plan_detach;
pub use entry::{Entries, Entry, EntryKey, LinkRef};
pub use flow::{Ends, FlowFilter, FlowKind, FlowState, FlowTable, LiveFlow, Traffic};
pub use guard::{GuardMode, GuardStep, Posted, plan_guards};
pub use mtu::{Resize, network_mtu, plan_mtu};
pub use node::{NodeIntent, NodePlan, flow_entries, flow_quota, plan_node};
pub use observed::{
    Link, LinkKind, Observed, PodSide, RouteEntry, Scope, Switching, VlanMember, wanted_vlans,
};
pub use plan::Plan;
pub use publish::{plan_publish, with_both_ports, with_ports};
pub use refusal::{Category, PortOwner, Refusal};
pub use renew::plan_renewal;
pub use repair::{Finding, Reason, Repair, Stray, is_there, living, plan_repair};
pub use reserved::{ReservedPorts, claimed_ports, plan_reserved_ports, reserved_ports_key};
pub use shaping::{Shape, ShaperMode};
pub use socket_hook::{SocketHook, SocketLink, attach_sockets, needed_sockets};
pub use step::{BridgeSpec, Hook, PodSpec, Step, SysctlKey, VethSpec, VlanLinkSpec, VlanStep};
pub use sysctl::node_sysctls;
pub use tables::attachment_entries;
pub use uninstall::{Left, Uninstall, Written, is_lasting, lasting_sysctls, plan_uninstall};
