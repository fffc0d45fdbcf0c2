//! Logs: to stderr, where the journal or a terminal reads them.

use std::io::{IsTerminal, Write, stderr};
use std::{panic, process};

use anyhow::{Context, Error, Result};
use tracing_subscriber::EnvFilter;

/// Starts logging what `filter` lets through.
pub(crate) fn start(filter: &str) -> Result<()> {
    let filter = EnvFilter::try_new(filter).context("log-level")?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal())
        .with_target(false)
        .init();
    Ok(())
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
