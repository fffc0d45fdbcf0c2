//! The screen of `viaductctl top`: its table, its keys, and the same as plain text.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line as Text;
use ratatui::widgets::{Cell, Row, Table};

use super::rates::{PodRates, Rates, SortKey, as_float};
use crate::render::{self, bits, number, shortened, text};

/// Width of a bar, in terminal cells.
const BAR: u16 = 12;
/// Width of a terminal from which the table has bars.
const WITH_BARS: u16 = 115;
/// Width of a terminal from which the table has all rates of limits.
const WITH_LIMIT_RATES: u16 = 77;

/// Mark of a pod that has a limit, and of one that has reached it.
const LIMITED: &str = "•";
const AT_LIMIT: &str = "!";

/// What a key has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pressed {
    Quit,
    Redraw,
}

/// Order, filter and position of the table.
#[derive(Clone, Debug)]
pub(super) struct Screen {
    sort: SortKey,
    filter: String,
    /// Whether keys are letters of the filter.
    is_typing: bool,
    /// Index of the first pod on the screen.
    first: usize,
    /// Number of pods that fit on the screen, as last drawn.
    height: usize,
}

impl Screen {
    pub(super) fn new(sort: SortKey, filter: String) -> Self {
        Self {
            sort,
            filter,
            is_typing: false,
            first: 0,
            height: 1,
        }
    }

    /// Returns the name of the sort key.
    #[cfg(test)]
    pub(super) fn sort_name(&self) -> &'static str {
        self.sort.name()
    }

    /// Returns the pods that the filter selects, in their order.
    pub(super) fn selected<'a>(&self, pods: &'a [PodRates]) -> Vec<&'a PodRates> {
        let mut selected: Vec<&PodRates> =
            pods.iter().filter(|it| it.matches(&self.filter)).collect();
        selected.sort_by(|one, other| self.sort.compare(one, other));
        selected
    }

    /// Changes what the key says.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the other keys have no meaning"
    )]
    pub(super) fn press(&mut self, key: KeyEvent) -> Pressed {
        let interrupts = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if interrupts => return Pressed::Quit,
            KeyCode::Esc if self.is_typing || !self.filter.is_empty() => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Backspace if self.is_typing => drop(self.filter.pop()),
            KeyCode::Char(letter) if self.is_typing => self.filter.push(letter),
            KeyCode::Char('q') | KeyCode::Esc => return Pressed::Quit,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Up | KeyCode::Char('k') => self.first = self.first.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.first += 1,
            KeyCode::PageUp => self.first = self.first.saturating_sub(self.height),
            KeyCode::PageDown => self.first += self.height,
            KeyCode::Home | KeyCode::Char('g') => self.first = 0,
            KeyCode::End | KeyCode::Char('G') => self.first = usize::MAX / 2,
            _ => {}
        }
        Pressed::Redraw
    }

    /// Draws the pods, and moves the position where it is behind the last page.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>, pods: &[PodRates]) {
        let [title, body, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(0),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let selected = self.selected(pods);
        // Without the line of the header.
        self.height = usize::from(body.height.saturating_sub(1)).max(1);
        self.first = self.first.min(selected.len().saturating_sub(self.height));
        let end = selected.len().min(self.first + self.height);
        let shown = &selected[self.first..end];
        frame.render_widget(Text::from(self.title(pods, &selected, end)), title);
        frame.render_widget(Text::from(self.help()), keys);
        if shown.is_empty() {
            let none = match pods {
                [] => "No pods are attached.".to_owned(),
                _ => format!("No pod has {:?} in its name or container ID.", self.filter),
            };
            frame.render_widget(Text::from(none), body);
            return;
        }
        let columns = Columns::of_width(body.width);
        let table = Table::new(
            shown.iter().map(|pod| columns.row(pod)),
            columns.constraints(),
        )
        .header(columns.header());
        frame.render_widget(table, body);
    }

    fn title(&self, pods: &[PodRates], selected: &[&PodRates], end: usize) -> String {
        let limited = pods.iter().filter(|pod| pod.has_limit()).count();
        let full = pods.iter().filter(|pod| pod.is_at_limit()).count();
        let position = match selected.len() {
            0 => "0".to_owned(),
            number => format!("{}-{end} of {number}", self.first + 1),
        };
        format!(
            "Pods {position} by {}; {limited} limited, {full} at the limit",
            self.sort.name()
        )
    }

    fn help(&self) -> String {
        if self.is_typing {
            return format!("Filter: {}_   (Enter: keep, Esc: remove)", self.filter);
        }
        let filter = match self.filter.as_str() {
            "" => "filter".to_owned(),
            text => format!("filter ({text})"),
        };
        format!("{LIMITED} limited  {AT_LIMIT} at the limit  s sort  / {filter}  ↑↓ scroll  q quit")
    }
}

