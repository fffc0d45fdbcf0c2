//! Output of the demo: sections of aligned lines, each marked as good or failed.

use std::fmt::Display;
use std::fs;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use anyhow::{Error, Result};

use super::recording::Recording;

/// Characters of a line.
pub(crate) const COLUMNS: usize = 100;

/// Width of the column of labels.
const LABEL: usize = 46;

/// Returns the line, or what fits of it and a mark.
fn fitting(line: &str, columns: usize) -> String {
    if line.chars().count() <= columns {
        return line.to_owned();
    }
    let head: String = line.chars().take(columns - 1).collect();
    head + "…"
}

/// Breaks lines between words, so that each has at most so many characters. A longer word has a
/// line of its own.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let mut rest = String::new();
        for word in line.split(' ') {
            if !rest.is_empty() && rest.chars().count() + 1 + word.chars().count() > columns {
                lines.push(std::mem::take(&mut rest));
            }
            if !rest.is_empty() {
                rest.push(' ');
            }
            rest.push_str(word);
        }
        lines.push(rest);
    }
    lines
}

/// How a part of a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Plain,
    Bold,
    Good,
    Bad,
    Dim,
}

/// A part of a line.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) look: Look,
    pub(crate) text: String,
}

impl Span {
    pub(crate) fn new(look: Look, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { look, text }
    }
}

/// Standard output, with or without colours, a recording of it, and the number of good and failed
/// lines.
pub(crate) struct Screen {
    colour: bool,
    recording: Recording,
    good: u32,
    bad: u32,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self {
            colour,
            recording: Recording::begin(),
            good: 0,
            bad: 0,
        }
    }

    /// Prints the title of a section.
    pub(crate) fn section(&mut self, title: &str) {
        self.print(&[]);
        self.print(&[Span::new(Look::Bold, title)]);
    }

    /// Prints a checked line: good with a value, failed with an error.
    pub(crate) fn line(&mut self, label: impl Display, value: Result<impl Display>) {
        match value {
            Ok(value) => {
                self.good += 1;
                self.marked(Span::new(Look::Good, "✓"), label, (Look::Plain, value));
            }
            Err(error) => self.failure(label, &error),
        }
    }

    /// Prints a failed line.
    pub(crate) fn failure(&mut self, label: impl Display, error: &Error) {
        self.bad += 1;
        let text = format!("{error:#}");
        self.marked(Span::new(Look::Bad, "✗"), label, (Look::Bad, text));
    }

    /// Prints lines without a check, as far as they fit.
    pub(crate) fn note(&mut self, text: impl Display) {
        for line in text.to_string().lines() {
            let line = fitting(line, COLUMNS - 4);
            self.print(&[Span::new(Look::Plain, "    "), Span::new(Look::Dim, line)]);
        }
    }

    /// Prints the summary, writes the recording into a file if one is given, and returns the exit
    /// code.
    pub(crate) fn close(mut self, took: Duration, record: Option<&Path>) -> ExitCode {
        let (good, bad, seconds) = (self.good, self.bad, took.as_secs_f32());
        let all = good + bad;
        let summary = if bad == 0 {
            Span::new(Look::Good, format!("{good} of {all} checks passed"))
        } else {
            Span::new(Look::Bad, format!("{bad} of {all} checks failed"))
        };
        self.print(&[]);
        self.print(&[
            summary,
            Span::new(Look::Plain, format!(" in {seconds:.1} s")),
        ]);
        if let Some(path) = record
            && let Err(error) = fs::write(path, self.recording.svg())
        {
            self.failure(path.display(), &error.into());
        }
        if self.bad == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }

    /// Prints a line with a mark and a label. Further lines of the value are below its first one.
    fn marked(&mut self, mark: Span, label: impl Display, (look, value): (Look, impl Display)) {
        let label = format!(" {:<LABEL$} ", label.to_string());
        let mut head = vec![
            Span::new(Look::Plain, "  "),
            mark,
            Span::new(Look::Plain, label),
        ];
        let mut lines = wrapped(&value.to_string(), COLUMNS - LABEL - 5).into_iter();
        head.push(Span::new(look, lines.next().unwrap_or_default()));
        self.print(&head);
        for line in lines {
            let indent = " ".repeat(LABEL + 5);
            self.print(&[Span::new(Look::Plain, indent), Span::new(look, line)]);
        }
    }

    fn print(&mut self, spans: &[Span]) {
        self.recording.add(spans);
        let line: String = spans.iter().map(|span| self.styled(span)).collect();
        // A closed output must not prevent the clean-up.
        let _ = writeln!(std::io::stdout(), "{line}");
    }

    fn styled(&self, span: &Span) -> String {
        let style = match span.look {
            _ if !self.colour => Style::new(),
            Look::Plain => Style::new(),
            Look::Bold => Style::new().bold(),
            Look::Good => AnsiColor::Green.on_default(),
            Look::Bad => AnsiColor::Red.on_default().bold(),
            Look::Dim => Style::new().dimmed(),
        };
        format!("{style}{}{style:#}", span.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_broken_between_words_and_tables_are_cut() {
        assert_eq!(
            wrapped("one two three\nfour", 7),
            ["one two", "three", "four"]
        );
        assert_eq!(
            wrapped("fd00:10:244:1::/64 is", 7),
            ["fd00:10:244:1::/64", "is"]
        );
        assert_eq!(fitting("1234567", 7), "1234567");
        assert_eq!(fitting("12345678", 7), "123456…");
    }
}
