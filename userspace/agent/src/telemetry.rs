//! Logs: to stderr, where the journal or a terminal reads them.

use std::io::{IsTerminal, Write, stderr};

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

/// Says why the agent ends, with all causes, whether logging has started or not.
pub(crate) fn last_words(error: &Error) {
    if tracing::dispatcher::has_been_set() {
        tracing::error!("{error:#}");
    } else {
        // There is nobody left to tell when stderr is closed.
        let _unheard = writeln!(stderr(), "viaductd: {error:#}");
    }
}
