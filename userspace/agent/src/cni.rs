//! CNI commands, and the files that they read and write.

pub(crate) mod chained;
pub(crate) mod commands;
pub(crate) mod declared_networks;
pub(crate) mod file_watch;
pub(crate) mod foreign_files;
pub(crate) mod garbage_collection;
pub(crate) mod lease_files;
pub(crate) mod netavark_calls;
pub(crate) mod readiness;
pub(crate) mod refused_adds;
pub(crate) mod spool;
pub(crate) mod spool_replay;
pub(crate) mod sysctl_allowlist;
pub(crate) mod tuning_backup;
