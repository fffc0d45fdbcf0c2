//! Logs: to stderr, where the journal or a terminal reads them.

use std::io::{IsTerminal, Write, stderr};
use std::{panic, process};

use anyhow::{Context, Error, Result};
use tracing_subscriber::fmt::format::{DefaultFields, Format};
use tracing_subscriber::layer::Layered;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

type Lines = fmt::Layer<Registry, DefaultFields, Format, fn() -> std::io::Stderr>;

/// What is logged, which may change.
#[derive(Debug)]
pub(crate) struct LogLevel(reload::Handle<EnvFilter, Layered<Lines, Registry>>);

impl LogLevel {
    /// Logs what `filter` lets through from now on.
    pub(crate) fn set(&self, filter: EnvFilter) {
        // It fails only when nobody logs any more.
        let _nobody = self.0.reload(filter);
    }
}

/// What `level` lets through.
pub(crate) fn filter(level: &str) -> Result<EnvFilter> {
    EnvFilter::try_new(level).context("log-level")
}

/// Starts logging what `level` lets through.
pub(crate) fn start(level: &str) -> Result<LogLevel> {
    let ansi = stderr().is_terminal();
    let lines = fmt::layer()
        .with_writer(stderr as fn() -> _)
        .with_ansi(ansi)
        .with_target(false);
    let (filter, handle) = reload::Layer::new(filter(level)?);
    tracing_subscriber::registry()
        .with(lines)
        .with(filter)
        .init();
    Ok(LogLevel(handle))
}

/// A panic ends the agent, whichever thread it is of: another one takes over within a second. Only a panic over records
/// that may be damaged is an answer.
pub(crate) fn end_on_panic() {
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        tell(info);
        if !store::is_in_doubt() {
            process::abort();
        }
    }));
}

/// Says why the agent ends, with all causes, whether logging has started or not.
pub(crate) fn last_words(error: &Error) {
    if tracing::dispatcher::has_been_set() {
        tracing::error!("{error:#}");
    } else {
        // There is nobody left to tell when stderr is closed.
        let _unheard = writeln!(stderr(), "viaductd: {error:#}");
    }
}
