//! The configuration in effect, which a reload replaces.

use std::sync::{Arc, PoisonError, RwLock};

use super::Config;

/// The configuration in effect. Code that reads a key here at each use follows reloads.
#[derive(Debug)]
pub(crate) struct LiveConfig(RwLock<Arc<Config>>);

impl LiveConfig {
    pub(crate) fn new(config: Config) -> Self {
        Self(RwLock::new(Arc::new(config)))
    }

    /// Returns the configuration in effect.
    pub(crate) fn get(&self) -> Arc<Config> {
        let current = self.0.read();
        Arc::clone(&current.unwrap_or_else(PoisonError::into_inner))
    }

    /// Adopts the keys of `wanted` that need no restart.
    pub(crate) fn adopt_reloadable(&self, wanted: Config) {
        let mut config = Config::clone(&self.get());
        config.adopt_reloadable(wanted);
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(config);
    }
}
