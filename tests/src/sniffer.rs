//! Records the packets on an interface with tcpdump.

use anyhow::Result;
use nix::sys::signal::Signal;

use crate::{Machine, POD_CIDRS, Process, until};

/// A running tcpdump. Dropping it kills the process.
#[derive(Debug)]
pub struct Sniffer(Process);

impl Sniffer {
    /// Records incoming packets on `interface` of `machine` that match `filter` (pcap-filter(7)).
    pub fn start(machine: &Machine, interface: &str, filter: &str) -> Result<Self> {
        Self::listen(machine, interface, "in", filter)
    }

    /// Does the same as [`Sniffer::start`], for incoming and outgoing packets.
    pub fn both_directions(machine: &Machine, interface: &str, filter: &str) -> Result<Self> {
        Self::listen(machine, interface, "inout", filter)
    }

    fn listen(machine: &Machine, interface: &str, direction: &str, filter: &str) -> Result<Self> {
        let mut words = vec!["tcpdump", "-l", "-n", "-Q", direction, "-i", interface];
        words.extend(filter.split_whitespace());
        let process = Process::start(machine, &words)?;
        until("tcpdump listens", || {
            Ok(process.output().contains("listening on").then_some(()))
        })?;
        Ok(Self(process))
    }

    /// Records incoming packets with an address of a pod, of which there must be none outside the
    /// node.
    pub fn for_pods(machine: &Machine, interface: &str) -> Result<Self> {
        let [v4, v6] = POD_CIDRS;
        Self::start(machine, interface, &format!("net {v4} or net {v6}"))
    }

    /// Stops; returns the recorded packets, one line each.
    pub fn end(self) -> Result<Vec<String>> {
        let (_, output) = self.0.end(Signal::SIGINT)?;
        let packets = output.lines().filter(|line| line.contains(" IP"));
        Ok(packets.map(ToOwned::to_owned).collect())
    }
}
