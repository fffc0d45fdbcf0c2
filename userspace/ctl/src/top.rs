//! `viaductctl top`: live send and receive rates of pods, as bars against their bandwidth limits,
//! or once as plain text. Rates are differences of the agent's counters over the interval.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use api::{AttachmentView, Client, LimitView, path};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line as Text;
use ratatui::widgets::{Cell, Row, Table};

/// Width of a bar, in terminal cells.
const BAR: u16 = 20;
/// Share of the limit from which a direction counts as being at its limit, and is drawn in red.
const FULL: f64 = 0.95;

const HEAD: [&str; 8] = [
    "POD",
    "DIR",
    "LIMIT",
    "RATE",
    "",
    "MARKED/s",
    "PACED/s",
    "DROPPED/s",
];

/// Options of `viaductctl top`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Top {
    /// Print the rates of one interval as plain text, and exit
    #[arg(long)]
    once: bool,
    /// Refresh interval in seconds, from 1 to 60
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=60))]
    interval: u64,
}

impl Top {
    /// Draws until the user presses q, Esc or Ctrl-C. Returns the text to print afterwards: with
    /// `--once` the table, else nothing.
    pub(crate) fn run(self, client: &Client) -> Result<String> {
        // Before the terminal is initialised: an unreachable agent must not clear the screen.
        let mut before = sample(client)?;
        if self.once {
            std::thread::sleep(Duration::from_secs(self.interval));
            return Ok(plain(&compare(&before, &sample(client)?)));
        }
        let mut terminal =
            ratatui::try_init().context("cannot initialise the terminal: try --once")?;
        let shown = self.show(client, &mut before, &mut terminal);
        ratatui::restore();
        shown.map(|()| String::new())
    }

    fn show(
        self,
        client: &Client,
        before: &mut Sample,
        terminal: &mut ratatui::DefaultTerminal,
    ) -> Result<()> {
        let mut lines = Vec::new();
        loop {
            terminal.draw(|frame| draw(frame, &lines))?;
            let next = before.at + Duration::from_secs(self.interval);
            if quit_pressed_before(next)? {
                return Ok(());
            }
            let now = sample(client)?;
            lines = compare(before, &now);
            *before = now;
        }
    }
}

/// Waits until `next`. Returns `true` if the user quits before, `false` at `next` or on a resize.
fn quit_pressed_before(next: Instant) -> Result<bool> {
    while event::poll(next.saturating_duration_since(Instant::now()))? {
        let Event::Key(key) = event::read()? else {
            // Resized: draw again immediately.
            return Ok(false);
        };
        let interrupts = key.modifiers.contains(KeyModifiers::CONTROL);
        let ends = [KeyCode::Char('q'), KeyCode::Esc].contains(&key.code);
        if ends || (interrupts && key.code == KeyCode::Char('c')) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// All attachments, with their counters at one point in time.
struct Sample {
    at: Instant,
    attachments: Vec<AttachmentView>,
}

fn sample(client: &Client) -> Result<Sample> {
    let attachments = crate::decode(&crate::get(client, path::ATTACHMENTS)?)?;
    let at = Instant::now();
    Ok(Sample { at, attachments })
}

/// The rates of one direction of a pod's interface.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    pod: String,
    direction: &'static str,
    /// Bits per second; `None` for no limit.
    limit: Option<u64>,
    /// Bits per second in the last interval.
    rate: f64,
    /// Packets per second.
    marked: f64,
    paced: f64,
    dropped: f64,
}

fn compare(before: &Sample, now: &Sample) -> Vec<Line> {
    let span = now.at.saturating_duration_since(before.at).as_secs_f64();
    let key = |it: &AttachmentView| (it.container_id.clone(), it.ifname.clone());
    let earlier: BTreeMap<_, _> = before.attachments.iter().map(|it| (key(it), it)).collect();
    let unknown = AttachmentView::default();
    let lines = now.attachments.iter().flat_map(|now| {
        // A pod that was not in the earlier sample starts from zero.
        let before = *earlier.get(&key(now)).unwrap_or(&&unknown);
        both(before, now, span)
    });
    lines.collect()
}

fn both(before: &AttachmentView, now: &AttachmentView, span: f64) -> [Line; 2] {
    let counted = |direction| {
        // Counters that could not be read count as zero.
        [before, now].map(|it| match (&it.counters, direction) {
            (Some(counters), "egress") => counters.tx_bytes,
            (Some(counters), _) => counters.rx_bytes,
            (None, _) => 0,
        })
    };
    let line = |direction, was: &Option<LimitView>, is: &Option<LimitView>| {
        let none = LimitView::default();
        let limit = is.as_ref().map(|limit| limit.rate);
        // The counters of a limit that was set in this interval include earlier traffic: use the
        // interface's counters instead.
        let ([earlier, later], [was, is]) = match (was, is) {
            (Some(was), Some(is)) => ([was.passed_bytes, is.passed_bytes], [was, is]),
            _ => (counted(direction), [&none, &none]),
        };
        Line {
            pod: name(now),
            direction,
            limit,
            rate: per_second(earlier, later, span) * 8.0,
            marked: per_second(was.marked_packets, is.marked_packets, span),
            paced: per_second(was.delayed_packets, is.delayed_packets, span),
            dropped: per_second(was.dropped_packets, is.dropped_packets, span),
        }
    };
    let (was, is) = (&before.bandwidth, &now.bandwidth);
    [
        line("egress", &was.egress, &is.egress),
        line("ingress", &was.ingress, &is.ingress),
    ]
}

fn name(attachment: &AttachmentView) -> String {
    let named = match &attachment.pod {
        Some(pod) => format!("{}/{}", pod.namespace, pod.name),
        None => crate::render::short_id(&attachment.container_id),
    };
    match attachment.ifname.as_str() {
        "eth0" => named,
        other => format!("{named} {other}"),
    }
}

/// Returns the rate per second; 0 if the counter is smaller than before, because the pod was
/// attached again.
#[expect(
    clippy::cast_precision_loss,
    reason = "rates are shown with three digits"
)]
fn per_second(before: u64, now: u64, span: f64) -> f64 {
    now.saturating_sub(before) as f64 / span.max(1e-3)
}

