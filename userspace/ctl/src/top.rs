//! `viaductctl top`: live send and receive rates of pods beside their bandwidth limits, busiest
//! first, or once as plain text. Rates are differences of the agent's counters over the interval.

mod rates;
mod screen;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use api::Client;
use ratatui::crossterm::event::{self, Event};

use self::rates::{PodRates, Sample, SortKey, compare};
use self::screen::{Pressed, Screen};

/// Options of `viaductctl top`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Top {
    /// Print the rates of one interval as plain text, and exit
    #[arg(long)]
    once: bool,
    /// Refresh interval in seconds, from 1 to 60
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=60))]
    interval: u64,
    /// Sort key: sum of both rates, rate sent, rate received, drops, or name
    #[arg(short, long, value_name = "KEY", value_enum, default_value_t)]
    sort: SortKey,
    /// Only pods with this text in their namespace/name or container ID
    #[arg(short, long, value_name = "TEXT", default_value_t)]
    filter: String,
}

impl Top {
    /// Draws until the user presses q, Esc or Ctrl-C. Returns the text to print afterwards: with
    /// `--once` the table, else nothing.
    pub(crate) fn run(self, client: &Client) -> Result<String> {
        // Before the terminal is initialised: an unreachable agent must not clear the screen.
        let mut before = Sample::take(client)?;
        let interval = Duration::from_secs(self.interval);
        let mut screen = Screen::new(self.sort, self.filter);
        if self.once {
            std::thread::sleep(interval);
            let pods = compare(&before, &Sample::take(client)?);
            return Ok(screen::plain(&screen.selected(&pods)));
        }
        let mut terminal =
            ratatui::try_init().context("cannot initialise the terminal: try --once")?;
        let shown = show(client, (&mut before, interval), &mut screen, &mut terminal);
        ratatui::restore();
        shown.map(|()| String::new())
    }
}

fn show(
    client: &Client,
    (before, interval): (&mut Sample, Duration),
    screen: &mut Screen,
    terminal: &mut ratatui::DefaultTerminal,
) -> Result<()> {
    let mut pods: Vec<PodRates> = Vec::new();
    loop {
        let next = before.at + interval;
        loop {
            terminal.draw(|frame| screen.draw(frame, &pods))?;
            match wait(screen, next)? {
                Some(Pressed::Quit) => return Ok(()),
                Some(Pressed::Redraw) => {}
                None => break,
            }
        }
        let now = Sample::take(client)?;
        pods = compare(before, &now);
        *before = now;
    }
}

/// Waits until `next`, for which it returns `None`, or for a key or another size of the terminal.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "all other events change the size or nothing"
)]
fn wait(screen: &mut Screen, next: Instant) -> Result<Option<Pressed>> {
    if !event::poll(next.saturating_duration_since(Instant::now()))? {
        return Ok(None);
    }
    Ok(Some(match event::read()? {
        Event::Key(key) => screen.press(key),
        _ => Pressed::Redraw,
    }))
}

#[cfg(test)]
mod tests;
