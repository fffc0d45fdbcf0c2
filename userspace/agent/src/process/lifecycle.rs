//! Reload and end of the agent, which requests and signals can cause.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use tokio::sync::{Mutex, watch};

use crate::config::Options;
use crate::telemetry::log::LogLevel;

/// What a reload needs besides the configuration in effect.
#[derive(Debug)]
pub(crate) struct Reload {
    pub(crate) options: Options,
    pub(crate) log_level: LogLevel,
}

/// Result of a reload.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Reloaded {
    /// Changed keys that are in effect.
    pub(crate) applied: Vec<&'static str>,
    /// Changed keys that take effect at the next start.
    pub(crate) needs_restart: Vec<&'static str>,
}

impl Reload {
    pub(crate) fn new(options: Options, log_level: LogLevel) -> Self {
        Self { options, log_level }
    }
}

/// State of reload and end.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    /// Reloads the configuration, one reload at a time; `None` before the agent serves.
    pub(crate) reload: Mutex<Option<Reload>>,
    /// Whether Viaduct has been uninstalled over the API.
    pub(crate) uninstalled: Arc<AtomicBool>,
    /// Number of temporary bypass modes so far: the timer of an earlier one does nothing.
    pub(crate) bypass: AtomicU64,
    /// Stops the agent once it is `true`.
    pub(crate) stop: watch::Sender<bool>,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self {
            reload: Mutex::default(),
            uninstalled: Arc::default(),
            bypass: AtomicU64::default(),
            stop: watch::Sender::new(false),
        }
    }
}

impl Lifecycle {
    /// Returns the state of an agent that reloads its configuration with `reload`.
    pub(crate) fn new(reload: Reload) -> Self {
        Self {
            reload: Mutex::new(Some(reload)),
            ..Self::default()
        }
    }
}