/// The columns that fit the terminal.
#[derive(Clone, Copy, Debug)]
struct Columns {
    pod: u16,
    bars: bool,
    limit_rates: bool,
}

impl Columns {
    fn of_width(width: u16) -> Self {
        let mut columns = Self {
            pod: 0,
            bars: width >= WITH_BARS,
            limit_rates: width >= WITH_LIMIT_RATES,
        };
        let others = columns.widths();
        // With a space between two columns.
        let taken: u16 = others.iter().map(|(_, width)| width + 1).sum();
        columns.pod = (width + 1).saturating_sub(taken).max(1);
        columns
    }

    /// Returns the headers and widths of all columns; that of the pod is 0 until it is known.
    fn widths(self) -> Vec<(&'static str, u16)> {
        let direction = |name| {
            let bar = self.bars.then_some(("", BAR + 6));
            [(name, 6), ("LIMIT", 6)].into_iter().chain(bar)
        };
        let limit_rates = [("MARKED/s", 8), ("PACED/s", 7)];
        [("", 1), ("POD", self.pod)]
            .into_iter()
            .chain(direction("TX"))
            .chain(direction("RX"))
            .chain(limit_rates.into_iter().filter(|_| self.limit_rates))
            .chain([("DROPPED/s", 9)])
            .collect()
    }

    fn constraints(self) -> impl Iterator<Item = Constraint> {
        let widths = self.widths().into_iter();
        widths.map(|(_, width)| Constraint::Length(width))
    }

    fn header(self) -> Row<'static> {
        let cells = self.widths().into_iter().map(|(name, width)| {
            let is_number = !matches!(name, "" | "POD");
            Cell::from(if is_number {
                right(name, width)
            } else {
                name.to_owned()
            })
        });
        Row::new(cells).style(Style::new().add_modifier(Modifier::BOLD))
    }

    fn row(self, pod: &PodRates) -> Row<'static> {
        let mark = if pod.is_at_limit() {
            Cell::from(AT_LIMIT).style(Style::new().fg(Color::Red))
        } else if pod.has_limit() {
            Cell::from(LIMITED)
        } else {
            Cell::from(" ")
        };
        let mut cells = vec![mark, Cell::from(shortened(&pod.pod, self.pod.into()))];
        for rates in [&pod.tx, &pod.rx] {
            let style = Style::new().fg(colour(rates));
            cells.push(Cell::from(right(&bits(rates.rate), 6)).style(style));
            cells.push(Cell::from(right(&limit(rates), 6)));
            if self.bars {
                let bar = rates.share().map(bar).unwrap_or_default();
                cells.push(Cell::from(bar).style(style));
            }
        }
        if self.limit_rates {
            cells.push(Cell::from(right(&count(pod.tx.marked + pod.rx.marked), 8)));
            cells.push(Cell::from(right(&count(pod.tx.paced + pod.rx.paced), 7)));
        }
        cells.push(Cell::from(right(&count(pod.dropped()), 9)));
        Row::new(cells)
    }
}

fn colour(rates: &Rates) -> Color {
    match rates.limit {
        Some(_) if rates.is_full() => Color::Red,
        Some(_) => Color::Green,
        None => Color::Reset,
    }
}

fn right(text: &str, width: u16) -> String {
    format!("{text:>0$}", usize::from(width))
}

/// Renders all selected pods as plain text, for pipes and scripts.
pub(super) fn plain(pods: &[&PodRates]) -> String {
    if pods.is_empty() {
        return "No pods.\n".to_owned();
    }
    let header = [
        "POD",
        "TX",
        "LIMIT",
        "USED",
        "RX",
        "LIMIT",
        "USED",
        "MARKED/s",
        "PACED/s",
        "DROPPED/s",
    ];
    let rows = pods.iter().map(|pod| {
        let direction = |rates: &Rates| {
            let used = rates.share().map(|share| format!("{:.0} %", share * 100.0));
            [
                bits(rates.rate),
                limit(rates),
                used.unwrap_or_else(|| "-".to_owned()),
            ]
        };
        let of_limits = [
            count(pod.tx.marked + pod.rx.marked),
            count(pod.tx.paced + pod.rx.paced),
            count(pod.dropped()),
        ];
        let numbers = direction(&pod.tx)
            .into_iter()
            .chain(direction(&pod.rx))
            .chain(of_limits);
        render::row([text(&pod.pod)].into_iter().chain(numbers.map(number)))
    });
    render::table(&header, rows)
}

fn limit(rates: &Rates) -> String {
    rates
        .limit
        .map(as_float)
        .map_or_else(|| "-".to_owned(), bits)
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
    format!("{full}{rest}{:>4.0} %", share * 100.0)
}

fn count(rate: f64) -> String {
    if rate == 0.0 {
        return "-".to_owned();
    }
    bits(rate)
}
