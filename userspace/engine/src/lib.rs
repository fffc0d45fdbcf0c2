//! Engine: executes CNI and API requests one at a time and keeps the node as recorded.
//!
//! [`Engine`] observes the kernel, lets the planner make a plan, and writes the decision to the
//! store before the kernel sees the first step. It executes the plan, and undoes the executed steps
//! if one fails. While no request waits, it compares the result with the record. The same code
//! finishes or removes what a crash left behind.
//!
//! The engine does not depend on CNI, HTTP, command lines or clocks: time is an argument, and every
//! kernel is a [`kernel::Kernel`].

#![forbid(unsafe_code)]

mod attachment_state;
mod background;
mod before;
mod cancellation;
mod chain;
mod change;
mod choices;
mod collect;
mod commands;
mod complete;
mod conditions;
mod configure;
mod containers;
mod current_status;
mod degradations;
mod degraded;
mod engine;
mod error;
mod forwarding;
mod forwarding_state;
mod handle;
mod kept_networks;
mod left_port;
mod left_ports;
mod limit_log;
mod limits;
mod network;
mod networks;
mod node;
mod node_conditions;
mod operations;
mod overrides;
mod own_addresses;
mod peers;
mod peers_status;
mod phases;
mod policies;
mod ports;
mod reconcile;
mod refused_add;
mod removal;
mod report;
mod setting;
mod settings;
mod slot;
mod sockets;
mod standby_ports;
mod status;
mod stored_policies;
mod sysctl_records;
mod tcx_fast_path;
mod tcx_queue;
mod trace;
mod transaction;
mod translated_connections;
mod tune;
mod uninstall;
mod upkeep;
mod worker;

pub use crate::background::Background;
pub use crate::chain::ChainedUpdate;
pub use crate::collect::{GcResult, GcScope};
pub use crate::configure::ConfigChange;
pub use crate::degraded::{AddEffect, Degraded};
pub use crate::engine::{Engine, Ports};
pub use crate::error::EngineError;
pub use crate::forwarding::{FORWARDING, FirewallUpdate};
pub use crate::handle::{Handle, spawn, spawn_with};
pub use crate::limits::{LimitChange, LimitUpdate};
pub use crate::network::NetworkClash;
pub use crate::operations::{Operation, StuckOperation};
pub use crate::overrides::UpdateOutcome;
pub use crate::peers_status::{PeersStatus, StalePeers};
pub use crate::phases::Phase;
pub use crate::report::{Item, NODE, Outcome, Report};
pub use crate::settings::Settings;
pub use crate::status::{
    BypassStatus, ForwardingStatus, NetworkStatus, PoolStatus, ShaperStatus, Status, UplinkStatus,
};
pub use crate::trace::{TimeSpan, TraceRecorder, TracedPhase, TracedStep, traced};
pub use crate::translated_connections::KeptConnections;
pub use crate::tune::Tune;
pub use crate::uninstall::{AttachedPods, Uninstalled};

#[cfg(test)]
mod tests;
