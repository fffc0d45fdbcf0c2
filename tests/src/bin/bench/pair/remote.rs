//! Measurement requests from the client to the nodes: one line of JSON each for request and
//! response, over TCP on card 0. A node first sends the addresses of its pods.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use e2e::{Machine, measure_in, tcp_echo, tcp_source, until_within};
use serde_json::{Value, json};

use super::role::Role;
use super::site::{Place, Site};
use crate::background_load::{WARM, under_load};
use crate::statistics::quantile;
use crate::topology::PORTS;

/// TCP port on which a node accepts requests.
const CONTROL_PORT: u16 = 7000;

/// Timeout of the first connection to a node, on a machine of normal speed.
const READY: Duration = Duration::from_mins(1);

/// Transactions of one sample.
const TURNS: usize = 300;

/// Transactions of one sample during a transfer at a limit, whose queue may delay each by a tenth
/// of a second.
const BUSY_TURNS: usize = 30;

/// Duration of one transfer in seconds.
const SECONDS: u32 = 2;

/// Duration in seconds of a transfer that must last longer than [`BUSY_TURNS`].
const BUSY: u32 = 8;

/// Kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measurement {
    /// Latency of request and response.
    RequestResponse,
    /// Bulk TCP with iperf3.
    Tcp,
    /// Received UDP, at a sending rate that any machine reaches.
    Udp,
    /// Bulk TCP at a bandwidth limit.
    Limited,
    /// Latency of request and response during bulk TCP at a limit.
    UnderLoad,
}

impl Measurement {
    const ALL: [Self; 5] = [
        Self::RequestResponse,
        Self::Tcp,
        Self::Udp,
        Self::Limited,
        Self::UnderLoad,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::RequestResponse => "turns",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Limited => "limited",
            Self::UnderLoad => "beside",
        }
    }

    /// Returns the names of its numbers, as parts of row names.
    pub(super) fn titles(self) -> &'static [&'static str] {
        match self {
            Self::RequestResponse => &["request and response, p50", "request and response, p99"],
            Self::Tcp | Self::Limited => &["TCP"],
            Self::Udp => &["UDP received of 25 Mbit/s sent"],
            Self::UnderLoad => &[
                "request and response under bulk load, p50",
                "request and response under bulk load, p99",
            ],
        }
    }
}

/// A request to measure from a machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) what: Measurement,
    /// Whether the client is the node's pod with a limit.
    pub(super) limited: bool,
    pub(super) target: IpAddr,
}

impl Request {
    /// Measures on this machine.
    pub(super) fn run(self, site: &Site) -> Result<Vec<f64>> {
        let from = if self.limited {
            site.limited.as_ref().context("no pod has a limit")?
        } else {
            &site.usual
        };
        let bulk = Bulk {
            from: &from.machine,
            // Pods without a limit need no cgroup.
            cgroup: self.limited.then_some(site.cgroup.as_deref()).flatten(),
            to: self.target,
        };
        match self.what {
            Measurement::RequestResponse => turns(from, self.server(), TURNS),
            Measurement::Tcp => bulk.send(&format!("-t {SECONDS}")),
            Measurement::Udp => bulk.send(&format!("-t {SECONDS} -u -b 25M -l 1400")),
            Measurement::Limited => bulk.send(&format!("-C cubic -O {WARM} -t {}", 2 * SECONDS)),
            Measurement::UnderLoad => under_load(
                || bulk.send(&format!("-C cubic -t {}", WARM + BUSY)),
                || turns(from, self.server(), BUSY_TURNS),
            ),
        }
    }

    fn server(self) -> SocketAddr {
        SocketAddr::new(self.target, PORTS[0])
    }
}

/// A transfer with iperf3.
#[derive(Clone, Copy)]
struct Bulk<'a> {
    from: &'a Machine,
    cgroup: Option<&'a Path>,
    to: IpAddr,
}

impl Bulk<'_> {
    /// Runs the transfer; returns the rate at the receiver in Mbit/s.
    fn send(self, options: &str) -> Result<Vec<f64>> {
        let throughput = measure_in(self.cgroup, self.from, self.to, PORTS[2], options)?;
        Ok(vec![throughput.bits_per_second / 1e6])
    }
}

