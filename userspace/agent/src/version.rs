//! Version of the agent.

use std::sync::LazyLock;

use api::BuildFacts;

/// Version of this build: the value of `VIADUCT_VERSION` at build time, for packagers, else the
/// crate's version.
pub(crate) const VERSION: &str = match option_env!("VIADUCT_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// What identifies this build.
pub(crate) const BUILD: BuildFacts = BuildFacts {
    version: VERSION,
    commit: option_env!("VIADUCT_COMMIT"),
    abi: abi::ABI_VERSION,
};

/// Text of `--version`.
pub(crate) static LINE: LazyLock<String> = LazyLock::new(|| BUILD.to_string());
