//! What the client has the nodes measure: one line of JSON there, one line back, by TCP beside all systems. A node begins
//! with the addresses of its pods.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use e2e::{Machine, measure_in, tcp_ask, tcp_source, until_within};
use serde_json::{Value, json};

use super::role::Role;
use super::site::{Place, Site};
use crate::beside::{WARM, beside};
use crate::statistics::quantile;
use crate::topology::PORTS;

/// Where a node takes orders.
const DESK: u16 = 7000;

/// How long a node may take to be there, on a machine of usual speed.
const READY: Duration = Duration::from_mins(1);

/// Requests of one sample.
const TURNS: usize = 300;

/// Requests of one sample beside a transfer at a limit, whose queue may take a tenth of a second for each.
const BUSY_TURNS: usize = 30;

/// Seconds of one transfer.
const SECONDS: u32 = 2;

/// Seconds of a transfer that has to last longer than [`BUSY_TURNS`].
const BUSY: u32 = 8;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Request and response.
    Turns,
    /// Bulk TCP by iperf3.
    Tcp,
    /// What arrives of UDP at a rate that any machine can send.
    Udp,
    /// Bulk TCP at a limit.
    Limited,
    /// Request and response beside it.
    Beside,
}

impl What {
    const ALL: [Self; 5] = [
        Self::Turns,
        Self::Tcp,
        Self::Udp,
        Self::Limited,
        Self::Beside,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Turns => "turns",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Limited => "limited",
            Self::Beside => "beside",
        }
    }

    /// What its numbers are.
    pub(super) fn titles(self) -> &'static [&'static str] {
        match self {
            Self::Turns => &["request and response, p50", "request and response, p99"],
            Self::Tcp | Self::Limited => &["TCP"],
            Self::Udp => &["UDP that arrives of 25 Mbit/s"],
            Self::Beside => &[
                "request and response beside bulk, p50",
                "request and response beside bulk, p99",
            ],
        }
    }
}

/// Something to be measured from a machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub(super) what: What,
    /// Whether the node's pod with a limit is who dials.
    pub(super) limited: bool,
    pub(super) dial: IpAddr,
}

impl Order {
    /// Measures it.
    pub(super) fn obey(self, site: &Site) -> Result<Vec<f64>> {
        let from = if self.limited {
            site.limited.as_ref().context("no pod has a limit")?
        } else {
            &site.usual
        };
        let bulk = Bulk {
            from: &from.machine,
            // Pods that nobody limits send as all processes do.
            cgroup: self.limited.then_some(site.cgroup.as_deref()).flatten(),
            to: self.dial,
        };
        match self.what {
            What::Turns => turns(from, self.server(), TURNS),
            What::Tcp => bulk.send(&format!("-t {SECONDS}")),
            What::Udp => bulk.send(&format!("-t {SECONDS} -u -b 25M -l 1400")),
            What::Limited => bulk.send(&format!("-C cubic -O {WARM} -t {}", 2 * SECONDS)),
            What::Beside => beside(
                || bulk.send(&format!("-C cubic -t {}", WARM + BUSY)),
                || turns(from, self.server(), BUSY_TURNS),
            ),
        }
    }

    fn server(self) -> SocketAddr {
        SocketAddr::new(self.dial, PORTS[0])
    }
}

/// A transfer by iperf3.
#[derive(Clone, Copy)]
struct Bulk<'a> {
    from: &'a Machine,
    cgroup: Option<&'a Path>,
    to: IpAddr,
}

impl Bulk<'_> {
    /// What arrives, in Mbit/s.
    fn send(self, options: &str) -> Result<Vec<f64>> {
        let throughput = measure_in(self.cgroup, self.from, self.to, PORTS[2], options)?;
        Ok(vec![throughput.bits_per_second / 1e6])
    }
}

