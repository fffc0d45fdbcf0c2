//! Taking another configuration while the agent runs: wholly, or not at all.
//!
//! Only what the file says anew is taken, so that what was chosen over the socket stays where the file says nothing
//! else. What is wrong with the file is said, and changes nothing.

use anyhow::Result;
use engine::Change;

use crate::clock;
use crate::config::{Config, Options};
use crate::requests::App;
use crate::telemetry::{self, LogLevel};

/// The configuration that the agent goes by, and where it is from.
#[derive(Debug)]
pub(crate) struct Reload {
    options: Options,
    config: Config,
    log_level: LogLevel,
}

/// What came of a reload.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Reloaded {
    /// Keys that hold from now on.
    pub(crate) taken: Vec<&'static str>,
    /// Keys that hold from the next start on.
    pub(crate) later: Vec<&'static str>,
}

impl Reload {
    pub(crate) fn new(options: Options, config: Config, log_level: LogLevel) -> Self {
        Self {
            options,
            config,
            log_level,
        }
    }

    /// Reads the file again, and goes by it.
    pub(crate) async fn run(&mut self, app: &App) -> Result<Reloaded> {
        let wanted = Config::load(self.options.clone())?;
        let filter = telemetry::filter(&wanted.log_level)?;
        let change = change(&self.config, &wanted);
        let taken = taken(&change, &self.config, &wanted);
        if change != Change::default() {
            app.handle.configure(change, clock::now()).await?;
        }
        app.set_hostport_annotation(wanted.hostport_annotation.clone());
        self.log_level.set(filter);
        let later = self.config.needs_restart(&wanted);
        self.config.take(wanted);
        Ok(Reloaded { taken, later })
    }
}

/// What is different, of what the engine goes by. Pod CIDRs that the file no longer names stay: they may come otherwise.
fn change(before: &Config, wanted: &Config) -> Change {
    Change {
        pod_cidrs: differs(&before.ranges, &wanted.ranges).filter(|ranges| !ranges.is_empty()),
        hairpin: differs(&before.hairpin, &wanted.hairpin),
        non_masquerade: differs(&before.non_masquerade, &wanted.non_masquerade),
        uplinks: differs(&before.uplinks, &wanted.uplinks),
        egress: differs(&before.egress, &wanted.egress),
        bypass: differs(&before.bypass, &wanted.bypass),
        guard: differs(&before.guard, &wanted.guard),
    }
}

fn differs<T: Clone + PartialEq>(before: &T, wanted: &T) -> Option<T> {
    (before != wanted).then(|| wanted.clone())
}

/// The keys that hold from now on.
fn taken(change: &Change, before: &Config, wanted: &Config) -> Vec<&'static str> {
    let keys = [
        ("pod-cidr", change.pod_cidrs.is_some()),
        ("hairpin-mode", change.hairpin.is_some()),
        ("non-masquerade-cidr", change.non_masquerade.is_some()),
        ("uplink", change.uplinks.is_some()),
        ("egress-address", change.egress.is_some()),
        ("bypass-netfilter", change.bypass.is_some()),
        ("xdp-guard", change.guard.is_some()),
        (
            "hostport-annotation",
            before.hostport_annotation != wanted.hostport_annotation,
        ),
        ("log-level", before.log_level != wanted.log_level),
    ];
    keys.into_iter()
        .filter(|(_, differs)| *differs)
        .map(|(key, _)| key)
        .collect()
}
