//! Version of the agent.

/// Version of this build: the value of `VIADUCT_VERSION` at build time, for packagers, else the
/// crate's version.
pub(crate) const VERSION: &str = match option_env!("VIADUCT_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};
