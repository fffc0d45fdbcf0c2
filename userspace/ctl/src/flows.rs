//! `viaductctl flows`: live flows of pods, once or again and again with their rates, and the usage
//! of the flow table.

mod rates;
mod screen;

use std::io::{self, IsTerminal};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use api::{Client, FlowOrder, FlowQuery, FlowsView};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::text::Text;
use ratatui::widgets::Paragraph;

use self::rates::with_rates;
use self::screen::screen;
use crate::output::Output;
use crate::{decode, get, print, render};

/// Number of flows among which those with the highest rates are searched: the ones with the latest
/// packets.
const CANDIDATES: usize = 20_000;

/// Options of `viaductctl flows`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Flows {
    /// Only flows of this pod, at either end: name, namespace/name, or prefix of its container ID
    #[arg(short, long, value_name = "POD")]
    pod: Option<String>,
    /// Only flows with this remote address
    #[arg(long, value_name = "ADDRESS")]
    peer: Option<IpAddr>,
    /// Only flows with this source or destination port, original or translated
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Only flows of this protocol: tcp, udp, icmp, sctp, or a number
    #[arg(long, visible_alias = "protocol", value_name = "PROTOCOL")]
    proto: Option<String>,
    /// Sort key: rate, bytes, packets, age (newest first) or idle (latest packet first)
    /// [default: order of the table; rate with --watch]
    #[arg(short, long, value_name = "KEY", value_enum)]
    sort: Option<SortKey>,
    /// List again every so many seconds, from 1 to 60 [default: 2], with the rates since the last
    /// list
    #[arg(
        short, long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
        value_parser = clap::value_parser!(u64).range(1..=60)
    )]
    watch: Option<u64>,
    /// Maximum number of flows to list
    #[arg(long, value_name = "COUNT", default_value_t = api::DEFAULT_FLOW_LIMIT)]
    limit: usize,
    /// Show the usage of the flow table instead: entries, flows and evictions per pod
    #[arg(long, conflicts_with_all = ["watch", "sort"])]
    usage: bool,
    #[command(flatten)]
    output: Output,
}

/// Order of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum SortKey {
    /// Most bits per second first, measured over one second
    Rate,
    /// Most bytes first
    Bytes,
    /// Most packets first
    Packets,
    /// Newest first
    Age,
    /// Latest packet first
    Idle,
}

impl SortKey {
    /// Returns the order of the agent's answer; `None` for an order by rates, which are differences
    /// of two answers.
    fn order(self) -> Option<FlowOrder> {
        match self {
            Self::Rate => None,
            Self::Bytes => Some(FlowOrder::Bytes),
            Self::Packets => Some(FlowOrder::Packets),
            Self::Age => Some(FlowOrder::Age),
            Self::Idle => Some(FlowOrder::Idle),
        }
    }
}

/// Flows at one time.
struct Sample {
    at: Instant,
    view: FlowsView,
}

impl Flows {
    fn query(&self, sort: Option<FlowOrder>, limit: usize) -> FlowQuery {
        FlowQuery {
            pod: self.pod.clone(),
            peer: self.peer,
            port: self.port,
            protocol: self.proto.clone(),
            sort,
            limit: Some(limit),
        }
    }

    /// Lists the flows, or the usage of their table.
    pub(crate) fn run(self, client: &Client) -> Result<String> {
        let is_table = self.output.data().is_none();
        if let Some(seconds) = self.watch {
            if !is_table {
                bail!("--watch has no JSON or YAML: repeat the command instead");
            }
            return self.watch(client, Duration::from_secs(seconds));
        }
        if self.sort == Some(SortKey::Rate) {
            if !is_table {
                bail!("rates are no part of JSON or YAML: sort by bytes instead");
            }
            let before = self.sample(client)?;
            std::thread::sleep(Duration::from_secs(1));
            return Ok(self.table(&before, self.sample(client)?));
        }
        let sort = self.sort.and_then(SortKey::order);
        let reply = get(client, &self.query(sort, self.limit).to_path())?;
        match self.output.data() {
            Some(_) if self.usage => bail!("--usage has no JSON or YAML: leave it out for both"),
            Some(format) => format.reply(&reply),
            None => {
                let view: FlowsView = decode(&reply)?;
                Ok(if self.usage {
                    render::flow_table(&view.table, self.output.style())
                } else {
                    render::flows(&view, None, self.output.style())
                })
            }
        }
    }

