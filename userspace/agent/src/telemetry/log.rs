//! Logging to stderr: for a terminal or a file with time, for the journal with the priority of each
//! line.

use std::fmt::{self, Write as _};
use std::io::{IsTerminal, Write, stderr};
use std::{panic, process};

use anyhow::Error;
use model::printable;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{DefaultFields, Format, Full, JsonFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Layered, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, fmt as lines, reload};

use crate::process::{last_failure, service_manager};

mod log_filter;
mod log_format;

pub(crate) use log_filter::parse as parse_filter;
pub(crate) use log_format::LogFormat;

use log_format::JsonLines;

/// Target of the datapath log.
pub(crate) const DATAPATH: &str = "datapath";

type Lines = Box<dyn Layer<Registry> + Send + Sync>;

/// Handle to change the log filter at run time.
pub(crate) struct LogLevel(reload::Handle<Targets, Layered<Lines, Registry>>);

impl fmt::Debug for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogLevel").finish_non_exhaustive()
    }
}

impl LogLevel {
    /// Replaces the log filter.
    pub(crate) fn set(&self, filter: Targets) {
        // Fails only if the subscriber is gone, which is global.
        let _result = self.0.reload(filter);
    }
}

/// Initialises logging with `filter`.
pub(crate) fn start(filter: Targets, format: LogFormat) -> LogLevel {
    let lines = match format {
        LogFormat::Text => text_lines(),
        LogFormat::Json => json_lines(),
    };
    let (filter, handle) = reload::Layer::new(filter);
    tracing_subscriber::registry()
        .with(lines)
        .with(filter)
        .init();
    LogLevel(handle)
}

fn text_lines() -> Lines {
    let format = if service_manager::logs_to_journal() {
        LineFormat::Journal(Format::default().without_time().with_target(false))
    } else {
        LineFormat::Plain(Format::default().with_target(false))
    };
    lines::layer()
        .event_format(format)
        .fmt_fields(EscapedFields)
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal())
        .boxed()
}

fn json_lines() -> Lines {
    lines::layer()
        .event_format(JsonLines::new(service_manager::logs_to_journal()))
        .fmt_fields(JsonFields::new())
        .with_writer(stderr)
        .with_ansi(false)
        .boxed()
}

/// Formats message and fields with control characters escaped, so that each event is one line:
/// values may contain names that others choose.
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

/// Format of log lines.
#[derive(Debug)]
enum LineFormat {
    /// With time.
    Plain(Format<Full>),
    /// Without time, which the journal adds, and with a priority before each line, as defined by
    /// `sd-daemon(3)`.
    Journal(Format<Full, ()>),
}

impl<S, N> FormatEvent<S, N> for LineFormat
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
        // Lines of the agent itself have no target, which would be the module of the code.
        let has_target = event.metadata().target() == DATAPATH;
        match self {
            Self::Plain(format) => {
                let format = format.clone().with_target(has_target);
                format.format_event(context, writer, event)
            }
            Self::Journal(format) => {
                let mut text = String::new();
                let format = format.clone().with_target(has_target);
                format.format_event(context, Writer::new(&mut text), event)?;
                let priority = Priority::from(event.metadata().level());
                writer.write_str(&with_priority(priority, &text))
            }
        }
    }
}

/// Priority of a line in the journal, as `syslog(3)` numbers them.
#[derive(Clone, Copy, Debug)]
enum Priority {
    Critical = 2,
    Error = 3,
    Warning = 4,
    Info = 6,
    Debug = 7,
}

impl From<&Level> for Priority {
    fn from(level: &Level) -> Self {
        match *level {
            Level::ERROR => Self::Error,
            Level::WARN => Self::Warning,
            Level::INFO => Self::Info,
            Level::DEBUG | Level::TRACE => Self::Debug,
        }
    }
}

/// Prefixes each line of `text` with its priority: the journal makes an entry of each line.
fn with_priority(priority: Priority, text: &str) -> String {
    let mut prefixed = String::with_capacity(text.len() + 4);
    for line in text.lines() {
        let _always_fits = writeln!(prefixed, "<{}>{}", priority as u8, line.trim_start());
    }
    prefixed
}

/// Makes a panic of any thread abort the agent: the service manager starts another within a second.
/// The exception is a panic while opening records that may be damaged, which the store returns as
/// an error.
pub(crate) fn abort_on_panic() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if store::is_catching_panics() {
            return print(info);
        }
        if service_manager::logs_to_journal() {
            write_fatal(Priority::Critical, &info.to_string());
        } else {
            print(info);
        }
        process::abort();
    }));
}

/// Logs the error that ends the agent, with all its causes, and reports it to the service manager.
/// It is printed at every log level, and also before logging is initialised.
pub(crate) fn log_fatal(error: &Error) {
    let text = format!("{error:#}");
    if tracing::enabled!(Level::ERROR) {
        // An error of a configuration file has several lines.
        for line in text.lines() {
            tracing::error!("{line}");
        }
    } else {
        write_fatal(Priority::Error, &format!("viaductd: {text}"));
    }
    let line = one_line(&text);
    last_failure::record(&line);
    service_manager::notify(service_manager::Notification::Status(&line));
}

/// Prints an error of the command line, and returns the exit status that goes with it. Help and
/// version are printed to standard output.
pub(crate) fn print_usage_error(error: &clap::Error) -> process::ExitCode {
    if error.use_stderr() && service_manager::logs_to_journal() {
        write_fatal(Priority::Error, error.to_string().trim_end());
    } else {
        // If the stream is closed, there is no other place to report to.
        let _result = error.print();
    }
    process::ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1))
}

fn write_fatal(priority: Priority, text: &str) {
    let text = if service_manager::logs_to_journal() {
        with_priority(priority, text)
    } else {
        format!("{text}\n")
    };
    // If stderr is closed, there is no other place to report to.
    let _result = stderr().write_all(text.as_bytes());
}

/// Returns `text` as one line: a notification ends at the first line break.
fn one_line(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// What was logged.
    #[derive(Clone, Default)]
    pub(super) struct Written(Arc<Mutex<Vec<u8>>>);

    impl Written {
        pub(super) fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_one_line_and_has_no_control_characters() {
        let written = Written::default();
        let writer = written.clone();
        let lines = lines::layer()
            .event_format(LineFormat::Journal(Format::default().without_time()))
            .fmt_fields(EscapedFields)
            .with_ansi(false)
            .with_writer(move || writer.clone());
        let name = "evil\n ERROR forged\x1b[2J\u{9b}";
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            let span = tracing::error_span!("cni", container = %name);
            let _entered = span.entered();
            tracing::error!(pod = %name, "in use by {name}");
        });
        let text = written.text();
        assert_eq!(text.matches("forged").count(), 3, "{text:?}");
        assert_eq!(text.find('\n'), Some(text.len() - 1), "{text:?}");
        let controls = text.trim_end().chars().filter(|c| c.is_control());
        assert_eq!(controls.count(), 0, "{text:?}");
    }

    #[test]
    fn each_line_for_the_journal_has_the_priority_of_its_level() {
        let text = " WARN agent degraded:\n  two lines\n";
        let prefixed = with_priority(Priority::from(&Level::WARN), text);
        assert_eq!(prefixed, "<4>WARN agent degraded:\n<4>two lines\n");
        for (level, priority) in [
            (Level::ERROR, 3),
            (Level::INFO, 6),
            (Level::DEBUG, 7),
            (Level::TRACE, 7),
        ] {
            assert_eq!(Priority::from(&level) as u8, priority, "{level}");
        }
    }
}
