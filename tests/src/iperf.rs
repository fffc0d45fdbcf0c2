//! Bulk traffic with iperf3.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::{Machine, Process, patient, until};

/// Shell script that enters a cgroup and executes another program.
const ENTER: &str = r#"echo 0 > "$0/cgroup.procs" && exec "$@""#;

/// An iperf3 server. Dropping it kills the process.
#[derive(Debug)]
pub struct Iperf {
    server: Process,
    port: u16,
}

/// The result of one transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throughput {
    /// Mean rate at the receiver, in bits per second.
    pub bits_per_second: f64,
    /// Rate in the slowest interval at the sender, in bits per second.
    pub slowest: f64,
    /// Retransmitted segments.
    pub retransmits: u64,
}

impl Iperf {
    /// Starts a server on `port` of `machine`, and waits until it listens.
    pub fn serve(machine: &Machine, port: u16) -> Result<Self> {
        let port_text = port.to_string();
        let server = Process::start(machine, &["iperf3", "-s", "--forceflush", "-p", &port_text])?;
        until("iperf3 listens", || {
            if let Some(status) = server.ended()? {
                bail!("iperf3 exited ({status}): {}", server.output());
            }
            Ok(server.output().contains("Server listening").then_some(()))
        })?;
        Ok(Self { server, port })
    }

    /// Sends TCP for `seconds` from `machine` to `to`.
    pub fn send(&self, machine: &Machine, to: IpAddr, seconds: u32) -> Result<Throughput> {
        measure(machine, to, self.port, &format!("-t {seconds}"))
    }

    /// Returns the server's output so far.
    pub fn output(&self) -> String {
        self.server.output()
    }
}

/// Runs an iperf3 client on `machine` with `options`, separated by spaces.
pub fn measure(machine: &Machine, to: IpAddr, port: u16, options: &str) -> Result<Throughput> {
    measure_in(None, machine, to, port, options)
}

/// Does the same as [`measure`], with the client in `cgroup`, as a container of a node.
pub fn measure_in(
    cgroup: Option<&Path>,
    machine: &Machine,
    to: IpAddr,
    port: u16,
    options: &str,
) -> Result<Throughput> {
    let timeout = patient(Duration::from_secs(4)).as_millis();
    let line = format!("iperf3 -J --connect-timeout {timeout} -c {to} -p {port} {options}");
    let cgroup = cgroup.map(|path| path.display().to_string());
    let mut words = match &cgroup {
        Some(cgroup) => vec!["sh", "-c", ENTER, cgroup],
        None => Vec::new(),
    };
    words.extend(line.split_whitespace());
    let output = machine.output(&words)?;
    let report: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("iperf3 printed {}", String::from_utf8_lossy(&output.stdout)))?;
    if let Some(error) = report["error"].as_str() {
        bail!("iperf3 from {} to {to}: {error}", machine.name());
    }
    let end = &report["end"];
    let intervals = report["intervals"].as_array().into_iter().flatten();
    let slowest = intervals
        .filter_map(|interval| interval["sum"]["bits_per_second"].as_f64())
        .fold(f64::INFINITY, f64::min);
    Ok(Throughput {
        slowest,
        bits_per_second: end["sum_received"]["bits_per_second"]
            .as_f64()
            .with_context(|| format!("no throughput in {end}"))?,
        retransmits: end["sum_sent"]["retransmits"].as_u64().unwrap_or(0),
    })
}
