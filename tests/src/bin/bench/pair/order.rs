//! What the client has the nodes measure: one line of JSON there, one line back, by TCP beside all systems. A node begins
//! with the addresses of its pods.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use e2e::{Machine, measure as transfer, tcp_ask, tcp_source, until_within};
use serde_json::{Value, json};

use super::role::Role;
use super::site::Site;
use crate::statistics::quantile;
use crate::topology::PORTS;

/// Where a node takes orders.
const DESK: u16 = 7000;

/// How long a node may take to be there, on a machine of usual speed.
const READY: Duration = Duration::from_mins(1);

/// Requests of one sample.
const TURNS: usize = 300;

/// Seconds of one transfer.
const SECONDS: u32 = 2;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Request and response.
    Turns,
    /// Bulk TCP by iperf3.
    Tcp,
    /// What arrives of UDP at a rate that any machine can send.
    Udp,
}

impl What {
    const ALL: [Self; 3] = [Self::Turns, Self::Tcp, Self::Udp];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Turns => "turns",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    /// What its numbers are.
    pub(super) fn titles(self) -> &'static [&'static str] {
        match self {
            Self::Turns => &["request and response, p50", "request and response, p99"],
            Self::Tcp => &["TCP"],
            Self::Udp => &["UDP that arrives of 25 Mbit/s"],
        }
    }
}

/// Something to be measured from a machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub(super) what: What,
    pub(super) dial: IpAddr,
}

impl Order {
    /// Measures it.
    pub(super) fn obey(self, from: &Machine) -> Result<Vec<f64>> {
        let send = |options: &str| -> Result<Vec<f64>> {
            let options = format!("-t {SECONDS} {options}");
            let throughput = transfer(from, self.dial, PORTS[2], &options)?;
            Ok(vec![throughput.bits_per_second / 1e6])
        };
        match self.what {
            What::Turns => turns(from, SocketAddr::new(self.dial, PORTS[0])),
            What::Tcp => send(""),
            What::Udp => send("-u -b 25M -l 1400"),
        }
    }
}

/// Median and p99 in microseconds.
fn turns(from: &Machine, server: SocketAddr) -> Result<Vec<f64>> {
    let (_, stream) = tcp_source(from, 0, server)?;
    stream.set_nodelay(true)?;
    let mut turns = Vec::with_capacity(TURNS);
    for _ in 0..TURNS {
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
    let pods = sites.iter().map(|it| (it.system.to_owned(), json!(it.pod)));
    writeln!(answers, "{}", Value::Object(pods.collect()))?;
    for line in BufReader::new(stream).lines() {
        let answer = match answer(&serde_json::from_str(&line?)?, sites) {
            Ok(numbers) => json!({ "numbers": numbers }),
            Err(error) => json!({ "error": format!("{error:#}") }),
        };
        writeln!(answers, "{answer}")?;
    }
    Ok(())
}

fn answer(order: &Value, sites: &[Site]) -> Result<Vec<f64>> {
    let system = order["system"].as_str().context("no system")?;
    let site = sites.iter().find(|it| it.system == system);
    let site = site.with_context(|| format!("there is no {system}"))?;
    let what = What::ALL
        .into_iter()
        .find(|it| order["what"] == it.name())
        .context("what is to be measured?")?;
    let dial = order["dial"].as_str().context("no address")?.parse()?;
    Order { what, dial }.obey(&site.sender)
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
        let pod = self.pods[system].as_str();
        let pod = pod.with_context(|| format!("{:?} has no pod of {system}", self.role))?;
        Ok(pod.parse()?)
    }

    /// Has it measured from its pod.
    pub(super) fn order(&mut self, system: &str, order: Order) -> Result<Vec<f64>> {
        let Order { what, dial } = order;
        let line = json!({ "system": system, "what": what.name(), "dial": dial });
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