fn draw(frame: &mut Frame<'_>, lines: &[Line]) {
    let [title, body] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(frame.area());
    let limited = lines.iter().filter(|line| line.limit.is_some()).count();
    let text = format!(
        "{} pod directions, {limited} with a limit; press q to quit",
        lines.len()
    );
    frame.render_widget(Text::from(text), title);
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(7),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(27),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(9),
    ];
    let table = Table::new(lines.iter().map(row), widths)
        .header(Row::new(HEAD).style(Style::new().add_modifier(Modifier::BOLD)));
    frame.render_widget(table, body);
}

fn row(line: &Line) -> Row<'static> {
    let share = line.limit.map(|limit| share(line.rate, limit));
    let colour = match share {
        Some(share) if share >= FULL => Color::Red,
        Some(_) => Color::Green,
        None => Color::Reset,
    };
    let cells = cells(line)
        .into_iter()
        .enumerate()
        .map(|(column, text)| match HEAD[column] {
            "" => Cell::from(text).style(Style::new().fg(colour)),
            _ => Cell::from(text),
        });
    Row::new(cells)
}

/// Returns the text of each column of [`HEAD`].
fn cells(line: &Line) -> [String; 8] {
    let limit = line.limit.map(as_float).map_or("-".to_owned(), bits);
    let bar = line.limit.map(|limit| bar(share(line.rate, limit)));
    [
        line.pod.clone(),
        line.direction.to_owned(),
        limit,
        bits(line.rate),
        bar.unwrap_or_default(),
        count(line.marked),
        count(line.paced),
        count(line.dropped),
    ]
}

/// Renders the same table as plain text, for pipes and scripts.
fn plain(lines: &[Line]) -> String {
    let rows = lines.iter().map(|line| cells(line).to_vec().into());
    crate::render::table(&HEAD, rows)
}

fn share(rate: f64, limit: u64) -> f64 {
    rate / as_float(limit.max(1))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "rates are shown with three digits"
)]
fn as_float(number: u64) -> f64 {
    number as f64
}

/// Draws a bar that is full at the limit, followed by the share in per cent. A rate above the limit
/// (a burst) is visible in the number only.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the value is between 0 and BAR"
)]
fn bar(share: f64) -> String {
    let full = (share.clamp(0.0, 1.0) * f64::from(BAR)).round() as usize;
    let (full, rest) = ("█".repeat(full), "·".repeat(usize::from(BAR) - full));
    format!("{full}{rest} {:>4.0} %", share * 100.0)
}

/// Formats bits per second with at most three digits and a decimal unit prefix.
fn bits(rate: f64) -> String {
    let units = ["", "k", "M", "G", "T", "P"];
    let mut rate = rate;
    let mut unit = units[0];
    for larger in &units[1..] {
        if rate < 999.5 {
            break;
        }
        rate /= 1_000.0;
        unit = larger;
    }
    if rate < 9.95 && !unit.is_empty() {
        format!("{rate:.1}{unit}")
    } else {
        format!("{rate:.0}{unit}")
    }
}

fn count(rate: f64) -> String {
    if rate == 0.0 {
        return "-".to_owned();
    }
    bits(rate)
}

#[cfg(test)]
mod tests;
