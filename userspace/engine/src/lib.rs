//! One writer: observe, plan, record, apply, answer, look again.
//!
//! [`Engine`] turns wishes into plans with the planner, records them in the store before the kernel sees the first
//! step, executes them, undoes what was done when a step fails, and compares the result with the decision when nobody
//! waits. The same code finishes or removes what a crash left behind. Knows nothing of CNI, HTTP, command lines or
//! clocks: time is an argument, and every kernel is a [`kernel::Kernel`].

#![forbid(unsafe_code)]

mod busy;
mod chain;
mod choices;
mod chores;
mod collect;
mod complete;
mod configure;
mod engine;
mod error;
mod handle;
mod limits;
mod network;
mod node;
mod operations;
mod ports;
mod reconcile;
mod removal;
mod slot;
mod sockets;
mod status;
mod transaction;
mod tune;
mod turn;
mod uninstall;
mod worker;

pub use crate::chain::Serve;
pub use crate::choices::Update;
pub use crate::collect::{Collect, Collected};
pub use crate::configure::Change;
pub use crate::engine::{Engine, Ports, Settings};
pub use crate::error::EngineError;
pub use crate::handle::{Handle, spawn};
pub use crate::limits::{LimitChange, Wish};
pub use crate::network::NetworkClash;
pub use crate::operations::Operation;
pub use crate::reconcile::{Item, NODE, Outcome, Report};
pub use crate::status::{
    BypassStatus, Degraded, NetworkStatus, PoolStatus, ShaperStatus, Status, UplinkStatus,
};
pub use crate::tune::Tune;
pub use crate::uninstall::{Attached, Uninstalled};

#[cfg(test)]
mod tests;
