//! The families of measurements, in the order in which they run.

use anyhow::Result;

use crate::plan::Plan;
use crate::promise::Promise;
use crate::row::Row;
use crate::{add, bulk, connect, datagrams, flows, memory, pair, path, shaping, start, turns};

/// Measurements that belong together.
pub(crate) struct Family {
    /// How it is asked for.
    pub(crate) name: &'static str,
    /// What tables of several families put before the subject of a row.
    pub(crate) title: &'static str,
    /// What it measures.
    pub(crate) about: &'static str,
    /// Whether it runs when no family is named.
    pub(crate) usual: bool,
    /// Measures all systems, round by round.
    pub(crate) measure: fn(&Plan) -> Result<Vec<Row>>,
    /// What we hold ourselves to.
    pub(crate) promises: &'static [Promise],
}

/// All of them. A new one is a module and an entry here.
pub(crate) const FAMILIES: &[Family] = &[
    Family {
        name: "path",
        title: "CPU per small UDP packet",
        about: "CPU time that one small UDP packet costs, everything on one CPU",
        usual: true,
        measure: path::measure,
        promises: path::PROMISES,
    },
    Family {
        name: "turns",
        title: "TCP request and response",
        about: "request and response by TCP, by one thread and by two, on one CPU",
        usual: true,
        measure: turns::measure,
        promises: turns::PROMISES,
    },
    Family {
        name: "flows",
        title: "CPU per small UDP packet, many flows",
        about: "CPU time of one small UDP packet to the world, by the number of flows",
        usual: true,
        measure: flows::measure,
        promises: &[],
    },
    Family {
        name: "datagrams",
        title: "small UDP packets",
        about: "small UDP packets delivered, one CPU sending and one receiving",
        usual: true,
        measure: datagrams::measure,
        promises: datagrams::PROMISES,
    },
    Family {
        name: "bulk",
        title: "bulk TCP",
        about: "bulk TCP by iperf3, and the CPU time of all CPUs that it costs",
        usual: true,
        measure: bulk::measure,
        promises: bulk::PROMISES,
    },
    Family {
        name: "connect",
        title: "TCP connections",
        about: "connections opened and closed per second on one CPU, by the number of hostports",
        usual: true,
        measure: connect::measure,
        promises: connect::PROMISES,
    },
    Family {
        name: "add",
        title: "CNI",
        about: "how long a runtime waits for ADD and DEL of a pod with a hostport",
        usual: true,
        measure: add::measure,
        promises: add::PROMISES,
    },
    Family {
        name: "start",
        title: "plugin start",
        about: "how long the plugin itself takes, without an agent",
        usual: true,
        measure: start::measure,
        promises: &[],
    },
    Family {
        name: "memory",
        title: "memory",
        about: "resident memory of the agent",
        usual: true,
        measure: memory::measure,
        promises: &[],
    },
    Family {
        name: "shaping",
        title: "bandwidth limits",
        about: "limits of pods beside the reference's bandwidth plugin: rates, delays, CPU",
        usual: false,
        measure: shaping::measure,
        promises: shaping::PROMISES,
    },
    Family {
        name: "pair",
        title: "two nodes",
        about: "two nodes and a client on machines of their own",
        usual: false,
        measure: pair::measure,
        promises: &[],
    },
];
