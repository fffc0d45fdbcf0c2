//! What passes by on a wire, as tcpdump shows it.

use anyhow::Result;
use nix::sys::signal::Signal;

use crate::{Machine, POD_CIDRS, Process, until};

/// A running tcpdump. Dropping it ends it.
#[derive(Debug)]
pub struct Sniffer(Process);

impl Sniffer {
    /// Listens on `interface` of `machine` for what comes in and matches `filter`.
    pub fn start(machine: &Machine, interface: &str, filter: &str) -> Result<Self> {
        Self::listen(machine, interface, "in", filter)
    }

    /// As [`Sniffer::start`], for what comes in and what goes out.
    pub fn both_ways(machine: &Machine, interface: &str, filter: &str) -> Result<Self> {
        Self::listen(machine, interface, "inout", filter)
    }

    fn listen(machine: &Machine, interface: &str, ways: &str, filter: &str) -> Result<Self> {
        let mut words = vec!["tcpdump", "-l", "-n", "-Q", ways, "-i", interface];
        words.extend(filter.split_whitespace());
        let process = Process::start(machine, &words)?;
        until("tcpdump listens", || {
            Ok(process.output().contains("listening on").then_some(()))
        })?;
        Ok(Self(process))
    }

    /// Listens for packets with an address of a pod, which must never be on a wire outside of the node.
    pub fn for_pods(machine: &Machine, interface: &str) -> Result<Self> {
        let [v4, v6] = POD_CIDRS;
        Self::start(machine, interface, &format!("net {v4} or net {v6}"))
    }

    /// Ends, and returns the packets it has shown, one per line.
    pub fn end(self) -> Result<Vec<String>> {
        let (_, output) = self.0.end(Signal::SIGINT)?;
        let packets = output.lines().filter(|line| line.contains(" IP"));
        Ok(packets.map(ToOwned::to_owned).collect())
    }
}
