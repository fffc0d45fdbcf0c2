//! The pod's side: its network namespace, and the interface in it.

pub(crate) mod announcement;
pub(crate) mod host_end;
pub(crate) mod interface;
pub(crate) mod local_route;
pub(crate) mod namespace;
pub(crate) mod netns;
pub(crate) mod tuning;
