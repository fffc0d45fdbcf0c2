//! Logging to stderr, one line for each event.

use std::fmt;
use std::io::{IsTerminal as _, stderr};

use anyhow::{Context as _, Result};
use model::printable;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultFields, Writer};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Libraries that log what this program logs itself.
const LIBRARIES: [&str; 3] = ["kube_client", "kube_runtime", "hyper_util"];

/// Initialises logging.
pub(crate) fn start(level: &str) -> Result<()> {
    let lines = tracing_subscriber::fmt::layer()
        .with_target(false)
        .fmt_fields(EscapedFields)
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal());
    tracing_subscriber::registry()
        .with(lines)
        .with(filter(level)?)
        .init();
    Ok(())
}

/// Returns the filter. A level without targets is that of this program only.
fn filter(text: &str) -> Result<Targets> {
    let what = || format!("--log-level: cannot parse {text:?}");
    match text.parse::<LevelFilter>() {
        Ok(level) => {
            let quiet = LIBRARIES.map(|name| (name, LevelFilter::OFF.min(level)));
            Ok(Targets::new().with_default(level).with_targets(quiet))
        }
        Err(_) => text.parse().with_context(what),
    }
}

/// Formats message and fields with control characters escaped, so that each event is one line:
/// errors contain texts of the API server.
#[derive(Debug)]
struct EscapedFields;

impl<'writer> FormatFields<'writer> for EscapedFields {
    fn format_fields<R: RecordFields>(
        &self,
        mut writer: Writer<'writer>,
        fields: R,
    ) -> fmt::Result {
        let mut text = String::new();
        DefaultFields::new().format_fields(Writer::new(&mut text), fields)?;
        writer.write_str(&printable(&text))
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_level_applies_to_this_program_and_targets_to_libraries() {
        let debug = filter("debug").unwrap();
        assert!(debug.would_enable("viaduct_kube::sync", &Level::DEBUG));
        assert!(!debug.would_enable("kube_client::client", &Level::ERROR));
        let library = filter("info,kube_client=debug").unwrap();
        assert!(library.would_enable("kube_client::client", &Level::DEBUG));
        assert!(
            filter("loud").is_err()
                || filter("loud").is_ok_and(|one| !one.would_enable("a", &Level::ERROR))
        );
        assert!(filter("a=b").is_err());
    }
}
