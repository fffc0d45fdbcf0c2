//! Reload and end of the agent, which requests and signals can cause.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Result, anyhow};
use api::EventOutcome;
use tokio::sync::{Mutex, watch};

use crate::events::NewEvent;
use crate::reload::{Reload, Reloaded};
use crate::requests::App;
use crate::service_manager::{self, Notification};

/// State of reload and end.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    /// Reloads the configuration, one reload at a time; `None` before the agent serves.
    reload: Mutex<Option<Reload>>,
    /// Whether Viaduct has been uninstalled over the API.
    pub(crate) uninstalled: Arc<AtomicBool>,
    /// Stops the agent once it is `true`.
    pub(crate) stop: watch::Sender<bool>,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self {
            reload: Mutex::default(),
            uninstalled: Arc::default(),
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

impl App {
    /// Reloads the configuration. The service manager, log and events show the result.
    pub(crate) async fn reload(&self) -> Result<Reloaded> {
        let mut reload = self.lifecycle.reload.lock().await;
        let reload = reload
            .as_mut()
            .ok_or_else(|| anyhow!("the agent has no configuration to reload"))?;
        service_manager::notify(Notification::Reloading);
        let result = reload.run(self).await;
        match &result {
            Ok(reloaded) => self.report_reload(reloaded),
            Err(error) => {
                tracing::error!("reload failed, configuration unchanged: {error:#}");
                let why = format!("{error:#}");
                let line = format!("reload failed, configuration unchanged: {why}");
                self.events
                    .emit(NewEvent::new("reload", "agent", EventOutcome::Failed, why));
                service_manager::notify(Notification::Status(&line));
            }
        }
        // Before the request is answered: a client may be the ExecReload= of the service manager.
        service_manager::notify(Notification::Ready);
        result
    }

    fn report_reload(&self, reloaded: &Reloaded) {
        tracing::info!(keys = ?reloaded.applied, "configuration reloaded: changed keys are in effect");
        if !reloaded.needs_restart.is_empty() {
            tracing::warn!(
                keys = ?reloaded.needs_restart,
                "configuration reloaded: changed keys need a restart of the agent"
            );
        }
        let keys = reloaded.applied.join(", ");
        self.events
            .emit(NewEvent::new("reload", "agent", EventOutcome::Done, keys));
        service_manager::notify(Notification::Status("configuration reloaded"));
    }
}
