//! Reload of the configuration while the agent runs: applied as a whole, or not at all.
//!
//! Only keys that changed since the last load are applied, so that settings made over the socket
//! stay in effect as long as their key does not change. An error is reported and changes nothing.

use anyhow::{Result, anyhow};
use api::EventOutcome;
use engine::ConfigChange;

use crate::app::App;
use crate::clock;
use crate::config::Config;
use crate::process::lifecycle::{Reload, Reloaded};
use crate::process::service_manager::{self, Notification};
use crate::telemetry::events::NewEvent;
use crate::telemetry::log;

impl Reload {
    /// Loads the configuration again and applies what changed.
    pub(crate) async fn run(&mut self, app: &App) -> Result<Reloaded> {
        // All that can be wrong with the file is checked before anything is applied; the engine
        // applies its part as a whole or not at all; the rest cannot fail.
        let current = app.config.get();
        let wanted = current.load_again(self.options.clone())?;
        let filter = log::parse_filter(&wanted.log_level)?;
        let mut change = change(&current, &wanted);
        // Compared with the level in effect, which a request may have set.
        let log = app.handle.status().datapath_log.level;
        change.datapath_log = (log != wanted.datapath_log).then_some(wanted.datapath_log);
        let applied = current.reloadable(&wanted);
        if change != ConfigChange::default() {
            app.handle.configure(change, clock::now()).await?;
        }
        app.datapath_log.follow();
        app.drop_events.set_interval(wanted.drop_event_interval);
        self.log_level.set(filter);
        let needs_restart = current.needs_restart(&wanted);
        app.config.adopt_reloadable(wanted);
        Ok(Reloaded {
            applied,
            needs_restart,
        })
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

/// Returns the changed settings of the engine. Pod CIDRs that were removed from the file stay: they
/// may come from another source.
fn change(before: &Config, wanted: &Config) -> ConfigChange {
    ConfigChange {
        pod_cidrs: differs(&before.ranges, &wanted.ranges).filter(|ranges| !ranges.is_empty()),
        hairpin: differs(&before.hairpin, &wanted.hairpin),
        non_masquerade: differs(&before.non_masquerade, &wanted.non_masquerade),
        uplinks: differs(&before.uplinks, &wanted.uplinks),
        egress: differs(&before.egress, &wanted.egress),
        bypass: differs(&before.bypass, &wanted.bypass),
        forwarding: differs(&before.forwarding, &wanted.forwarding),
        peers: differs(&before.peers, &wanted.peers),
        xdp_prefilter: differs(&before.xdp_prefilter, &wanted.xdp_prefilter),
        datapath_log: None,
    }
}

fn differs<T: Clone + PartialEq>(before: &T, wanted: &T) -> Option<T> {
    (before != wanted).then(|| wanted.clone())
}