/// Measures `count` transactions; returns their median and p99 in microseconds.
fn turns(from: &Place, server: SocketAddr, count: usize) -> Result<Vec<f64>> {
    let (_, stream) = tcp_source(&from.machine, 0, server)?;
    stream.set_nodelay(true)?;
    let mut turns = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        tcp_echo(&stream)?;
        turns.push(start.elapsed().as_secs_f64() * 1e6);
    }
    turns.sort_by(f64::total_cmp);
    let parts = [0.5, 0.99].into_iter();
    Ok(parts.filter_map(|part| quantile(&turns, part)).collect())
}

/// Serves the requests of one client until it disconnects.
pub(super) fn serve(role: Role, sites: &[Site]) -> Result<()> {
    let listener = TcpListener::bind(SocketAddr::new(role.control_address(), CONTROL_PORT))?;
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

/// Returns the addresses of each system's pods, as JSON: the one without and the one with a limit.
fn pods(sites: &[Site]) -> Value {
    let of = |site: &Site| {
        let limited = site.limited.as_ref().and_then(|it| it.address);
        let pods = json!({ "usual": site.usual.address, "limited": limited });
        (site.system.to_owned(), pods)
    };
    Value::Object(sites.iter().map(of).collect())
}

fn answer(request: &Value, sites: &[Site]) -> Result<Vec<f64>> {
    let system = request["system"].as_str().context("no system")?;
    let site = sites
        .iter()
        .find(|it| it.system == system)
        .with_context(|| format!("unknown system {system}"))?;
    let what = Measurement::ALL
        .into_iter()
        .find(|it| request["what"] == it.name())
        .context("unknown measurement")?;
    let target = request["target"].as_str().context("no address")?.parse()?;
    let limited = request["limited"] == true;
    let request = Request {
        what,
        limited,
        target,
    };
    request.run(site)
}

/// The client's connection to a node.
pub(super) struct Node {
    role: Role,
    control: BufReader<TcpStream>,
    pods: Value,
}

impl Node {
    /// Waits until the node accepts requests.
    pub(super) fn find(role: Role) -> Result<Self> {
        let address = SocketAddr::new(role.control_address(), CONTROL_PORT);
        let what = format!("{role:?} accepts requests");
        let control = until_within(READY, &what, || {
            Ok(TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok())
        })?;
        let mut node = Self {
            role,
            control: BufReader::new(control),
            pods: Value::Null,
        };
        node.pods = node.receive()?;
        Ok(node)
    }

    /// Returns the address of its pod without a limit.
    pub(super) fn pod(&self, system: &str) -> Result<IpAddr> {
        self.pod_of_kind(system, "usual")
    }

    /// Returns the address of its pod with a limit.
    pub(super) fn limited(&self, system: &str) -> Result<IpAddr> {
        self.pod_of_kind(system, "limited")
    }

    fn pod_of_kind(&self, system: &str, kind: &str) -> Result<IpAddr> {
        let pod = self.pods[system][kind].as_str();
        let pod = pod.with_context(|| format!("{:?} has no {kind} pod of {system}", self.role))?;
        Ok(pod.parse()?)
    }

    /// Sends a request, and returns the measured numbers.
    pub(super) fn measure(&mut self, system: &str, request: Request) -> Result<Vec<f64>> {
        let Request {
            what,
            limited,
            target,
        } = request;
        let line = json!({
            "system": system, "what": what.name(), "limited": limited, "target": target,
        });
        writeln!(self.control.get_mut(), "{line}")?;
        let answer = self.receive()?;
        if let Some(error) = answer["error"].as_str() {
            bail!("{:?}: {error}", self.role);
        }
        let numbers = answer["numbers"].as_array().context("no numbers")?;
        Ok(numbers.iter().filter_map(Value::as_f64).collect())
    }

    fn receive(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.control.read_line(&mut line)?;
        serde_json::from_str(&line)
            .with_context(|| format!("{:?} disconnected: {line:?}", self.role))
    }
}
