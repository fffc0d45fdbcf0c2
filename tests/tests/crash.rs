//! The agent crashes at every point between two effects of every verb: nothing is lost, duplicated
//! or left behind.
//!
//! The traffic of a bystander pod, out of it and to its port, is counted over the whole matrix. By
//! default a step with many effects is interrupted after its first and after its last one; with
//! `VIADUCT_CRASH_POINTS=all` after each, with `first` only after the first.

#[path = "crash/install.rs"]
mod install;
#[path = "crash/pods.rs"]
mod pods;
#[path = "crash/table.rs"]
mod table;
