//! Settings for a limited time, in memory only: a reload that changes their key and a restart of
//! the agent end them too.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api::{BypassSetting, EventOutcome, LogLevelSetting};
use cni::Error;
use engine::ConfigChange;
use model::DatapathLogLevel;
use planner::BypassMode;

use crate::app::App;
use crate::clock;
use crate::http::failure::Failure;
use crate::telemetry::events::NewEvent;
use crate::telemetry::log;

/// Longest time of a temporary setting, in seconds.
const LONGEST: u64 = 24 * 60 * 60;

impl App {
    /// Sets the mode of the netfilter bypass for some seconds; for none, the configured mode.
    pub(crate) async fn set_bypass(
        self: &Arc<Self>,
        wanted: &BypassSetting,
    ) -> Result<BypassSetting, Failure> {
        let seconds = wanted.seconds;
        if seconds > LONGEST {
            let text = format!("{seconds} s: a temporary mode lasts {LONGEST} s at most");
            return Err(Error::invalid_config(text).into());
        }
        let mode = match seconds {
            0 => self.config.get().bypass,
            _ => wanted
                .mode
                .parse::<BypassMode>()
                .map_err(Error::invalid_config)?,
        };
        let number = self.lifecycle.bypass.fetch_add(1, Ordering::AcqRel) + 1;
        self.apply_bypass(mode, seconds).await?;
        if seconds > 0 {
            let app = Arc::clone(self);
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                // A later setting has a timer of its own.
                if app.lifecycle.bypass.load(Ordering::Acquire) == number {
                    let configured = app.config.get().bypass;
                    if let Err(failure) = app.apply_bypass(configured, 0).await {
                        tracing::error!(
                            ?failure,
                            "temporary bypass mode has ended, and the configured one failed"
                        );
                    }
                }
            });
        }
        Ok(BypassSetting {
            mode: mode.name().to_owned(),
            seconds,
        })
    }

    async fn apply_bypass(&self, mode: BypassMode, seconds: u64) -> Result<(), Failure> {
        let change = ConfigChange {
            bypass: Some(mode),
            ..ConfigChange::default()
        };
        self.handle.configure(change, clock::now()).await?;
        let text = match seconds {
            0 => format!("{}, as configured", mode.name()),
            _ => format!("{} for {seconds} s", mode.name()),
        };
        tracing::info!(mode = mode.name(), seconds, "netfilter bypass set");
        self.events
            .emit(NewEvent::new("bypass", "node", EventOutcome::Done, text));
        Ok(())
    }

    /// Sets the log levels until the next reload. The level of the datapath first, since it can
    /// fail.
    pub(crate) async fn set_log_level(&self, wanted: &LogLevelSetting) -> Result<(), Failure> {
        let LogLevelSetting { level, datapath } = wanted;
        let datapath = match datapath {
            Some(word) => Some(word.parse::<DatapathLogLevel>().map_err(|error| {
                Error::invalid_config(format!("level of the datapath log: {error}"))
            })?),
            None => None,
        };
        // Without a level of the datapath, there must be one of the agent.
        let filter = if level.is_empty() && datapath.is_some() {
            None
        } else {
            let parsed = log::parse_filter(level);
            Some(parsed.map_err(|error| Error::invalid_config(format!("{error:#}")))?)
        };
        let reload = self.lifecycle.reload.lock().await;
        let Some(reload) = reload.as_ref() else {
            return Err(Error::try_again_later("the agent starts or stops").into());
        };
        if let Some(level) = datapath {
            let change = ConfigChange {
                datapath_log: Some(level),
                ..ConfigChange::default()
            };
            self.handle.configure(change, clock::now()).await?;
            self.datapath_log.follow();
            tracing::info!(%level, "level of the datapath log set until the next reload");
        }
        if let Some(filter) = filter {
            reload.log_level.set(filter);
            tracing::info!(level, "log level set until the next reload");
        }
        Ok(())
    }
}
