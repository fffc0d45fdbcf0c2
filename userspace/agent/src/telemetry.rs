//! Logs, events and metrics.

pub(crate) mod datapath_log;
pub(crate) mod drop_events;
pub(crate) mod events;
pub(crate) mod exposition;
pub(crate) mod log;
pub(crate) mod losses;
pub(crate) mod metrics;
mod owners;
mod peer_metrics;
mod phase_metrics;
mod policy_metrics;
mod process_metrics;
pub(crate) mod rates;
pub(crate) mod refused_flows;
pub(crate) mod stuck_engine;
pub(crate) mod traces;
