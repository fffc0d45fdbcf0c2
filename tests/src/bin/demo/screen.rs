//! Output of the demo: sections of aligned lines, each marked as good or failed.

use std::fmt::Display;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use anyhow::{Error, Result};

/// Width of the column of labels.
const LABEL: usize = 46;

/// Standard output, with or without colours, and the number of good and failed lines.
pub(crate) struct Screen {
    colour: bool,
    good: u32,
    bad: u32,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self {
            colour,
            good: 0,
            bad: 0,
        }
    }

    /// Prints the title of a section.
    pub(crate) fn section(&self, title: &str) {
        let bold = self.style(Style::new().bold());
        print(&format!("\n{bold}{title}{bold:#}"));
    }

    /// Prints a checked line: good with a value, failed with an error.
    pub(crate) fn line(&mut self, label: impl Display, value: Result<impl Display>) {
        match value {
            Ok(value) => {
                self.good += 1;
                let green = self.style(AnsiColor::Green.on_default());
                marked(&format!("{green}✓{green:#}"), label, value);
            }
            Err(error) => self.failure(label, &error),
        }
    }

    /// Prints a failed line.
    pub(crate) fn failure(&mut self, label: impl Display, error: &Error) {
        self.bad += 1;
        let red = self.style(AnsiColor::Red.on_default().bold());
        marked(
            &format!("{red}✗{red:#}"),
            label,
            format!("{red}{error:#}{red:#}"),
        );
    }

    /// Prints a line without a check.
    pub(crate) fn note(&self, text: impl Display) {
        let dim = self.style(Style::new().dimmed());
        for line in text.to_string().lines() {
            print(&format!("    {dim}{line}{dim:#}"));
        }
    }

    /// Prints the summary, and returns the exit code.
    pub(crate) fn close(&self, took: Duration) -> ExitCode {
        let (good, bad, seconds) = (self.good, self.bad, took.as_secs_f32());
        if bad == 0 {
            let green = self.style(AnsiColor::Green.on_default().bold());
            print(&format!(
                "\n{green}{good} of {good} checks passed{green:#} in {seconds:.1} s"
            ));
            ExitCode::SUCCESS
        } else {
            let red = self.style(AnsiColor::Red.on_default().bold());
            let all = good + bad;
            print(&format!(
                "\n{red}{bad} of {all} checks failed{red:#} in {seconds:.1} s"
            ));
            ExitCode::FAILURE
        }
    }

    fn style(&self, style: Style) -> Style {
        if self.colour { style } else { Style::new() }
    }
}

fn marked(mark: &str, label: impl Display, value: impl Display) {
    let value = value
        .to_string()
        .replace('\n', &format!("\n{:width$}", "", width = LABEL + 5));
    print(&format!("  {mark} {:<LABEL$} {value}", label.to_string()));
}

fn print(line: &str) {
    // A closed output must not prevent the clean-up.
    let _ = writeln!(std::io::stdout(), "{line}");
}
