//! A recording of the demo: its lines as an SVG picture of a terminal, where each appears at its
//! time.
//!
//! A viewer that does not animate shows all lines.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use super::screen::{COLUMNS, Look, Span};

/// Longest time between two lines in the picture, also where the demo has measured for seconds.
const PAUSE: Duration = Duration::from_millis(700);

/// Sizes in pixels: of a character cell, and around the text.
const CELL: (usize, usize) = (8, 17);
const MARGIN: usize = 14;

/// Lines, and when they appear in the picture.
pub(crate) struct Recording {
    lines: Vec<(Duration, Vec<Span>)>,
    last: Instant,
}

impl Recording {
    /// Begins with the command at a prompt.
    pub(crate) fn begin() -> Self {
        let prompt = Span::new(Look::Dim, "$ ");
        let command = Span::new(Look::Plain, "cargo xtask demo");
        Self {
            lines: vec![(Duration::ZERO, vec![prompt, command])],
            last: Instant::now(),
        }
    }

    /// Adds a line that is printed now.
    pub(crate) fn add(&mut self, spans: &[Span]) {
        let now = Instant::now();
        let pause = now.duration_since(self.last).min(PAUSE);
        let before = self.lines.last().map_or(Duration::ZERO, |(at, _)| *at);
        self.lines.push((before + pause, spans.to_vec()));
        self.last = now;
    }

    /// Returns the picture.
    pub(crate) fn svg(&self) -> String {
        let width = COLUMNS * CELL.0 + 2 * MARGIN;
        let height = self.lines.len() * CELL.1 + 2 * MARGIN;
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\">\n\
             <title>A run of the demo</title>\n<style>\n\
             rect {{ fill: #161b22 }} text {{ fill: #d6dce3; font: 13px ui-monospace, Menlo, Consolas, monospace; white-space: pre; \
             animation: wait var(--at) step-end }}\n\
             .bold {{ font-weight: bold; fill: #fff }} .good {{ fill: #57c26b }} .bad {{ fill: #ff6b62 }} .dim {{ fill: #8b949e }}\n\
             @keyframes wait {{ from, to {{ opacity: 0 }} }}\n\
             @media (prefers-reduced-motion) {{ text {{ animation: none }} }}\n</style>\n\
             <rect width=\"{width}\" height=\"{height}\" rx=\"8\"/>\n"
        );
        for (number, (at, spans)) in self.lines.iter().enumerate() {
            let y = MARGIN + (number + 1) * CELL.1 - CELL.1 / 4;
            let seconds = at.as_secs_f32();
            let _ = write!(
                text,
                "<text x=\"{MARGIN}\" y=\"{y}\" xml:space=\"preserve\" style=\"--at:{seconds:.1}s\">"
            );
            for span in spans {
                text.push_str(&tspan(span));
            }
            text.push_str("</text>\n");
        }
        text + "</svg>\n"
    }
}

fn tspan(span: &Span) -> String {
    let text = (span.text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    let class = match span.look {
        Look::Plain => return text,
        Look::Bold => "bold",
        Look::Good => "good",
        Look::Bad => "bad",
        Look::Dim => "dim",
    };
    format!("<tspan class=\"{class}\">{text}</tspan>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_recording_appear_in_their_order_and_without_markup_of_their_own() {
        let mut recording = Recording::begin();
        recording.add(&[Span::new(Look::Good, "✓"), Span::new(Look::Plain, " a < b")]);
        recording.add(&[]);
        let text = recording.svg();
        let lines: Vec<&str> = text.lines().filter(|it| it.starts_with("<text")).collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].contains("--at:0.0s"), "{text}");
        assert!(
            lines[1].contains("<tspan class=\"good\">✓</tspan> a &lt; b</text>"),
            "{text}"
        );
    }
}