    /// Reads the flows that a list with rates is made of.
    fn sample(&self, client: &Client) -> Result<Sample> {
        let (sort, limit) = match self.sort.and_then(SortKey::order) {
            Some(order) => (order, self.limit),
            // Only flows with packets in the interval have a rate.
            None => (FlowOrder::Idle, self.limit.max(CANDIDATES)),
        };
        let reply = get(client, &self.query(Some(sort), limit).to_path())?;
        let view = decode(&reply)?;
        let at = Instant::now();
        Ok(Sample { at, view })
    }

    /// Returns the flows with their rates since an earlier sample.
    fn rates(&self, before: &Sample, now: Sample) -> (FlowsView, Vec<f64>) {
        let span = now.at.saturating_duration_since(before.at).as_secs_f64();
        let by_rate = self.sort.is_none_or(|key| key == SortKey::Rate);
        with_rates(&before.view, now.view, span, (by_rate, self.limit))
    }

    /// Renders the flows with their rates since an earlier sample.
    fn table(&self, before: &Sample, now: Sample) -> String {
        let (view, rates) = self.rates(before, now);
        render::flows(&view, Some(&rates), self.output.style())
    }

    /// Returns the name of the order.
    fn order(&self) -> &'static str {
        match self.sort {
            None | Some(SortKey::Rate) => "rate",
            Some(SortKey::Bytes) => "bytes",
            Some(SortKey::Packets) => "packets",
            Some(SortKey::Age) => "age",
            Some(SortKey::Idle) => "idle time",
        }
    }

    /// Lists the flows until the user presses q, Esc or Ctrl-C, or until the output is closed.
    fn watch(&self, client: &Client, interval: Duration) -> Result<String> {
        let mut before = self.sample(client)?;
        let mut next = || -> Result<[Sample; 2]> {
            let now = self.sample(client)?;
            let later = Sample {
                at: now.at,
                view: now.view.clone(),
            };
            Ok([std::mem::replace(&mut before, later), now])
        };
        if !io::stdout().is_terminal() {
            loop {
                std::thread::sleep(interval);
                let [before, now] = next()?;
                print(&format!("{}\n", self.table(&before, now)))?;
            }
        }
        let mut rows = || {
            let [before, now] = next()?;
            Ok(self.rates(&before, now))
        };
        let mut terminal =
            ratatui::try_init().context("cannot initialise the terminal: redirect the output")?;
        let shown = show(&mut terminal, interval, self.order(), &mut rows);
        ratatui::restore();
        shown.map(|()| String::new())
    }
}

/// Draws the flows and their rates until the user quits.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the other keys have no meaning"
)]
fn show(
    terminal: &mut ratatui::DefaultTerminal,
    interval: Duration,
    order: &str,
    next: &mut impl FnMut() -> Result<(FlowsView, Vec<f64>)>,
) -> Result<()> {
    let mut rows: Option<(FlowsView, Vec<f64>)> = None;
    loop {
        let until = Instant::now() + interval;
        terminal.draw(|frame| {
            let area = frame.area();
            let text = match &rows {
                None => "Measuring rates; q quits".to_owned(),
                Some((view, rates)) => screen(view, rates, order, (area.width, area.height)),
            };
            frame.render_widget(Paragraph::new(Text::from(text)), area);
        })?;
        while event::poll(until.saturating_duration_since(Instant::now()))? {
            if let Event::Key(key) = event::read()? {
                let interrupts = key.modifiers.contains(KeyModifiers::CONTROL);
                match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if interrupts => return Ok(()),
                    _ => {}
                }
            }
        }
        rows = Some(next()?);
    }
}
