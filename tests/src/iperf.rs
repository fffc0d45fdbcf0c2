//! Bulk traffic by iperf3.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::{Machine, Process, until};

/// Enters a cgroup, and becomes another program.
const ENTER: &str = r#"echo 0 > "$0/cgroup.procs" && exec "$@""#;

/// An iperf3 server. Dropping it ends it.
#[derive(Debug)]
pub struct Iperf {
    server: Process,
    port: u16,
}

/// What came through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throughput {
    /// Bits per second that the receiver counted.
    pub bits_per_second: f64,
    /// Bits per second that the sender counted in its worst interval.
    pub slowest: f64,
    /// Segments that were sent again.
    pub retransmits: u64,
}

impl Iperf {
    /// Serves `port` on `machine`.
    pub fn serve(machine: &Machine, port: u16) -> Result<Self> {
        let port_text = port.to_string();
        let server = Process::start(machine, &["iperf3", "-s", "--forceflush", "-p", &port_text])?;
        until("iperf3 listens", || {
            if let Some(status) = server.ended()? {
                bail!("iperf3 ended ({status}): {}", server.output());
            }
            Ok(server.output().contains("Server listening").then_some(()))
        })?;
        Ok(Self { server, port })
    }

    /// Sends TCP for `seconds` from `machine` to `to`.
    pub fn send(&self, machine: &Machine, to: IpAddr, seconds: u32) -> Result<Throughput> {
        measure(machine, to, self.port, &format!("-t {seconds}"))
    }

    /// The server's output.
    pub fn output(&self) -> String {
        self.server.output()
    }
}

/// Runs an iperf3 client with `options`.
pub fn measure(machine: &Machine, to: IpAddr, port: u16, options: &str) -> Result<Throughput> {
    measure_in(None, machine, to, port, options)
}

/// As [`measure`], in `cgroup`, as the containers of a node are.
pub fn measure_in(
    cgroup: Option<&Path>,
    machine: &Machine,
    to: IpAddr,
    port: u16,
    options: &str,
) -> Result<Throughput> {
    let line = format!("iperf3 -J --connect-timeout 4000 -c {to} -p {port} {options}");
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
