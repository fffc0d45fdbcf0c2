//! Version of this program.

use std::sync::LazyLock;

/// What identifies this build.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Build {
    pub(crate) version: &'static str,
    commit: Option<&'static str>,
}

/// The version is the value of `VIADUCT_VERSION` at build time, for packagers, else the crate's.
pub(crate) const BUILD: Build = Build {
    version: match option_env!("VIADUCT_VERSION") {
        Some(version) => version,
        None => env!("CARGO_PKG_VERSION"),
    },
    commit: option_env!("VIADUCT_COMMIT"),
};

/// Text of `--version`.
pub(crate) static LINE: LazyLock<String> = LazyLock::new(|| {
    let commit = BUILD.commit().unwrap_or("unknown");
    format!("{} (commit {commit}, API {})", BUILD.version, api::VERSION)
});

impl Build {
    /// Returns the commit; `None` if the build did not know it.
    pub(crate) fn commit(self) -> Option<&'static str> {
        self.commit.filter(|commit| !commit.is_empty())
    }
}