/// Median and p99 in microseconds.
fn turns(from: &Place, server: SocketAddr, count: usize) -> Result<Vec<f64>> {
    let (_, stream) = tcp_source(&from.machine, 0, server)?;
    stream.set_nodelay(true)?;
    let mut turns = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        tcp_ask(&stream)?;
        turns.push(start.elapsed().as_secs_f64() * 1e6);
    }
    turns.sort_by(f64::total_cmp);
    let parts = [0.5, 0.99].into_iter();
    Ok(parts.filter_map(|part| quantile(&turns, part)).collect())
}

/// Obeys one client until it has gone.
pub(super) fn serve(role: Role, sites: &[Site]) -> Result<()> {
    let listener = TcpListener::bind(SocketAddr::new(role.desk(), DESK))?;
    let (stream, _) = listener.accept()?;
    let mut answers = stream.try_clone()?;
    writeln!(answers, "{}", pods(sites))?;
    for line in BufReader::new(stream).lines() {
        let answer = match answer(&serde_json::from_str(&line?)?, sites) {
            Ok(numbers) => json!({ "numbers": numbers }),
            Err(error) => json!({ "error": format!("{error:#}") }),
        };
        writeln!(answers, "{answer}")?;
    }
    Ok(())
}

/// The addresses of each system's pods: the usual one, and the one with a limit.
fn pods(sites: &[Site]) -> Value {
    let of = |site: &Site| {
        let limited = site.limited.as_ref().and_then(|it| it.address);
        let pods = json!({ "usual": site.usual.address, "limited": limited });
        (site.system.to_owned(), pods)
    };
    Value::Object(sites.iter().map(of).collect())
}

fn answer(order: &Value, sites: &[Site]) -> Result<Vec<f64>> {
    let system = order["system"].as_str().context("no system")?;
    let site = sites
        .iter()
        .find(|it| it.system == system)
        .with_context(|| format!("there is no {system}"))?;
    let what = What::ALL
        .into_iter()
        .find(|it| order["what"] == it.name())
        .context("what is to be measured?")?;
    let dial = order["dial"].as_str().context("no address")?.parse()?;
    let limited = order["limited"] == true;
    let order = Order {
        what,
        limited,
        dial,
    };
    order.obey(site)
}

/// A node, seen from the client.
pub(super) struct Node {
    role: Role,
    desk: BufReader<TcpStream>,
    pods: Value,
}

impl Node {
    /// Waits until the node takes orders.
    pub(super) fn find(role: Role) -> Result<Self> {
        let address = SocketAddr::new(role.desk(), DESK);
        let what = format!("{role:?} takes orders");
        let desk = until_within(READY, &what, || {
            Ok(TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok())
        })?;
        let mut node = Self {
            role,
            desk: BufReader::new(desk),
            pods: Value::Null,
        };
        node.pods = node.hear()?;
        Ok(node)
    }

    /// The address of its pod.
    pub(super) fn pod(&self, system: &str) -> Result<IpAddr> {
        self.pod_of_kind(system, "usual")
    }

    /// The address of its pod with a limit.
    pub(super) fn limited(&self, system: &str) -> Result<IpAddr> {
        self.pod_of_kind(system, "limited")
    }

    fn pod_of_kind(&self, system: &str, kind: &str) -> Result<IpAddr> {
        let pod = self.pods[system][kind].as_str();
        let pod = pod.with_context(|| format!("{:?} has no {kind} pod of {system}", self.role))?;
        Ok(pod.parse()?)
    }

    /// Has it measured from one of its pods.
    pub(super) fn order(&mut self, system: &str, order: Order) -> Result<Vec<f64>> {
        let Order {
            what,
            limited,
            dial,
        } = order;
        let line = json!({
            "system": system, "what": what.name(), "limited": limited, "dial": dial,
        });
        writeln!(self.desk.get_mut(), "{line}")?;
        let answer = self.hear()?;
        if let Some(error) = answer["error"].as_str() {
            bail!("{:?}: {error}", self.role);
        }
        let numbers = answer["numbers"].as_array().context("no numbers")?;
        Ok(numbers.iter().filter_map(Value::as_f64).collect())
    }

    fn hear(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.desk.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("{:?} has gone: {line:?}", self.role))
    }
}
