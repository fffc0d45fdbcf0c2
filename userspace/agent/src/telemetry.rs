//! Logging to stderr, for the journal or a terminal.

use std::io::{IsTerminal, Write, stderr};
use std::{panic, process};

use anyhow::{Context, Error, Result};
use tracing_subscriber::fmt::format::{DefaultFields, Format};
use tracing_subscriber::layer::Layered;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

type Lines = fmt::Layer<Registry, DefaultFields, Format, fn() -> std::io::Stderr>;

/// Handle to change the log filter at run time.
#[derive(Debug)]
pub(crate) struct LogLevel(reload::Handle<EnvFilter, Layered<Lines, Registry>>);

impl LogLevel {
    /// Replaces the log filter.
    pub(crate) fn set(&self, filter: EnvFilter) {
        // Fails only if the subscriber is gone, which is global.
        let _result = self.0.reload(filter);
    }
}

/// Parses a log level, or a list of `target=level`.
pub(crate) fn filter(level: &str) -> Result<EnvFilter> {
    EnvFilter::try_new(level).context("log-level")
}

/// Initialises logging with the filter `level`.
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

/// Makes a panic of any thread abort the agent: the service manager starts another within a second.
/// The exception is a panic while opening records that may be damaged, which the store returns as
/// an error.
pub(crate) fn abort_on_panic() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        print(info);
        if !store::is_catching_panics() {
            process::abort();
        }
    }));
}

/// Logs the error that ends the agent, with all its causes; to stderr if logging is not
/// initialised.
pub(crate) fn log_fatal(error: &Error) {
    if tracing::dispatcher::has_been_set() {
        tracing::error!("{error:#}");
    } else {
        // If stderr is closed, there is no other place to report to.
        let _result = writeln!(stderr(), "viaductd: {error:#}");
    }
}
