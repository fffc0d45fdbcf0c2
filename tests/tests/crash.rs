//! The agent dies at every point between two effects of every verb, and nothing is lost, doubled or left behind.
//!
//! One pod is never touched: what it sends and what is sent to its port is counted over the whole matrix. By default a
//! step with many effects is interrupted behind its first and behind its last one; with `VIADUCT_CRASH_POINTS=all`
//! behind each, with `first` behind the first alone.

#[path = "crash/install.rs"]
mod install;
#[path = "crash/pods.rs"]
mod pods;
#[path = "crash/table.rs"]
mod table;
