//! The value of `--log-format`, and log lines as JSON objects.

use std::fmt;
use std::str::FromStr;

use anyhow::{Error, bail};
use model::printable_json;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{Format, Json, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::{Priority, with_priority};

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Words, for people.
    #[default]
    Text,
    /// A JSON object for each event, for log collectors.
    Json,
}

impl FromStr for LogFormat {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => bail!("{text:?} must be text or json"),
        }
    }
}

/// Format of events as JSON objects: `timestamp`, `level`, `target`, `fields` (with `message`), and
/// `spans`, the outermost first. One line each, with a priority for the journal.
#[derive(Debug)]
pub(super) struct JsonLines {
    format: Format<Json>,
    to_journal: bool,
}

impl JsonLines {
    pub(super) fn new(to_journal: bool) -> Self {
        Self {
            format: Format::default().json().with_current_span(false),
            to_journal,
        }
    }
}

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        self.format
            .format_event(context, Writer::new(&mut text), event)?;
        // JSON escapes only the control characters of ASCII.
        let line = printable_json(&text);
        if self.to_journal {
            let priority = Priority::from(event.metadata().level());
            writer.write_str(&with_priority(priority, &line))
        } else {
            writer.write_str(&line)
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::fmt as lines;
    use tracing_subscriber::fmt::format::JsonFields;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::super::tests::Written;
    use super::*;

    fn logged(to_journal: bool, name: &str) -> String {
        let written = Written::default();
        let writer = written.clone();
        let lines = lines::layer()
            .event_format(JsonLines::new(to_journal))
            .fmt_fields(JsonFields::new())
            .with_ansi(false)
            .with_writer(move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            let span = tracing::error_span!("cni", container = %name, verb = tracing::field::Empty);
            span.record("verb", "ADD");
            let _entered = span.entered();
            tracing::warn!(pod = %name, count = 3, "in use by {name}");
        });
        written.text()
    }

    #[test]
    fn an_event_in_json_is_one_line_with_its_fields_and_spans() {
        let name = "evil\n ERROR forged\x1b[2J\u{9b}\u{202e}";
        let text = logged(false, name);
        assert_eq!(text.find('\n'), Some(text.len() - 1), "{text:?}");
        assert!(text.trim_end().is_ascii(), "{text:?}");
        let event: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(event["level"], "WARN");
        assert_eq!(event["fields"]["message"], format!("in use by {name}"));
        assert_eq!(event["fields"]["pod"], name);
        assert_eq!(event["fields"]["count"], 3);
        let span = serde_json::json!({"name": "cni", "container": name, "verb": "ADD"});
        assert_eq!(event["spans"], serde_json::json!([span]));
        assert!(event["timestamp"].is_string(), "{event}");
    }

    #[test]
    fn an_event_in_json_has_its_priority_in_the_journal() {
        let text = logged(true, "web");
        let event = text.strip_prefix("<4>").unwrap();
        serde_json::from_str::<serde_json::Value>(event).unwrap();
    }

    #[test]
    fn a_word_that_is_no_log_format_is_refused() {
        assert_eq!("json".parse::<LogFormat>().unwrap(), LogFormat::Json);
        assert_eq!("text".parse::<LogFormat>().unwrap(), LogFormat::default());
        let error = "yaml".parse::<LogFormat>().unwrap_err();
        assert_eq!(error.to_string(), "\"yaml\" must be text or json");
    }
}
