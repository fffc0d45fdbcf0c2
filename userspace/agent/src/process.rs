//! The process: its start and end, its privileges, and its place on the node.

pub(crate) mod background;
pub(crate) mod bpf_object;
pub(crate) mod installation;
pub(crate) mod instance_lock;
pub(crate) mod last_failure;
pub(crate) mod lifecycle;
pub(crate) mod memory;
pub(crate) mod offload;
pub(crate) mod sandbox;
pub(crate) mod service_manager;
pub(crate) mod start;
pub(crate) mod uninstall;
